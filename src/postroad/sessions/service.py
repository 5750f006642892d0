"""What a user can do with sessions: subscribe, publish, look, touch, delete."""

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, Committers, PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.jetstream.connection import Connection
from postroad.kernel.circuit_breaker import BreakerState, CircuitBreaker
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import (
    ContentTypeMismatch,
    PostroadError,
    PreconditionFailed,
    SessionNotFound,
    StreamGone,
    StreamNotFound,
)
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.kernel.usage_counters import UsageCounters
from postroad.sessions import metrics
from postroad.sessions.events import SessionSubscribed, SessionTouched, SessionUnsubscribed
from postroad.sessions.fanout import FanoutPool, FanoutResult
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.lifecycle import CleanupOutcome, SessionLifecycle, session_draft
from postroad.sessions.records import (
    STREAM_PREFIX,
    Member,
    PatternAdded,
    SessionRecord,
    Subscription,
    encode,
    patterns_subject,
)
from postroad.sessions.rules import (
    CIRCUIT_BREAKER_FAILURE_THRESHOLD,
    CIRCUIT_BREAKER_RECOVERY_MS,
    FANOUT_RPC_TIMEOUT_MS,
    FanoutLimits,
    Mode,
    is_pattern,
    mode_for,
)
from postroad.sessions.subscribers import join_draft, leave_draft
from postroad.streams.records import State, StreamRecord, media_type
from postroad.streams.rules import AppendRequest, Outcome, StreamSnapshot, found
from postroad.streams.service import Streams
from postroad.streams.store import Name, precondition, record_draft
from postroad.telemetry.outbox import Outbox

SUBSCRIPTIONS_MAX = 1000
PATTERNS_MAX = 900  # each that fits a stream is a condition of its batches, which have 1,000 messages

log = structlog.get_logger("postroad.sessions")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    ttl_seconds: int
    limits: FanoutLimits


@dataclass(frozen=True, slots=True)
class Subscribed:
    session: str
    source: str
    expires_at_ms: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Published:
    """The source's write, and what the fan-out did within the request."""

    outcome: Outcome
    mode: Mode
    reached: FanoutResult


@dataclass(frozen=True, slots=True)
class SessionView:
    record: SessionRecord
    stream: StreamRecord
    tail: int


@dataclass(frozen=True, slots=True)
class FanoutView:
    subscribers: int
    done: int
    outstanding: int
    breaker: BreakerState


class Sessions:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        streams: Streams,
        queue: FanoutQueue,
        outbox: Outbox,
        traffic: UsageCounters,
        clock: Clock,
        options: SessionOptions,
    ) -> None:
        self._connection, self._committers, self._streams, self._queue = connection, committers, streams, queue
        self._outbox, self._clock, self._options = outbox, clock, options
        self.fans = FanoutPool(connection, committers, traffic)
        self._lives = SessionLifecycle(connection, committers, streams.store, outbox, clock)
        self._breakers: dict[Name, CircuitBreaker] = {}

    # Subscribing

    @retry_on_conflict("the session")
    async def subscribe(self, tenant: str, session: str, source: str, *, envelope: bool) -> Subscribed:
        """From now on the session gets what is written to the source. One atomic batch: a subscribe that fails leaves nothing.

        Raises StreamNotFound, StreamGone, ContentTypeMismatch, InvalidParameter.
        """
        content_type = await self._content_type(tenant, source, envelope=envelope)
        there = await self._lives.look(tenant, session)
        now = self._clock()
        expires = now + self._options.ttl_seconds * 1000
        is_new = not self._lives.has_stream(there.known)
        _check_can_be_fed(there.known, is_new=is_new)
        record = there.record if self._lives.is_there(there.known) else None
        over = there.record if record is None else None  # an ended session of this id, that nobody has noticed
        if record is None:
            stream = None if is_new else there.known.record  # somebody made it already: then it is the session's from now on
            media = content_type if stream is None else stream.content_type
            record = SessionRecord(id=session, content_type=media, created_at_ms=now, expires_at_ms=expires, subscriptions={})
        if media_type(content_type if not envelope else "application/json") != media_type(record.content_type):
            raise ContentTypeMismatch(
                f"the session's stream is of {record.content_type!r}: subscribe with `envelope`, or another session"
            )
        if source not in record.subscriptions and len(record.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise PreconditionFailed(f"a session has at most {SUBSCRIPTIONS_MAX} subscriptions")
        drafts = [self._stream_draft(Name(tenant, STREAM_PREFIX + session), there.known, record, expires, is_new=is_new)]
        drafts += [leave_draft(tenant, name, (session,)) for name in (over.subscriptions if over else ())]
        if source not in record.subscriptions:
            drafts.append(join_draft(tenant, source, Member(session, 0, media_type(record.content_type), envelope)))
            drafts += await self._pattern_drafts(tenant, source)
        wanted = record.subscriptions.get(source) or Subscription(now, envelope)
        changed = msgspec.structs.replace(record, expires_at_ms=expires, subscriptions={**record.subscriptions, source: wanted})
        drafts.append(session_draft(tenant, changed, there.record_at))
        stored = await self._committer(tenant).append_together(drafts)
        metrics.count("subscription", "subscribe")
        if over is not None:
            self._lives.tell_end(tenant, over)
        if source in record.subscriptions:
            self._outbox.record(None, SessionTouched(tenant=tenant, session_id=session, expires_at=rfc3339(expires)))
        else:
            subscribed = SessionSubscribed(
                tenant=tenant, session_id=session, stream_id=source, is_new=is_new, expires_at=rfc3339(expires)
            )
            self._outbox.record(None, subscribed)
        if is_new:
            metrics.count("session", "session_create")
        if is_new and there.known.last:
            await self._streams.store.purge(Name(tenant, STREAM_PREFIX + session), stored[0].sequence)
        return Subscribed(session, source, expires, is_new)

    async def _content_type(self, tenant: str, source: str, *, envelope: bool) -> str:
        """What the session's stream must be of. A pattern's streams may be of any type; those of another are not for it."""
        if is_pattern(source):
            return "application/json"
        record = found(await self._streams.store.known(Name(tenant, source)), self._clock())
        return "application/json" if envelope else record.content_type

    def _stream_draft(
        self, name: Name, known: StreamSnapshot, record: SessionRecord, expires: int, *, is_new: bool
    ) -> PendingMessage:
        """The session's stream: made, or kept for longer."""
        if is_new or known.record is None:
            stream = StreamRecord(
                id=name.id,
                content_type=record.content_type,
                created_at_ms=record.created_at_ms,
                expires_at_ms=expires,
                is_session_stream=True,
            )
            return record_draft(
                name, stream, precondition(name.record, known.record_at)
            )  # copies for the last one may still come
        longer = msgspec.structs.replace(
            known.record, expires_at_ms=expires, expires_at=None, ttl_seconds=None, is_session_stream=True
        )
        return record_draft(name, longer, "Nats-Rollup: sub\r\n" + precondition(name.record, known.record_at))

    async def _pattern_drafts(self, tenant: str, source: str) -> list[PendingMessage]:
        if not is_pattern(source):
            return []
        patterns = self.fans.patterns(tenant)
        await patterns.refresh()
        if source in patterns.names:
            return []
        if len(patterns.names) >= PATTERNS_MAX:
            raise PreconditionFailed(f"a tenant has at most {PATTERNS_MAX} patterns")
        return [PendingMessage(patterns_subject(tenant), encode(PatternAdded(pattern=source)), new_id())]

    @retry_on_conflict("the session")
    async def unsubscribe(self, tenant: str, session: str, source: str) -> None:
        """Doing it twice is the same as once. Raises SessionNotFound."""
        there = await self._lives.find(tenant, session)
        record = there.record
        if record is None or source not in record.subscriptions:
            return
        left = {name: one for name, one in record.subscriptions.items() if name != source}
        changed = msgspec.structs.replace(record, subscriptions=left)
        drafts = [session_draft(tenant, changed, there.record_at), leave_draft(tenant, source, (session,))]
        await self._committer(tenant).append_together(drafts)
        metrics.count("subscription", "unsubscribe")
        self._outbox.record(None, SessionUnsubscribed(tenant=tenant, session_id=session, stream_id=source))

    # Publishing

    async def publish(self, name: Name, wish: AppendRequest, *, key_id: str = "") -> Published:
        """Append to the source; then give it to the sessions, or see to it that somebody will. Only the append can fail."""
        try:
            outcome = await self._streams.append(name, wish, key_id=key_id)
        except PostroadError:
            metrics.count("publish_error", "publish_error")
            raise
        metrics.count("publish", "publish")
        try:
            mode, reached = await self._fan_out(name, outcome)
        except PostroadError as problem:
            log.warning("fanout_put_off", stream=name.id, code=problem.code)
            mode, reached = Mode.SKIPPED, FanoutResult(0, 0)
        return Published(outcome, mode, reached)

    async def _fan_out(self, name: Name, outcome: Outcome) -> tuple[Mode, FanoutResult]:
        fan = self.fans.of(name)
        count = len(await fan.roster())
        breaker = self._breakers.get(name)
        mode = mode_for(count, self._options.limits, is_open=False)
        if mode is Mode.INLINE and breaker is not None and not breaker.allows(self._clock()):
            mode = Mode.CIRCUIT_OPEN
        if mode is Mode.INLINE:
            reached = await self._inline(name, outcome.next_offset, count)
            metrics.count("fanout", "fanout")
            return mode, reached
        metrics.count("fanout", "fanout_queued" if mode is Mode.QUEUED else f"fanout_{mode.replace('-', '_')}")
        if mode is Mode.QUEUED:
            await self._queue.put(name, outcome.next_offset)
        return mode, FanoutResult(count, 0)

    async def _inline(self, name: Name, until: int, count: int) -> FanoutResult:
        """Within the request, and not for long: what is not done by then is done later."""
        try:
            async with asyncio.timeout(FANOUT_RPC_TIMEOUT_MS / 1000):
                with metrics.fanout_seconds.time():
                    reached = await self._serve(name, until)
        except (PostroadError, TimeoutError) as problem:
            log.warning("fanout_failed", stream=name.id, error=type(problem).__name__)
            reached = FanoutResult(count, 0)
        self._note(name, reached)
        return reached

    def _note(self, name: Name, reached: FanoutResult) -> None:
        """Only streams whose fan-out failed last have a breaker."""
        breaker = self._breakers.get(name) or CircuitBreaker(CIRCUIT_BREAKER_FAILURE_THRESHOLD, CIRCUIT_BREAKER_RECOVERY_MS)
        breaker.record(reached.successes, reached.count - reached.successes, self._clock())
        if breaker.has_failures:
            self._breakers[name] = breaker
        elif self._breakers.pop(name, None) is None:
            return
        now = self._clock()
        metrics.breakers_open.set(sum(one.state(now) is not BreakerState.CLOSED for one in self._breakers.values()))

    async def _serve(self, name: Name, until: int) -> FanoutResult:
        record = await self._streams.store.record(name)
        if record is None:
            return FanoutResult(0, 0)
        return await self.fans.of(name).run(record, until)

    async def complete(self, name: Name) -> int:
        """Give everyone what they lack of this stream. Returns how many messages some had lacked."""
        try:
            known = await self._streams.look(name)
        except (StreamNotFound, StreamGone):
            return 0
        fan = self.fans.of(name)
        state, roster = await fan.refreshed()
        await fan.tidy()
        if not len(roster) or known.record is None or state.done >= known.tail:
            return 0
        before = await self._lacking(name, max(state.done, roster.first_joined()))
        await fan.run(known.record, known.tail)
        return before

    async def lacking(self, name: Name) -> int:
        """How many messages of a stream somebody still lacks."""
        if not await self._streams.store.record(name):
            return 0
        state, roster = await self.fans.of(name).refreshed()
        return await self._lacking(name, max(state.done, roster.first_joined())) if len(roster) else 0

    async def _lacking(self, name: Name, after: int) -> int:
        page = await stream_reader.read(self._connection, name.store, name.data, after + 1, 1)
        return len(page.entries) + page.remaining

    async def fan(self, name: Name) -> FanoutView:
        """How the fan-out of a stream stands. Raises StreamNotFound, StreamGone."""
        await self._streams.look(name)
        state, roster = await self.fans.of(name).refreshed()
        breaker = self._breakers.get(name)
        outstanding = await self._lacking(name, max(state.done, roster.first_joined())) if len(roster) else 0
        standing = BreakerState.CLOSED if breaker is None else breaker.state(self._clock())
        return FanoutView(len(roster), state.done, outstanding, standing)

    # Sessions

    async def look(self, tenant: str, session: str) -> SessionView:
        """Raises SessionNotFound."""
        there = await self._lives.find(tenant, session)
        if there.record is None or there.known.record is None:
            raise SessionNotFound("there is no such session")
        return SessionView(there.record, there.known.record, there.known.tail)

    @retry_on_conflict("the session")
    async def touch(self, tenant: str, session: str) -> int:
        """Let it live on from now. Returns until when. Raises SessionNotFound."""
        name = Name(tenant, STREAM_PREFIX + session)
        there = await self._lives.find(tenant, session)
        if there.record is None:
            raise SessionNotFound("there is no such session")
        now = self._clock()
        expires = now + self._options.ttl_seconds * 1000
        await self._committer(tenant).append(self._stream_draft(name, there.known, there.record, expires, is_new=False))
        metrics.count("session", "session_touch")
        self._outbox.record(None, SessionTouched(tenant=tenant, session_id=session, expires_at=rfc3339(expires)))
        return expires

    async def delete(self, tenant: str, session: str) -> None:
        """Raises SessionNotFound."""
        await self._lives.delete(tenant, session)

    async def end_if_over(self, tenant: str, session: str) -> tuple[CleanupOutcome, int]:
        """If the session has expired, or its stream was deleted by itself, end it. What became of it, and how many subscriptions
        it had if it ended."""
        return await self._lives.end_if_over(tenant, session)

    def _committer(self, tenant: str) -> Committer:
        return self._committers.of(streams_store(tenant))


def _check_can_be_fed(known: StreamSnapshot, *, is_new: bool) -> None:
    """Whether what is there under the name of a session's stream can be one, or can make room for one. Raises NotNow."""
    stream = known.record
    if stream is None or stream.state is State.DELETED:
        return
    if is_new and (stream.forks or stream.state is State.HIDDEN):
        raise PreconditionFailed("the last session of this id has ended, and forks still read from its stream")
    if not is_new and (stream.is_closed or stream.origin is not None):
        raise PreconditionFailed("the stream of this session's name is closed, or a fork: it cannot be a session's")
