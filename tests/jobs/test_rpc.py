"""Asking the process that leads, from another one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from postroad.api.jobs import JobNotFound
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.leader import Leadership
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.jobs.capability import JobsCapability
from postroad.jobs.projection import Projection
from postroad.jobs.rpc import (
    SUBJECT,
    EventsRequest,
    EventsResponse,
    JobRequest,
    JobResponse,
    JobsRpcClient,
    JobsRpcServer,
    PageRequest,
    PageResponse,
    ProgressRequest,
    ProgressResponse,
    RebuildRequest,
)
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable
from postroad.telemetry.outbox import Outbox
from tests.jobs.conftest import Background, jobs_on, make_streams, outbox_on, send
from tests.jobs.lifecycles import Lifecycle
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

NewLifecycle = Callable[..., Lifecycle]


@pytest.fixture
async def engine(own_server: Server, open_connection: OpenConnection) -> Connection:
    """An engine of the test's own: on the shared one other tests answer on the same subject."""
    connection = await open_connection(own_server.url)
    await make_streams(connection)
    return connection


@pytest.fixture
async def client(engine: Connection, own_server: Server, open_connection: OpenConnection) -> JobsRpcClient:
    return JobsRpcClient(await open_connection(own_server.url))


@pytest.fixture
def outbox(engine: Connection) -> Outbox:
    return outbox_on(engine)


@pytest.fixture
async def jobs(engine: Connection, tmp_path: Path, background: Background) -> JobsCapability:
    """Leads."""
    made = jobs_on(engine, tmp_path, 30)
    background(made.lead())
    return made


async def test_a_job_is_found_right_after_its_event_is_stored(
    jobs: JobsCapability, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    for _ in range(20):
        one = lifecycle()
        await send(outbox, one.queued())
        found = (await client.call(JobRequest(tenant=one.tenant, job=one.job_id), JobResponse)).job
        assert (found.job_id, found.status, found.attempts) == (one.job_id, "queued", 0)


async def test_pages_and_events_are_carried_over_whole(
    jobs: JobsCapability, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    lifecycles = [lifecycle() for _ in range(25)]
    await send(outbox, *(one.queued(number) for number, one in enumerate(lifecycles)), lifecycles[0].done(50))
    seen: list[str] = []
    before = None
    while True:
        answer = await client.call(PageRequest(tenant=lifecycles[0].tenant, limit=10, before=before), PageResponse)
        seen += [job.job_id for job in answer.jobs]
        before = answer.following
        if before is None:
            break
    assert seen == [one.job_id for one in reversed(lifecycles)]
    events = await client.call(EventsRequest(tenant=lifecycles[0].tenant, job=lifecycles[0].job_id), EventsResponse)
    assert [msgspec.json.decode(event)["event"] for event in events.events] == ["job.queued", "job.done"]


async def test_an_answer_is_never_larger_than_a_message_may_be(
    jobs: JobsCapability, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    lifecycles = [lifecycle() for _ in range(60)]
    for number, one in enumerate(lifecycles):
        await send(outbox, one.queued(number), one.retried(number, next_at=10**6, reason="x" * 40_000))
    first = await client.call(PageRequest(tenant=lifecycles[0].tenant, limit=1000), PageResponse)
    assert 5 < len(first.jobs) < 60 and first.following is not None
    rest = await client.call(PageRequest(tenant=lifecycles[0].tenant, limit=1000, before=first.following), PageResponse)
    third = await client.call(PageRequest(tenant=lifecycles[0].tenant, limit=1000, before=rest.following), PageResponse)
    assert len({job.job_id for job in [*first.jobs, *rest.jobs, *third.jobs]}) == 60


async def test_globs_keep_others_jobs_from_sight(
    jobs: JobsCapability, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    mine, theirs = lifecycle("mine.1"), lifecycle("theirs")
    await send(outbox, mine.queued(), theirs.queued())
    page = await client.call(PageRequest(tenant=mine.tenant, globs=("mine.*",)), PageResponse)
    assert [job.job_id for job in page.jobs] == [mine.job_id]
    with pytest.raises(JobNotFound):
        await client.call(JobRequest(tenant=mine.tenant, job=theirs.job_id, globs=("mine.*",)), JobResponse)
    with pytest.raises(JobNotFound):
        await client.call(EventsRequest(tenant=mine.tenant, job=theirs.job_id, globs=("mine.*",)), EventsResponse)
    with pytest.raises(JobNotFound):
        await client.call(JobRequest(tenant="another", job=mine.job_id), JobResponse)


async def test_without_a_leader_it_is_said_so_after_a_while(engine: Connection) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(EngineUnavailable, match="no process serves"):
        await JobsRpcClient(engine, deadline=0.4).call(JobRequest(tenant="t", job="j"), JobResponse)
    assert 0.3 < asyncio.get_running_loop().time() - started < 2


async def test_a_leader_that_comes_in_time_answers(
    engine: Connection, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle, tmp_path: Path, background: Background
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    asking = asyncio.create_task(client.call(JobRequest(tenant=one.tenant, job=one.job_id), JobResponse))
    await asyncio.sleep(0.3)
    background(jobs_on(engine, tmp_path, 30).lead())
    assert (await asking).job.job_id == one.job_id


async def test_a_leader_that_is_behind_says_how_far(
    engine: Connection, outbox: Outbox, lifecycle: NewLifecycle, tmp_path: Path, background: Background
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    stands_still = Projection(engine, now_ms, tmp_path / "jobs", 30)
    background(JobsRpcServer(engine, stands_still, now_ms).run())
    with pytest.raises(EngineUnavailable, match="1 frames behind"):
        await JobsRpcClient(engine, deadline=1.0).call(JobRequest(tenant=one.tenant, job=one.job_id), JobResponse)


async def test_answers_go_on_when_the_lead_changes_hands(
    engine: Connection,
    client: JobsRpcClient,
    own_server: Server,
    open_connection: OpenConnection,
    outbox: Outbox,
    lifecycle: NewLifecycle,
    tmp_path: Path,
) -> None:
    """Two processes on one data directory. Whoever leads is stopped; the other one goes on from the same file."""

    async def process() -> tuple["asyncio.Task[None]", Leadership]:
        connection = await open_connection(own_server.url)
        bucket = Bucket(connection, "leases", Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)))
        await bucket.ensure()
        leadership = Leadership(bucket, "jobs", connection.settings.name, ttl_seconds=1)
        return asyncio.create_task(leadership.run(jobs_on(connection, tmp_path, 30).lead)), leadership

    first, second = await process(), await process()
    try:
        for number in range(3):
            one = lifecycle()
            await send(outbox, one.queued())
            assert (await client.call(JobRequest(tenant=one.tenant, job=one.job_id), JobResponse)).job.status == "queued"
            leader = first if first[1].is_leader else second
            assert leader[1].is_leader
            if number == 1:
                leader[0].cancel()
                await asyncio.gather(leader[0], return_exceptions=True)
        page = await client.call(PageRequest(tenant=one.tenant), PageResponse)
        assert len(page.jobs) == 3
    finally:
        for task, _ in (first, second):
            task.cancel()
        await asyncio.gather(first[0], second[0], return_exceptions=True)


async def test_progress_and_rebuild_go_over_the_desk(
    jobs: JobsCapability, client: JobsRpcClient, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    await client.call(JobRequest(tenant=one.tenant, job=one.job_id), JobResponse)
    assert (await client.call(ProgressRequest(), ProgressResponse)) == ProgressResponse(1, 1, None)
    answer = await client.call(RebuildRequest(), ProgressResponse)
    assert (answer.target, answer.rebuilt is not None) == (1, True)


@pytest.mark.parametrize("question", [b"", b"{", b'{"ask":"unheard-of"}', b'{"ask":"progress","v":2}', b"\xff"])
async def test_a_question_that_is_not_understood_is_answered(jobs: JobsCapability, engine: Connection, question: bytes) -> None:
    async def answered() -> bytes:
        return (await engine.request(SUBJECT, question, timeout=1)).data

    answer = msgspec.json.decode(await eventually(answered))
    assert (answer["answer"], answer["code"]) == ("problem", "engine-unavailable")
