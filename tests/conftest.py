"""What every test may ask for: the engine, a connection to it, and a name that nobody else uses."""

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.servers import OpenConnection, Server, TcpProxy


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[str]:
    """The engine that the tests of one worker share. Who wants to kill one takes `own_server`.

    If it ends, the test at that moment fails, and thousands of others need not. `scripts/test-again` shows the report.
    """
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine"))).start()
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)  # missing with `-p no:cacheprovider`
    report = Path(os.devnull) if cache is None else cache.mkdir("engines") / f"ended-{os.getpid()}.log"
    try:
        with server.kept_running(report):
            yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
async def connection(engine_url: str) -> AsyncIterator[Connection]:
    opened = Connection(ConnectionSettings((engine_url,), name="tests"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
async def committers(connection: Connection) -> Committers:
    return Committers(connection, CommitPolicy(), WriteBufferLimit(256 * 1024 * 1024))


@pytest.fixture
def name() -> str:
    """A fresh NATS token: streams, buckets and subjects are named after it."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A running server for this test alone, to be killed and started again."""
    server = Server(EmbeddedServerSettings(tmp_path / "own"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
async def open_connection() -> AsyncIterator[OpenConnection]:
    """Opens further connections, which are closed after the test."""
    opened: list[Connection] = []

    async def open_one(server: str | ConnectionSettings) -> Connection:
        settings = ConnectionSettings((server,), name="tests") if isinstance(server, str) else server
        opened.append(Connection(settings))
        await opened[-1].open(deadline=10)
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


@pytest.fixture
async def proxy(engine_url: str) -> AsyncIterator[TcpProxy]:
    """A proxy to the shared engine that can drop replies."""
    started = await TcpProxy(engine_url).start()
    yield started
    started.stop()
