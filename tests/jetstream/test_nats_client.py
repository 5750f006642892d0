"""The NATS client, with a server that this test plays: refusals, silence and errors that a real one sends rarely."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.waiting import eventually

from postroad.jetstream import nats_client
from postroad.jetstream.nats_client import NatsClient
from postroad.jetstream.nats_credentials import Credentials
from postroad.jetstream.nats_session import NatsError, SessionSettings

pytestmark = pytest.mark.engine  # it listens on a port

INFO = b'INFO {"version":"2.15.1","max_payload":1048576,"connect_urls":["127.0.0.9:4222"]}\r\n'


class _Server:
    """Answers pings, unless it is silent, and sends what a test wants."""

    def __init__(self) -> None:
        self.info, self.answers = INFO, True
        self.received: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.info)
        while line := await reader.readline():
            self.received.append(line.strip())
            if line == b"PING\r\n" and self.answers:
                writer.write(b"PONG\r\n")
        writer.close()


class _Observer:
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_lost(self) -> None:
        self.events.append("lost")

    def on_restored(self) -> None:
        self.events.append("restored")

    def on_closed(self) -> None:
        self.events.append("closed")

    def choose_server(self, servers: Sequence[str]) -> tuple[str, float]:
        return next(one for one in servers if not one.startswith("127.0.0.9")), 0.0


@asynccontextmanager
async def connected(server: _Server, observer: _Observer) -> AsyncIterator[NatsClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    settings = SessionSettings("tests", Credentials(), None, 2.0)
    client = NatsClient([f"nats://me:p%40ss@127.0.0.1:{port}"], settings, observer)
    try:
        await client.connect()
        yield client
    finally:
        client.close()
        listening.close()


async def test_the_client_introduces_itself_with_user_and_password_of_the_url() -> None:
    server = _Server()
    async with connected(server, _Observer()):
        connect = server.received[0]
    assert connect.startswith(b"CONNECT {") and b'"user":"me","pass":"p@ss"' in connect and b'"no_responders":true' in connect


async def test_a_refusal_has_the_words_of_the_server() -> None:
    server = _Server()
    server.info = INFO + b"-ERR 'maximum connections exceeded'\r\n"
    with pytest.raises(NatsError, match="maximum connections exceeded"):
        async with connected(server, _Observer()):
            pass


async def test_a_server_without_tls_is_refused_if_tls_is_wanted() -> None:
    listening = await asyncio.start_server(_Server().serve, "127.0.0.1", 0)
    url = f"tls://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    client = NatsClient([url], SessionSettings("tests", Credentials(), None, 2.0), _Observer())
    with pytest.raises(NatsError, match="does not offer TLS"):
        await client.connect()
    client.close()
    listening.close()


async def test_a_silent_server_is_left_and_subscriptions_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "_PING_SECONDS", 0.05)
    server, observer = _Server(), _Observer()
    async with connected(server, observer) as client:
        client.subscribe("orders.*", lambda *_message: None)
        await eventually(lambda: b"SUB orders.*  1" in server.received)
        server.received.clear()
        server.answers = False
        await eventually(lambda: "lost" in observer.events)
        server.answers = True
        await eventually(lambda: "restored" in observer.events)
        assert b"SUB orders.*  1" in server.received


async def test_an_error_of_the_credentials_ends_the_client_and_others_do_not() -> None:
    server, observer = _Server(), _Observer()
    async with connected(server, observer) as client:
        server.writers[0].write(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n")
        await client.round_trip()
        server.writers[0].write(b"-ERR 'Stale Connection'\r\n")
        server.writers[0].close()
        await eventually(lambda: observer.events == ["lost", "restored"])
        server.writers[1].write(b"-ERR 'User Authentication Expired'\r\n")
        server.writers[1].close()
        await eventually(lambda: observer.events == ["lost", "restored", "lost", "closed"])
        assert client.is_closed


async def test_what_is_written_without_a_connection_is_sent_after_the_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    server, observer = _Server(), _Observer()
    async with connected(server, observer) as client:
        monkeypatch.setattr(observer, "on_lost", lambda: client.write(b"PUB later 0\r\n\r\n"))
        client.drop()
        await eventually(lambda: b"PUB later 0" in server.received)


async def test_a_handler_that_raises_stops_no_other_message() -> None:
    server, seen = _Server(), list[bytes]()

    def handle(_subject: str, _reply: str, _headers: bytes, data: bytes) -> None:
        seen.append(data)
        raise asyncio.CancelledError if data == b"1" else ValueError

    async with connected(server, _Observer()) as client:
        client.subscribe("a", handle)
        server.writers[0].write(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 7 1\r\n3\r\nMSG a 1 1\r\n4\r\n")
        await eventually(lambda: seen == [b"1", b"2", b"4"])


async def test_servers_that_are_announced_have_the_credentials_of_the_configured_one() -> None:
    async with connected(_Server(), _Observer()) as client:
        assert client.announced["127.0.0.9:4222"].geturl() == "nats://me:p%40ss@127.0.0.9:4222"
