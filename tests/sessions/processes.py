"""The session objects of one process: connection, streams, sessions, queue and reconciler. Two of them act as two gateways."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import Clock, now_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.kernel.names import SESSION_PREFIX
from postroad.kernel.usage_counters import UsageCounters
from postroad.sessions.capability import SessionsCapability
from postroad.sessions.fanout import Fanout
from postroad.sessions.fanout_queue import FanoutQueue, queue_stream
from postroad.sessions.reconciler import SessionReconciler
from postroad.sessions.records import SessionRecord, Subscriber, decode_session, session_subject
from postroad.sessions.rules import FanoutLimits
from postroad.sessions.service import PublishResult, SessionOptions, Sessions, SubscribeResult
from postroad.sessions.subscribers import SubscriberLog
from postroad.streams.capability import StreamsCapability
from postroad.streams.lifecycle import CreateStream
from postroad.streams.rules import AppendRequest
from postroad.streams.service import Streams
from postroad.streams.store import StreamName, StreamStore
from postroad.telemetry.frames import frame_streams
from postroad.telemetry.outbox import Outbox
from tests.gateway import ShiftedClock

TEXT = "text/plain"
JSON = "application/json"
TTL_SECONDS = 1800


QUEUE = "FANOUT_OF_TESTS"  # no gateway consumes it


@dataclass(frozen=True, slots=True)
class Process:
    connection: Connection
    streams: Streams
    sessions: Sessions
    queue: FanoutQueue
    reconciler: SessionReconciler
    tenant: str
    committers: Committers
    clock: Clock
    limits: FanoutLimits
    outbox: Outbox
    usage: UsageCounters

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # the server may be stopped
            async with asyncio.timeout(1):
                await self.outbox.drain()
        await self.connection.close()

    @property
    def context(self) -> RequestContext:
        return RequestContext(Caller(self.tenant, "k", frozenset(ALL_SCOPES)))

    def name(self, stream: str) -> StreamName:
        return StreamName(self.tenant, stream)

    def fan(self, source: str) -> Fanout:
        return self.sessions.fanouts.of(self.name(source))

    async def create(self, source: str, content_type: str = TEXT) -> None:
        await self.streams.create(None, self.name(source), CreateStream(content_type=content_type))

    async def subscribe(self, session: str, source: str, *, envelope: bool = False) -> SubscribeResult:
        return await self.sessions.subscribe(self.context, session, source, envelope=envelope)

    async def unsubscribe(self, session: str, source: str) -> None:
        await self.sessions.unsubscribe(self.context, session, source)

    async def touch(self, session: str) -> int:
        return await self.sessions.touch(self.context, session)

    async def end(self, session: str) -> None:
        await self.sessions.delete(self.context, session)

    async def publish(self, source: str, data: bytes, content_type: str = TEXT) -> PublishResult:
        return await self.sessions.publish(self.context, self.name(source), AppendRequest(data, content_type))

    async def append(self, source: str, data: bytes, content_type: str = TEXT) -> int:
        """Append to the source without a fan-out, as after a crash. Returns the offset."""
        return (await self.streams.append(None, self.name(source), AppendRequest(data, content_type))).next_offset

    async def complete(self, source: str) -> int:
        return await self.sessions.complete(self.name(source))

    async def complete_all(self) -> int:
        return await self.reconciler.complete_all(self.tenant)

    async def clean(self) -> int:
        return await self.reconciler.clean_all(self.tenant)

    async def drop_stream(self, stream: str) -> None:
        """Delete a stream alone, as earlier versions did with the stream of a session."""
        await self.streams._lifecycle.delete(None, self.name(stream))

    async def read(self, session: str) -> list[bytes]:
        """All messages of the session, read from its stream."""
        return await self.read_stream(SESSION_PREFIX + session)

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
        """All stored messages of the session, readable or not."""
        page = await stream_reader.read(self.connection, self.name("").store, self.name(SESSION_PREFIX + session).data, 1, 1000)
        return [entry.payload for entry in page.entries]

    async def subscribers(self, source: str) -> dict[str, Subscriber]:
        """Current subscribers, read from the start of the log."""
        found = SubscriberLog(self.connection, self.tenant, source)
        await found.refresh()
        return found.by_session

    async def record(self, session: str) -> SessionRecord | None:
        entry = await stream_reader.last(self.connection, self.name("").store, session_subject(self.tenant, session))
        return None if entry is None else decode_session(entry.payload)

    async def subjects(self) -> set[str]:
        """Subjects of everything stored for the tenant except the directory of streams, without the tenant."""
        page = await stream_reader.read(self.connection, self.name("").store, ">", 1, 5000)
        assert page.is_end
        subjects = (entry.subject for entry in page.entries if not entry.subject.startswith("i."))
        return {subject.replace(f".{self.tenant}.", ".", 1) for subject in subjects}


OpenProcess = Callable[..., Awaitable[Process]]


async def open_process(
    url: str,
    tenant: str,
    clock: Clock | None = None,
    limits: FanoutLimits | None = None,
    policy: CommitPolicy | None = None,
    waiting_bytes_max: int = 256 * 1024 * 1024,
) -> Process:
    connection = Connection(ConnectionSettings((url,), name="tests-sessions"))
    await connection.open(deadline=10)
    for spec in (queue_stream(1, QUEUE), *frame_streams(1)):
        await ensure_stream(connection, spec)
    clock = clock or ShiftedClock()
    committers = Committers(connection, policy or CommitPolicy(), WriteBufferLimit(waiting_bytes_max))
    return _process(
        connection, committers, clock, tenant, limits or FanoutLimits(queue_threshold=200, inline_max=1000, has_queue=True)
    )


def restarted(process: Process) -> Process:
    """A process with empty caches on the same connection."""
    return _process(process.connection, process.committers, process.clock, process.tenant, process.limits)


def _process(connection: Connection, committers: Committers, clock: Clock, tenant: str, limits: FanoutLimits) -> Process:
    outbox, usage = Outbox(committers, now_ms), UsageCounters((*StreamsCapability.usage, *SessionsCapability.usage))
    streams = Streams(StreamStore(connection, committers, 1), outbox, usage, clock)
    queue = FanoutQueue(connection, committers, QUEUE)
    sessions = Sessions(connection, committers, streams, queue, outbox, usage, clock, SessionOptions(TTL_SECONDS, limits))
    reconciler = SessionReconciler(connection, sessions, streams, queue, lambda: [tenant], clock)
    return Process(connection, streams, sessions, queue, reconciler, tenant, committers, clock, limits, outbox, usage)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def decoded(payloads: Iterable[bytes]) -> list[object]:
    """Decoded messages of stored JSON."""
    return [element for payload in payloads for element in msgspec.json.decode(b"[" + payload + b"]")]
