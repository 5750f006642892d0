"""Streams and messages as the engine's tests need them."""

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, Draft
from postroad.jetstream.connection import Link
from postroad.jetstream.management import StreamInfo, StreamSpec, ensure_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import republish
from postroad.jetstream.write_buffer_limit import Backlog
from postroad.kernel.ids import new_id


async def make_stream(link: Link, name: str, **options: object) -> StreamInfo:
    """A stream of the subjects `<name>.>`."""
    return await ensure_stream(link, StreamSpec(name, (f"{name}.>",), {"allow_atomic": True, **options}))


async def make_live_stream(link: Link, name: str) -> StreamInfo:
    return await make_stream(link, name, republish=republish(f"{name}.>"))


def committer_of(link: Link, stream: str, policy: CommitPolicy | None = None, bytes_max: int = 64 * 1024 * 1024) -> Committer:
    return Committer(link, stream, policy or CommitPolicy(), Backlog(bytes_max))


def draft(subject: str, payload: bytes = b"x", *, message_id: str | None = None, after: int | None = None) -> Draft:
    """`after`: only if that is the last sequence of the subject."""
    headers = [] if after is None else [("Nats-Expected-Last-Subject-Sequence", str(after))]
    return Draft(subject, payload, message_id or new_id(), header_lines(headers), is_conditional=after is not None)


async def entries_of(link: Link, stream: str, subject: str | None = None) -> list[Entry]:
    """Everything that is stored."""
    found: list[Entry] = []
    following = 1
    while True:
        page = await stream_reader.read(link, stream, subject or f"{stream}.>", following, 1000)
        found.extend(page.entries)
        following = page.next_sequence
        if page.is_end:
            return found
