"""Frames that every reader has stored are removed, and no others."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from postroad.api.insights import SourceProgress
from postroad.container import Role
from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import StreamState, stream_info
from postroad.jobs.capability import JobsCapability
from postroad.jobs.frame_trimmer import FrameTrimmer
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.ids import new_id
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server

HOUR_MS = 3_600_000


@pytest.fixture
async def node(own_server: Server, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, data_dir=tmp_path / "data"), Role.ALL) as running:
        yield running


async def state(node: Gateway, stream: str) -> StreamState:
    info = await stream_info(node.node.platform.connection, stream)
    assert info is not None
    return info.state


async def report(node: Gateway, **positions: int) -> None:
    """Publish progress like the pipeline."""
    rows = [SourceProgress(stream=stream, sequence=sequence) for stream, sequence in positions.items()]
    progress = PipelineProgress(v=VERSION, batch=1, computed_at=rfc3339(now_ms()), rows=rows)
    message = PendingMessage(PIPELINE_PROGRESS.subject, msgspec.json.encode(progress), new_id())
    await node.node.platform.committers.of(PIPELINE_PROGRESS.stream).append(message)


async def test_frames_are_trimmed_behind_the_pipeline_and_the_index_once_they_are_old(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue()
    jobs = [await tenant.publish(queue, number) for number in range(5)]
    trimmer, projection = node.node.platform.use(JobsCapability).trimmer, node.node.platform.use(JobsCapability).projection
    last = (await state(node, "JOBS")).last_seq
    assert await projection.wait_for(last, 20)

    assert await trimmer.run_once() == 0, "without a pipeline only the retention applies"
    await report(node, JOBS=3, TELEMETRY=1)
    assert await trimmer.run_once() == 0, "frames are kept for a time"
    node.clock.ahead_ms = 73 * HOUR_MS
    assert await trimmer.run_once() == 4
    assert ((await state(node, "JOBS")).first_seq, (await state(node, "TELEMETRY")).first_seq) == (4, 2)
    assert await trimmer.run_once() == 0
    node.clock.ahead_ms = 0
    for one in jobs:
        assert (await tenant.client.get(f"/v1/jobs/{one['jobId']}")).ok()["status"] == "queued"


async def test_one_hour_keeps_less_than_two_hours_of_jobs(node: Gateway) -> None:
    """With POSTROAD_FRAMES_KEEP_HOURS=1: what is older is gone after the next round, a minute later."""
    tenant, platform = await node.tenant(), node.node.platform
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    last = (await state(node, "JOBS")).last_seq
    projection = platform.use(JobsCapability).projection
    assert await projection.wait_for(last, 20)
    await report(node, JOBS=last)
    trimmer = FrameTrimmer(platform.connection, projection, platform.clock, keep_ms=HOUR_MS)
    node.clock.ahead_ms = HOUR_MS - 60_000
    assert await trimmer.run_once() == 0
    node.clock.ahead_ms = HOUR_MS + 60_000
    assert await trimmer.run_once() == last
    assert (await state(node, "JOBS")).messages == 0


async def test_frames_that_the_index_has_not_read_stay(node: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue()
    for number in range(5):
        await tenant.publish(queue, number)
    jobs = node.node.platform.use(JobsCapability)
    assert await jobs.projection.wait_for((await state(node, "JOBS")).last_seq, 20)
    await report(node, JOBS=(await state(node, "JOBS")).last_seq)
    node.clock.ahead_ms = 73 * HOUR_MS

    async def position() -> int:
        return 2

    monkeypatch.setattr(jobs.trimmer, "_index_position", position)
    assert await jobs.trimmer.run_once() == 2
    assert (await state(node, "JOBS")).first_seq == 3


async def test_progress_beyond_the_end_of_the_stream_is_not_trusted(node: Gateway) -> None:
    """The stream was created again."""
    tenant = await node.tenant()
    await tenant.publish(await tenant.queue(), 1)
    node.clock.ahead_ms = 73 * HOUR_MS
    await report(node, JOBS=10_000, TELEMETRY=10_000)
    assert await node.node.platform.use(JobsCapability).trimmer.run_once() == 0
    assert (await state(node, "JOBS")).first_seq == 1


async def test_frames_of_commands_stay_for_their_retention(node: Gateway) -> None:
    tenant = await node.tenant()
    for stream in ("COMMANDS", "JOBS"):
        word = {"COMMANDS": "command", "JOBS": "job"}[stream]
        await node.node.platform.committers.of(stream).append(PendingMessage(f"{word}.{tenant.id}", b"{}", new_id()))
    node.clock.ahead_ms = 73 * HOUR_MS
    await report(node, COMMANDS=1, JOBS=1)
    jobs = node.node.platform.use(JobsCapability)
    assert await jobs.projection.wait_for(1, 20)
    assert await jobs.trimmer.run_once() == 1
    assert ((await state(node, "COMMANDS")).first_seq, (await state(node, "JOBS")).first_seq) == (1, 2)
