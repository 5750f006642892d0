"""Streams and messages for tests of the JetStream layer."""

import msgspec
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamInfo, StreamSpec, ensure_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import republish
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.ids import new_id


async def make_stream(connection: Connection, name: str, **options: object) -> StreamInfo:
    """A stream of the subjects `<name>.>`."""
    return await ensure_stream(connection, StreamSpec(name, (f"{name}.>",), {"allow_atomic": True, **options}))


async def make_live_stream(connection: Connection, name: str) -> StreamInfo:
    return await make_stream(connection, name, republish=republish(f"{name}.>"))


def committer_of(
    connection: Connection, stream: str, policy: CommitPolicy | None = None, bytes_max: int = 64 * 1024 * 1024
) -> Committer:
    return Committer(connection, stream, policy or CommitPolicy(), WriteBufferLimit(bytes_max))


def new_message(
    subject: str, payload: bytes = b"x", *, message_id: str | None = None, after: int | None = None
) -> PendingMessage:
    """With `after`, the message is stored only if that is the last sequence of its subject."""
    headers = [] if after is None else [("Nats-Expected-Last-Subject-Sequence", str(after))]
    return PendingMessage(subject, payload, message_id or new_id(), header_lines(headers), is_conditional=after is not None)


async def wait_replicated(connection: Connection, stream: str) -> None:
    """Wait until every replica has every entry, since any of them may answer."""

    async def is_current() -> bool:
        info = msgspec.json.decode(await connection.api(f"STREAM.INFO.{stream}", {}))
        return all(replica["current"] and not replica.get("lag") for replica in info["cluster"].get("replicas") or [])

    if connection.settings.has_replicas:
        await eventually(is_current)


async def entries_of(connection: Connection, stream: str, subject: str | None = None) -> list[Entry]:
    """All stored entries."""
    entries: list[Entry] = []
    next_sequence = 1
    while True:
        page = await stream_reader.read(connection, stream, subject or f"{stream}.>", next_sequence, 1000)
        entries.extend(page.entries)
        next_sequence = page.next_sequence
        if page.is_end:
            return entries
