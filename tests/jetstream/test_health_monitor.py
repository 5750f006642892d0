"""The monitor on single servers; tests/faults/test_partitions.py has clusters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.jetstream.streams import make_stream
from tests.servers import TcpProxy
from tests.waiting import eventually

from postroad.jetstream import health_monitor
from postroad.jetstream.connection import Connection, ConnectionSettings, Reply
from postroad.jetstream.health_monitor import HealthMonitor
from postroad.jetstream.incoming_message import IncomingMessage


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_INTERVAL_SECONDS": (0.02, 0.03),
        "_FAILED_INTERVAL_SECONDS": (0.02, 0.03),
        "_PROBE_SECONDS": 0.3,
        "_LAST_PROBE_SECONDS": 0.1,
    }.items():
        monkeypatch.setattr(health_monitor, name, value)


@asynccontextmanager
async def monitored(*urls: str, subject: str = "", has_replicas: bool = False) -> AsyncIterator[tuple[Connection, HealthMonitor]]:
    connection = Connection(ConnectionSettings(urls, has_replicas=has_replicas))
    await connection.open(deadline=10)
    monitor = HealthMonitor(connection, subject)
    await monitor.check([])
    running = asyncio.create_task(monitor.run([]))
    try:
        yield connection, monitor
    finally:
        running.cancel()
        await connection.close()


@pytest.fixture
async def proxies(engine_url: str) -> AsyncIterator[dict[str, TcpProxy]]:
    """Two ways to the same server, by the address that a connection shows."""
    made = [await TcpProxy(engine_url).start() for _ in range(2)]
    yield {proxy.url.rpartition("@")[2]: proxy for proxy in made}
    for proxy in made:
        proxy.stop()


async def test_a_connection_on_which_nothing_comes_back_moves_to_another_server(proxies: dict[str, TcpProxy]) -> None:
    async with monitored(*(proxy.url for proxy in proxies.values())) as (connection, monitor):
        before, reconnects = connection.server, list[str]()
        connection.on_reconnect(lambda: reconnects.append(connection.server))
        _, waiting = connection.expect()
        proxies[before].drops_replies = True
        await eventually(lambda: len(reconnects) == 1)
        assert connection.server != before
        assert waiting.exception() is not None, "requests in flight fail at once"
        await eventually(lambda: monitor.health.failures == 0)
        assert (await connection.request("$JS.API.INFO")).status == ""


async def test_without_a_better_server_the_connection_stays_and_is_suspect(proxies: dict[str, TcpProxy]) -> None:
    async with monitored(*(proxy.url for proxy in proxies.values())) as (connection, monitor):
        before = connection.server
        for proxy in proxies.values():
            proxy.drops_replies = True
        await eventually(lambda: monitor.health.failures >= 3)
        assert monitor.health.is_suspect
        assert monitor.health.cause == "no answer"
        assert monitor.unproven_seconds > 0
        assert connection.server == before


async def test_a_server_that_completes_no_replicated_write_is_suspect(engine_url: str, name: str) -> None:
    """An answer to reads is not enough."""
    async with monitored(engine_url, subject=name, has_replicas=True) as (connection, monitor):
        assert monitor.health.cause == "no responders"
        await make_stream(connection, name, subjects=[name], allow_msg_ttl=True)
        await eventually(lambda: monitor.health.failures == 0)

        def no_answer(_message: IncomingMessage) -> None:
            pass

        await connection.api(f"STREAM.DELETE.{name}")
        connection.subscribe(name, no_answer)  # as a leader without a majority does
        await eventually(lambda: monitor.health.is_suspect)
        assert monitor.health.cause == "no answer"


async def test_a_stream_without_an_answer_makes_its_server_suspect_and_is_not_named(
    engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may read the cause."""

    async def no_answer(connection: Connection, subject: str, payload: bytes = b"", *, timeout: float | None = None) -> Reply:
        if subject.startswith("$JS.API.STREAM.INFO."):
            raise TimeoutError
        return await request(connection, subject, payload, timeout=timeout)

    request = Connection.request
    async with monitored(engine_url) as (connection, monitor):
        monkeypatch.setattr(Connection, "request", no_answer)
        connection.report_unanswered(name)
        await eventually(lambda: monitor.health.is_suspect)
        assert monitor.health.cause == "no answer from the leader of a stream"
        monkeypatch.setattr(Connection, "request", request)
        await eventually(lambda: monitor.health.failures == 0)


async def test_a_leader_that_was_reported_is_probed_until_it_answers(engine_url: str, name: str) -> None:
    async with monitored(engine_url) as (connection, monitor):
        connection.report_unanswered(name)  # the stream does not exist, which the engine says
        await eventually(lambda: not connection._unanswered)
        await eventually(lambda: monitor.health.failures == 0)
        assert monitor.unproven_seconds < 5


async def test_a_process_without_a_monitor_is_not_unproven() -> None:
    assert HealthMonitor(Connection(ConnectionSettings(())), "").unproven_seconds == 0.0
