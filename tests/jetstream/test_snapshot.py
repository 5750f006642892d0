"""Restoration of a snapshot in a cluster, where the servers learn one after the other who receives it."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.servers import OpenConnection

from postroad.jetstream import snapshot
from postroad.jetstream.connection import Connection
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.snapshot import Snapshot, restore_stream
from postroad.kernel.errors import EngineRefused
from postroad.kernel.ids import new_id

CHUNKS = [b"a", b"b", b"c"]


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> str:
    """The subject of a receiver that a server of the cluster has named."""
    chosen = f"_INBOX.{new_id()}"

    async def begun(*_: object) -> bytes:
        return msgspec.json.encode({"deliver_subject": chosen})

    monkeypatch.setattr(snapshot, "_request", begun)
    return chosen


async def test_the_first_chunk_is_sent_until_the_receiver_is_known(
    connection: Connection, engine_url: str, open_connection: OpenConnection, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, request = await open_connection(engine_url), Connection.request
    received: list[bytes] = []
    statuses: list[str] = []
    stops: list[Callable[[], Awaitable[None]]] = []

    def receive(message: IncomingMessage) -> None:
        received.append(message.data)
        server.publish(message.reply, b"" if message.data else b'{"state": {"messages": 7}}')

    async def known_later(self: Connection, to: str, payload: bytes = b"", **options: Any) -> Any:
        reply = await request(self, to, payload, **options)
        if to == subject:
            statuses.append(reply.status)
            if len(statuses) == 2:
                stops.append(server.subscribe(subject, receive))
        return reply

    monkeypatch.setattr(Connection, "request", known_later)
    assert (await restore_stream(connection, Snapshot({"name": "Q_a"}, {}), CHUNKS)).messages == 7
    assert received == [*CHUNKS, b""]
    assert statuses[:2] == ["503", "503"]
    for stop in stops:
        await stop()


async def test_a_receiver_that_never_listens_is_refused(
    connection: Connection, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_LISTEN_SECONDS", 0.1)
    with pytest.raises(EngineRefused, match="stopped restoring Q_a"):
        await restore_stream(connection, Snapshot({"name": "Q_a"}, {}), CHUNKS)
