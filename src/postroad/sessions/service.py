"""Operations on sessions: subscribe, publish, show, touch, delete."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.pages import Page
from postroad.api.streams import ContentTypeMismatch, StreamGone, StreamNotFound, media_type
from postroad.governance.audit import Audit
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, Committers, PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.jetstream.connection import Connection
from postroad.kernel.circuit_breaker import BreakerState, CircuitBreaker
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, PostroadError, PreconditionFailed
from postroad.kernel.ids import new_id
from postroad.kernel.names import SESSION_PREFIX, streams_store
from postroad.kernel.spans import NO_SPAN
from postroad.kernel.usage_counters import UsageCounters
from postroad.sessions import lifecycle, metrics
from postroad.sessions.events import SessionSubscribed, SessionTouched, SessionUnsubscribed
from postroad.sessions.fanout import FanoutPool, FanoutResult, TooManySubscribers
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.lifecycle import CleanupOutcome, SessionLifecycle, session_message
from postroad.sessions.liveness import SessionLiveness
from postroad.sessions.records import (
    FanoutState,
    PatternAdded,
    SessionRecord,
    Subscriber,
    Subscription,
    encode,
    patterns_subject,
)
from postroad.sessions.rules import FanoutLimits, FanoutMode, SubscriberList, is_pattern, mode_for
from postroad.sessions.subscribers import join_message, leave_message
from postroad.streams.directory import added_message
from postroad.streams.listing import ListedStream
from postroad.streams.records import State, StreamRecord
from postroad.streams.rules import AppendOutcome, AppendRequest, StreamSnapshot, existing_record
from postroad.streams.service import Streams
from postroad.streams.store import LAST_ONLY, StreamName, precondition, record_message
from postroad.telemetry.outbox import Outbox
from postroad.tracing.messaging import COUNT, fanning_out

SUBSCRIPTIONS_MAX = 1000
PATTERNS_MAX = 900  # each matching pattern is a precondition of a batch, which has 1,000 messages
BREAKER_RECOVERY_MS = 60_000
_BREAKER_FAILURES = 5
_INLINE_SECONDS_MAX = 10.0
_JSON = "application/json"

log = structlog.get_logger("postroad.sessions")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    ttl_seconds: int
    limits: FanoutLimits


@dataclass(frozen=True, slots=True)
class SubscribeResult:
    expires_at_ms: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Outcome of the append to the source, and of the fan-out within the request."""

    outcome: AppendOutcome
    mode: FanoutMode
    fanout: FanoutResult


@dataclass(frozen=True, slots=True)
class SessionState:
    record: SessionRecord
    stream: StreamRecord
    tail: int


@dataclass(frozen=True, slots=True)
class ListedSession:
    record: SessionRecord
    stream: ListedStream


@dataclass(frozen=True, slots=True)
class FanoutProgress:
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
        usage: UsageCounters,
        clock: Clock,
        options: SessionOptions,
        audit: Audit | None = None,
    ) -> None:
        self._connection, self._committers, self._streams, self._queue = connection, committers, streams, queue
        self._outbox, self._audit, self._clock, self._options = outbox, audit, clock, options
        self._lifecycle = SessionLifecycle(connection, committers, streams.store, outbox, clock)
        liveness = SessionLiveness(connection, self._lifecycle.end_if_expired, clock)
        self.fanouts = FanoutPool(connection, committers, usage, liveness)
        streams.end_session = self._lifecycle.end_by_stream
        self._breakers: dict[StreamName, CircuitBreaker] = {}

    # Subscriptions

    @retry_on_conflict("the session")
    async def subscribe(self, context: RequestContext, session: str, source: str, *, envelope: bool) -> SubscribeResult:
        """Subscribe the session to a stream or pattern, and create or prolong the session, in one atomic batch.

        Raises StreamNotFound, StreamGone, ContentTypeMismatch, InvalidParameter, PreconditionFailed.
        """
        tenant, name = context.tenant, StreamName(context.tenant, SESSION_PREFIX + session)
        content_type = await self._content_type(tenant, source, envelope=envelope)
        snapshot = await self._lifecycle.snapshot(tenant, session)
        now = self._clock()
        expires = self._expiry(now)
        is_new = not self._lifecycle.has_stream(snapshot.stream)
        _check_usable(snapshot.stream, is_new=is_new)
        record = snapshot.record if self._lifecycle.is_live(snapshot.stream) else None
        replaced = snapshot.record if record is None else None  # an expired session of this id that was not cleaned up yet
        if replaced is not None and len(replaced.subscriptions) > lifecycle.LEAVES_MAX:
            await self._lifecycle.end_if_expired(tenant, session)
            raise Conflict("an expired session of this id was ended")
        if record is None:
            # A stream that a user created under this name becomes the session's.
            media = content_type if is_new or snapshot.stream.record is None else snapshot.stream.record.content_type
            record = SessionRecord(id=session, content_type=media, created_at_ms=now, expires_at_ms=expires, subscriptions={})
        if media_type(_JSON if envelope else content_type) != media_type(record.content_type):
            raise ContentTypeMismatch(
                f"the content type of the session is {record.content_type!r}: subscribe with `envelope`, or with another session"
            )
        is_subscribed = source in record.subscriptions
        if not is_subscribed and len(record.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise PreconditionFailed(f"a session has at most {SUBSCRIPTIONS_MAX} subscriptions")
        messages = [self._stream_message(name, snapshot.stream, record, expires, is_new=is_new)]
        messages += [added_message(tenant, name.id)] if is_new else []
        messages += [leave_message(tenant, left, session) for left in (replaced.subscriptions if replaced else ())]
        if not is_subscribed:
            subscriber = Subscriber(session, 0, media_type(record.content_type), envelope)
            messages += [join_message(tenant, source, subscriber), *await self._pattern_messages(tenant, source)]
        subscription = record.subscriptions.get(source) or Subscription(now, envelope)
        subscriptions = {**record.subscriptions, source: subscription}
        changed = msgspec.structs.replace(record, expires_at_ms=expires, subscriptions=subscriptions)
        messages.append(session_message(tenant, changed, snapshot.record_at))
        stored = await self._committer(tenant).append_together(messages)
        metrics.count("subscription", "subscribe")
        if replaced is not None:
            self._lifecycle.record_end(tenant, replaced)
        if is_subscribed:
            self._outbox.record(context, SessionTouched(session_id=session, expires_at=rfc3339(expires)))
        else:
            event = SessionSubscribed(session_id=session, stream_id=source, is_new=is_new, expires_at=rfc3339(expires))
            self._outbox.record(context, event)
        if is_new:
            metrics.count("session", "session_create")
            if snapshot.stream.last:
                await self._streams.store.purge(name, stored[0].sequence)
        return SubscribeResult(expires, is_new)

    def _expiry(self, now_ms: int) -> int:
        return now_ms + self._options.ttl_seconds * 1000

    async def _content_type(self, tenant: str, source: str, *, envelope: bool) -> str:
        """Content type that the session must have. A pattern may match streams of any type; the session gets the JSON ones."""
        if is_pattern(source):
            return _JSON
        record = existing_record(await self._streams.store.snapshot(StreamName(tenant, source)), self._clock())
        return _JSON if envelope else record.content_type

    def _stream_message(
        self, name: StreamName, stream: StreamSnapshot, record: SessionRecord, expires: int, *, is_new: bool
    ) -> PendingMessage:
        """The record of the session's stream, new or with a later expiry."""
        condition = precondition(name.record, stream.record_at)
        if is_new or stream.record is None:
            created = StreamRecord(
                id=name.id,
                content_type=record.content_type,
                created_at_ms=record.created_at_ms,
                expires_at_ms=expires,
                is_session_stream=True,
            )
            return record_message(name, created, condition)  # no roll-up: copies of the previous session may still arrive
        prolonged = msgspec.structs.replace(
            stream.record, expires_at_ms=expires, expires_at=None, ttl_seconds=None, is_session_stream=True
        )
        return record_message(name, prolonged, LAST_ONLY + condition)

    async def _pattern_messages(self, tenant: str, source: str) -> list[PendingMessage]:
        if not is_pattern(source):
            return []
        patterns = self.fanouts.patterns(tenant)
        await patterns.refresh()
        if source in patterns.names:
            return []
        if len(patterns.names) >= PATTERNS_MAX:
            raise PreconditionFailed(f"a tenant has at most {PATTERNS_MAX} patterns")
        return [PendingMessage(patterns_subject(tenant), encode(PatternAdded(pattern=source)), new_id())]

    @retry_on_conflict("the session")
    async def unsubscribe(self, context: RequestContext, session: str, source: str) -> None:
        """End a subscription. Does nothing if there is none. Raises SessionNotFound."""
        tenant = context.tenant
        record, snapshot = await self._lifecycle.find(tenant, session)
        if source not in record.subscriptions:
            return
        remaining = {name: one for name, one in record.subscriptions.items() if name != source}
        changed = msgspec.structs.replace(record, subscriptions=remaining)
        messages = [session_message(tenant, changed, snapshot.record_at), leave_message(tenant, source, session)]
        await self._committer(tenant).append_together(messages, uses_reserve=True)
        metrics.count("subscription", "unsubscribe")
        self._outbox.record(context, SessionUnsubscribed(session_id=session, stream_id=source))

    # Publishing

    async def publish(self, context: RequestContext | None, name: StreamName, request: AppendRequest) -> PublishResult:
        """Append to the source, then fan out or queue the fan-out. Raises the errors of `Streams.append`; a failed fan-out is
        completed later."""
        try:
            outcome = await self._streams.append(context, name, request)
        except PostroadError:
            metrics.count("publish_error", "publish_error")
            raise
        metrics.count("publish", "publish")
        span = None if context is None or context.span is None else fanning_out(context.span, name.tenant, name.id)
        try:
            with span or NO_SPAN:
                mode, result = await self._fan_out(name, outcome)
                if span is not None:
                    span.attributes |= {COUNT: result.count, "messaging.postroad.fanout.mode": mode.value}
        except PostroadError as problem:
            log.warning("fanout_deferred", stream=name.id, code=problem.code)
            mode, result = FanoutMode.SKIPPED, FanoutResult(0, 0)
        return PublishResult(outcome, mode, result)

    async def _fan_out(self, name: StreamName, outcome: AppendOutcome) -> tuple[FanoutMode, FanoutResult]:
        fanout, limits, breaker = self.fanouts.of(name), self._options.limits, self._breakers.get(name)
        is_open = breaker is not None and not breaker.allows(self._clock())
        count = len(await fanout.subscribers(0 if is_open else limits.inline_count_max))
        mode = mode_for(count, limits)
        if mode is FanoutMode.INLINE and is_open:
            mode = FanoutMode.CIRCUIT_OPEN
        if mode is FanoutMode.INLINE:
            try:
                result = await self._fan_out_inline(name, outcome.next_offset, count)
                metrics.count("fanout", "fanout")
                return mode, result
            except TooManySubscribers as grown:  # since the list was read
                count, mode = grown.count, mode_for(grown.count, limits)
        metrics.count("fanout", f"fanout_{mode.replace('-', '_')}")
        if mode is FanoutMode.QUEUED:
            await self._queue.put(name, outcome.next_offset)
        return mode, FanoutResult(count, 0)

    async def _fan_out_inline(self, name: StreamName, until: int, count: int) -> FanoutResult:
        """Fan out within the request and its time limit; the reconciler completes the rest. Raises TooManySubscribers."""
        try:
            async with asyncio.timeout(_INLINE_SECONDS_MAX):
                with metrics.fanout_seconds.time():
                    record = await self._streams.store.record(name)
                    limit = self._options.limits.inline_count_max
                    result = FanoutResult(0, 0) if record is None else await self.fanouts.of(name).run(record, until, limit)
        except (PostroadError, TimeoutError) as problem:
            log.warning("fanout_failed", stream=name.id, error=type(problem).__name__)
            result = FanoutResult(count, 0)
        self._update_breaker(name, result)
        return result

    def _update_breaker(self, name: StreamName, result: FanoutResult) -> None:
        """Only streams whose last fan-out failed have a breaker."""
        breaker = self._breakers.get(name) or CircuitBreaker(_BREAKER_FAILURES, BREAKER_RECOVERY_MS)
        breaker.record(result.successes, result.failures, self._clock())
        if breaker.has_failures:
            self._breakers[name] = breaker
        elif self._breakers.pop(name, None) is None:
            return
        now = self._clock()
        metrics.breakers_open.set(sum(one.state(now) is not BreakerState.CLOSED for one in self._breakers.values()))

    async def complete(self, name: StreamName) -> int:
        """Complete the fan-out of a stream; returns the number of messages that were outstanding."""
        try:
            snapshot = await self._streams.snapshot(name)
        except (StreamNotFound, StreamGone):
            return 0
        fanout = self.fanouts.of(name)
        state, subscribers = await fanout.refresh()
        await fanout.compact()
        if not len(subscribers) or state.done >= snapshot.tail:
            return 0
        outstanding = await self._count_outstanding(name, state, subscribers)
        await fanout.run(snapshot.existing, snapshot.tail)
        return outstanding

    async def outstanding(self, name: StreamName) -> int:
        """Messages of a stream not yet copied to all sessions."""
        if not await self._streams.store.record(name):
            return 0
        return await self._count_outstanding(name, *await self.fanouts.of(name).refresh())

    async def _count_outstanding(self, name: StreamName, state: FanoutState, subscribers: SubscriberList) -> int:
        if not len(subscribers):
            return 0
        after = max(state.done, subscribers.first_joined())
        page = await stream_reader.read(self._connection, name.store, name.data, after + 1, 1)
        return len(page.entries) + page.remaining

    async def fanout_progress(self, name: StreamName) -> FanoutProgress:
        """Raises StreamNotFound, StreamGone."""
        await self._streams.snapshot(name)
        state, subscribers = await self.fanouts.of(name).refresh()
        outstanding = await self._count_outstanding(name, state, subscribers)
        breaker = self._breakers.get(name)
        breaker_state = BreakerState.CLOSED if breaker is None else breaker.state(self._clock())
        return FanoutProgress(len(subscribers), state.done, outstanding, breaker_state)

    # Sessions

    async def page(
        self, tenant: str, prefix: str, after: str | None, limit: int, is_shown: Callable[[str], bool]
    ) -> Page[ListedSession]:
        """Sessions whose ids begin with the prefix, in order, after the session `after`. `is_shown` gets ids of streams."""
        cursor = None if after is None else SESSION_PREFIX + after
        page = await self._streams.listing.page(tenant, SESSION_PREFIX + prefix, cursor, limit, is_shown)
        streams = [one for one in page.items if one.snapshot.existing.is_session_stream]
        records = await self._lifecycle.records(tenant, [one.name.id.removeprefix(SESSION_PREFIX) for one in streams])
        items = [ListedSession(record, one) for record, one in zip(records, streams, strict=True) if record is not None]
        next_cursor = None if page.next_cursor is None else page.next_cursor.removeprefix(SESSION_PREFIX)
        return Page(items=items, next_cursor=next_cursor)

    async def find(self, tenant: str, session: str) -> SessionState:
        """Raises SessionNotFound."""
        record, snapshot = await self._lifecycle.find(tenant, session)
        return SessionState(record, snapshot.stream.existing, snapshot.stream.tail)

    @retry_on_conflict("the session")
    async def touch(self, context: RequestContext, session: str) -> int:
        """Prolong the session; returns its new expiry. Raises SessionNotFound."""
        name = StreamName(context.tenant, SESSION_PREFIX + session)
        record, snapshot = await self._lifecycle.find(context.tenant, session)
        expires = self._expiry(self._clock())
        message = self._stream_message(name, snapshot.stream, record, expires, is_new=False)
        await self._committer(context.tenant).append(message, uses_reserve=True)
        metrics.count("session", "session_touch")
        self._outbox.record(context, SessionTouched(session_id=session, expires_at=rfc3339(expires)))
        return expires

    async def delete(self, context: RequestContext, session: str) -> None:
        """Raises SessionNotFound."""
        record, _ = await self._lifecycle.find(context.tenant, session)
        if self._audit is None:
            await self._lifecycle.delete(context.tenant, session)
            return
        before = {"createdAt": rfc3339(record.created_at_ms), "subscriptions": len(record.subscriptions)}
        async with self._audit.change(context, "session.delete", session, before=before):
            await self._lifecycle.delete(context.tenant, session)

    async def end_if_expired(self, tenant: str, session: str) -> tuple[CleanupOutcome, int]:
        """End the session if it has expired or its stream was deleted. Returns the outcome, and the number of subscriptions of an
        ended session."""
        return await self._lifecycle.end_if_expired(tenant, session)

    def _committer(self, tenant: str) -> Committer:
        return self._committers.of(streams_store(tenant))


def _check_usable(snapshot: StreamSnapshot, *, is_new: bool) -> None:
    """Check that the stream under the session's name can be, or can be replaced by, the session's. Raises PreconditionFailed."""
    stream = snapshot.record
    if stream is None or stream.state is State.DELETED:
        return
    if is_new and (stream.forks or stream.state is State.SOFT_DELETED):
        raise PreconditionFailed("the previous session of this id has ended, and forks still read from its stream")
    if not is_new and (stream.is_closed or stream.origin is not None):
        raise PreconditionFailed("the stream with this session's name is closed or a fork, so it cannot be a session's")
