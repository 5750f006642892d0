"""What one process has of the sessions: a connection, streams, sessions, the queue, the sweep. Two of them are two gateways."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Link, LinkSettings
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.write_buffer_limit import Backlog
from postroad.kernel.clock import Clock
from postroad.kernel.usage_counters import Traffic
from postroad.sessions.fanout import Fan
from postroad.sessions.fanout_queue import FanoutQueue, queue_stream
from postroad.sessions.reconciler import Sweep
from postroad.sessions.records import STREAM_PREFIX, Member, SessionRecord, decode_session, session_subject
from postroad.sessions.rules import FanLimits
from postroad.sessions.service import Published, SessionOptions, Sessions, Subscribed
from postroad.sessions.subscribers import Members
from postroad.streams.lifecycle import Blueprint
from postroad.streams.rules import Wish
from postroad.streams.service import Streams
from postroad.streams.store import Name, Store
from postroad.telemetry.frames import frame_streams
from postroad.telemetry.outbox import Outbox
from tests.gateway import ShiftedClock

TEXT = "text/plain"
JSON = "application/json"
TTL_SECONDS = 1800


QUEUE = "FANOUT_OF_TESTS"  # from which no gateway takes


@dataclass(frozen=True, slots=True)
class Process:
    link: Link
    streams: Streams
    sessions: Sessions
    queue: FanoutQueue
    sweep: Sweep
    tenant: str
    committers: Committers
    clock: Clock
    limits: FanLimits
    outbox: Outbox
    traffic: Traffic

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # of a server that is gone
            async with asyncio.timeout(1):
                await self.outbox.drain()
        await self.link.close()

    def name(self, stream: str) -> Name:
        return Name(self.tenant, stream)

    def fan(self, source: str) -> Fan:
        return self.sessions.fans.of(self.name(source))

    async def create(self, source: str, content_type: str = TEXT) -> None:
        await self.streams.create(self.name(source), Blueprint(content_type=content_type))

    async def subscribe(self, session: str, source: str, *, envelope: bool = False) -> Subscribed:
        return await self.sessions.subscribe(self.tenant, session, source, envelope=envelope)

    async def unsubscribe(self, session: str, source: str) -> None:
        await self.sessions.unsubscribe(self.tenant, session, source)

    async def touch(self, session: str) -> int:
        return await self.sessions.touch(self.tenant, session)

    async def end(self, session: str) -> None:
        await self.sessions.delete(self.tenant, session)

    async def publish(self, source: str, data: bytes, content_type: str = TEXT) -> Published:
        return await self.sessions.publish(self.name(source), Wish(data, content_type))

    async def append(self, source: str, data: bytes, content_type: str = TEXT) -> int:
        """To the source alone, as one does who dies before the fan-out. Returns where it is."""
        return (await self.streams.append(self.name(source), Wish(data, content_type))).next_offset

    async def complete(self, source: str) -> int:
        return await self.sessions.complete(self.name(source))

    async def complete_all(self) -> int:
        return await self.sweep.complete_all(self.tenant)

    async def clean(self) -> int:
        return await self.sweep.clean_all(self.tenant)

    async def read(self, session: str) -> list[bytes]:
        """All that the session got, as one who reads its stream sees it."""
        return await self.read_stream(STREAM_PREFIX + session)

    async def read_stream(self, stream: str) -> list[bytes]:
        found: list[bytes] = []
        place = 0
        while True:
            chunk = await self.streams.read(self.name(stream), place)
            found += chunk.payloads
            if chunk.is_end:
                return found
            place = chunk.next_offset

    async def stored(self, session: str) -> list[bytes]:
        """What the engine has of the session's data, whether anybody could read it or not."""
        page = await stream_reader.read(self.link, self.name("").store, self.name(STREAM_PREFIX + session).data, 1, 1000)
        return [entry.payload for entry in page.entries]

    async def members(self, source: str) -> dict[str, Member]:
        """Who is on the list, read from its beginning."""
        found = Members(self.link, self.tenant, source)
        await found.refresh()
        return found.by_session

    async def record(self, session: str) -> SessionRecord | None:
        entry = await stream_reader.last(self.link, self.name("").store, session_subject(self.tenant, session))
        return None if entry is None else decode_session(entry.payload)

    async def subjects(self) -> set[str]:
        """Of everything that is stored of the tenant, without the tenant."""
        page = await stream_reader.read(self.link, self.name("").store, ">", 1, 5000)
        assert page.is_end
        return {entry.subject.replace(f".{self.tenant}.", ".", 1) for entry in page.entries}


OpenProcess = Callable[..., Awaitable[Process]]


async def open_process(
    url: str,
    tenant: str,
    clock: Clock | None = None,
    limits: FanLimits | None = None,
    policy: CommitPolicy | None = None,
    waiting_bytes_max: int = 256 * 1024 * 1024,
) -> Process:
    link = Link(LinkSettings((url,), name="tests-sessions"))
    await link.open(deadline=10)
    for spec in (queue_stream(1, QUEUE), *frame_streams(1)):
        await ensure_stream(link, spec)
    clock = clock or ShiftedClock()
    committers = Committers(link, policy or CommitPolicy(), Backlog(waiting_bytes_max))
    return _process(link, committers, clock, tenant, limits or FanLimits())


def reborn(process: Process) -> Process:
    """A process that knows nothing of what that one knew, on its connection."""
    return _process(process.link, process.committers, process.clock, process.tenant, process.limits)


def _process(link: Link, committers: Committers, clock: Clock, tenant: str, limits: FanLimits) -> Process:
    outbox, traffic = Outbox(committers), Traffic()
    streams = Streams(Store(link, committers, 1), outbox, traffic, clock)
    queue = FanoutQueue(link, committers, QUEUE)
    sessions = Sessions(link, committers, streams, queue, outbox, traffic, clock, SessionOptions(TTL_SECONDS, limits))
    sweep = Sweep(link, sessions, streams, queue, lambda: [tenant], clock)
    return Process(link, streams, sessions, queue, sweep, tenant, committers, clock, limits, outbox, traffic)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def decoded(payloads: Iterable[bytes]) -> list[object]:
    """What JSON appends hold: each is elements with commas between."""
    return [element for payload in payloads for element in msgspec.json.decode(b"[" + payload + b"]")]
