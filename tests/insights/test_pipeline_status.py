"""How the pipeline is: for admins, in readiness and in metrics. There is none here, only what it would say of itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from postroad.api.insights import PipelineState
from postroad.container import Role
from postroad.insights import metrics
from postroad.insights.pipeline_status import PipelineMonitor
from postroad.insights.store import insights_stream
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ensure_stream
from postroad.kernel.clock import rfc3339
from postroad.telemetry.frames import frame_streams
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.insights.results import publish_pipeline_status, put
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

NOON = 1_794_830_400_000
SUBJECT = "insight._platform.pipeline.now.all"


def row(stream: str, sequence: int, last: int = 0) -> dict[str, Any]:
    return {"stream": stream, "sequence": sequence, "lastSequence": last, "lag": last - sequence}


@pytest.fixture
async def own_connection(own_server: Server, open_connection: OpenConnection) -> Connection:
    connection = await open_connection(own_server.url)
    for spec in (insights_stream(1), *frame_streams(1)):
        await ensure_stream(connection, spec)
    return connection


class FixedClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def fixed_clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def monitor(own_connection: Connection, fixed_clock: FixedClock) -> PipelineMonitor:
    return PipelineMonitor(own_connection, fixed_clock, refresh_seconds=3600)


async def append(connection: Connection, stream: str, count: int) -> None:
    for _ in range(count):
        await connection.request(f"{'job' if stream == 'JOBS' else 'telemetry'}.t", b"x")


async def test_a_pipeline_that_was_never_heard_of_is_off(monitor: PipelineMonitor) -> None:
    found = await monitor.read()
    assert (found.state, found.batch, found.computed_at, found.age, found.lag, found.streams) == ("off", None, None, None, 0, [])
    assert await monitor.detail() == "off"


async def test_it_runs_until_three_periods_are_over(
    monitor: PipelineMonitor, own_connection: Connection, fixed_clock: FixedClock
) -> None:
    await publish_pipeline_status(own_connection, NOON, period=10)
    for seconds, state in ((0, "running"), (29.9, "running"), (30, "behind"), (10**6, "behind")):
        fixed_clock.at = NOON + int(seconds * 1000)
        found = await monitor.read()
        assert (found.state, found.age, found.period) == (state, seconds, 10)


@pytest.mark.parametrize("given", [{}, {"period": None}])
async def test_a_period_that_is_not_given_is_a_minute(
    monitor: PipelineMonitor, own_connection: Connection, fixed_clock: FixedClock, given: dict[str, Any]
) -> None:
    await publish_pipeline_status(own_connection, NOON, **given)
    fixed_clock.at = NOON + 179_999
    assert (await monitor.read()).state is PipelineState.RUNNING
    fixed_clock.at = NOON + 180_000
    assert (await monitor.read()).state is PipelineState.BEHIND


async def test_a_clock_that_is_ahead_makes_no_age_below_nothing(monitor: PipelineMonitor, own_connection: Connection) -> None:
    await publish_pipeline_status(own_connection, NOON + 5000)
    assert (await monitor.read()).age == 0


async def test_lag_is_as_of_now_and_not_as_it_was_told(monitor: PipelineMonitor, own_connection: Connection) -> None:
    await append(own_connection, "JOBS", 5)
    await append(own_connection, "TELEMETRY", 3)
    await publish_pipeline_status(own_connection, NOON, [row("JOBS", 4, 4), row("TELEMETRY", 3, 3), row("GONE", 7, 9)])
    found = await monitor.read()
    assert [(one.stream, one.sequence, one.last_sequence, one.lag) for one in found.streams] == [
        ("JOBS", 4, 5, 1),
        ("TELEMETRY", 3, 3, 0),
        ("GONE", 7, 9, 2),
    ]
    assert found.lag == 3
    await append(own_connection, "JOBS", 10)
    assert (await monitor.read()).lag == 13


async def test_a_stream_that_began_anew_has_no_lag_below_nothing(monitor: PipelineMonitor, own_connection: Connection) -> None:
    await publish_pipeline_status(own_connection, NOON, [row("JOBS", 100, 100)])
    assert (await monitor.read()).lag == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"{}", b"[]", b'{"v":1}', b"\xff", {"v": 2, "batch": 1, "computedAt": rfc3339(NOON)}],
    ids=range(7),
)
async def test_what_cannot_be_read_is_as_if_nothing_was_heard(
    monitor: PipelineMonitor, own_connection: Connection, body: object
) -> None:
    await put(own_connection, SUBJECT, body)
    assert (await monitor.read()).state is PipelineState.OFF
    assert await monitor.detail() == "off"


async def test_names_that_no_stream_can_have_are_not_asked_for(monitor: PipelineMonitor, own_connection: Connection) -> None:
    await publish_pipeline_status(own_connection, NOON, [row("a.b", 1), row("a *", 1), row("", 1), row("JOBS", 0)])
    assert [one.stream for one in (await monitor.read()).streams] == ["JOBS"]


async def test_readiness_says_it_in_a_few_words(
    monitor: PipelineMonitor, own_connection: Connection, fixed_clock: FixedClock
) -> None:
    await append(own_connection, "JOBS", 5)
    await publish_pipeline_status(own_connection, NOON, [row("JOBS", 2, 2)])
    fixed_clock.at = NOON + 12_345
    assert await monitor.detail() == "batch 4181, 12 s ago, lag 3 messages"


async def test_being_asked_often_costs_one_look(
    own_connection: Connection, fixed_clock: FixedClock, monkeypatch: pytest.MonkeyPatch, monitor: PipelineMonitor
) -> None:
    looks: list[str] = []
    last = stream_reader.last

    async def counted(connection: Connection, stream: str, subject: str) -> Any:
        looks.append(subject)
        return await last(connection, stream, subject)

    monkeypatch.setattr(stream_reader, "last", counted)
    await publish_pipeline_status(own_connection, NOON)
    assert len(set(await asyncio.gather(*(monitor.detail() for _ in range(50))))) == 1
    fixed_clock.at = NOON + 7000
    assert await monitor.detail() == "batch 4181, 7 s ago, lag 0 messages"
    assert len(looks) == 1
    short_timeouts = PipelineMonitor(own_connection, fixed_clock, refresh_seconds=0)
    for _ in range(3):
        await short_timeouts.detail()
    assert len(looks) == 4


async def test_an_engine_that_does_not_answer_is_said_and_looked_at_again(
    monitor: PipelineMonitor, own_connection: Connection, own_server: Server
) -> None:
    await publish_pipeline_status(own_connection, NOON)
    own_server.stop()
    assert await monitor.detail() == "unknown: the engine did not answer"
    own_server.start()

    async def is_known() -> bool:
        return (await monitor.detail()).startswith("batch 4181")

    await eventually(is_known)


async def test_metrics_follow(own_connection: Connection, fixed_clock: FixedClock) -> None:
    await append(own_connection, "JOBS", 5)
    monitor = PipelineMonitor(own_connection, fixed_clock, refresh_seconds=0.01)
    following = asyncio.create_task(monitor.measure())
    try:
        await eventually(lambda: metrics.last_batch._value.get() == 0)
        await publish_pipeline_status(own_connection, NOON, [row("JOBS", 1, 1)], quarantined={"no-json": 2, "unknown-event": 5})
        await eventually(lambda: metrics.last_batch._value.get() == NOON / 1000)
        assert metrics.lag.labels("JOBS")._value.get() == 4
        assert metrics.quarantined._value.get() == 7
        await append(own_connection, "JOBS", 2)
        await eventually(lambda: metrics.lag.labels("JOBS")._value.get() == 6)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


# In a whole process


@pytest.fixture
async def own_gateway(own_server: Server) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as running:
        yield running


async def test_a_process_is_ready_with_or_without_a_pipeline(own_gateway: Gateway) -> None:
    ready = (await own_gateway.anonymous.get("/readyz")).ok()
    assert ready["status"] == "ready" and ready["checks"]["pipeline"] == {"ok": True, "detail": "off"}
    assert (await own_gateway.admin.get("/api/control/pipeline")).ok()["state"] == "off"
    connection = own_gateway.node.platform.connection
    await publish_pipeline_status(connection, own_gateway.clock() - 3_600_000, [row("AUDIT", 0)])
    found = (await own_gateway.admin.get("/api/control/pipeline")).ok()
    assert (found["state"], found["batch"], found["events"], found["seconds"]) == ("behind", 4181, 10, 1.5)
    assert (found["quarantined"], found["late"], found["duplicates"], found["period"]) == ({"no-json": 2}, 1, 3, 60)
    assert found["lag"] == found["streams"][0]["lag"] == found["streams"][0]["lastSequence"]

    async def is_published() -> bool:
        ready = (await own_gateway.anonymous.get("/readyz")).ok()
        return bool(ready["status"] == "ready" and ready["checks"]["pipeline"]["detail"].startswith("batch 4181, 36"))

    await eventually(is_published)

    async def is_measured() -> bool:
        text = (await own_gateway.anonymous.get("/metrics")).body.decode()
        names = ('postroad_pipeline_lag_messages{stream="AUDIT"}', "postroad_pipeline_last_batch_timestamp_seconds")
        return all(name in text for name in (*names, "postroad_pipeline_quarantined_lines 2.0"))

    await eventually(is_measured)


async def test_the_pipelines_state_is_for_the_platform(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    (await tenant.client.get("/api/control/pipeline")).problem(403, "forbidden")
    (await gateway.anonymous.get("/api/control/pipeline")).problem(401, "unauthenticated")


@pytest.mark.parametrize(
    ("sequence", "is_complete", "expected"),
    [(5, True, NOON), (5, False, NOON - 9000), (4, True, NOON - 9000)],
    ids=["all is read and published", "results are deferred", "messages wait"],
)
async def test_results_are_as_of_now_if_nothing_waits(
    monitor: PipelineMonitor, own_connection: Connection, sequence: int, is_complete: bool, expected: int
) -> None:
    await append(own_connection, "JOBS", 5)
    fresh = {"freshUntil": rfc3339(NOON - 9000), "isComplete": is_complete}
    await publish_pipeline_status(own_connection, NOON - 8000, [row("JOBS", sequence, sequence)], **fresh)
    assert (await monitor.as_of(), (await monitor.read()).as_of) == (rfc3339(expected), rfc3339(expected))


async def test_without_a_pipeline_it_is_not_known_how_fresh_results_are(monitor: PipelineMonitor) -> None:
    assert await monitor.as_of() is None


async def test_a_batch_is_requested_at_most_once_a_second(monitor: PipelineMonitor, own_connection: Connection) -> None:
    received: list[bytes] = []
    stop = own_connection.listen("postroad.pipeline.batch", received.append)
    await asyncio.gather(*(monitor.request_batch() for _ in range(20)))

    async def is_received() -> bool:
        return len(received) > 0

    await eventually(is_received)
    await stop()
    assert len(received) == 1
