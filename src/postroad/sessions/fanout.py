"""Fan-out: copies messages of a source stream to the streams of all subscribed sessions. Exactly once, in the source's order.

No process owns a source. The progress of its fan-out is a record. Each batch of copies is stored together with the next version
of that record, and only if neither the record nor the subscribers have changed since they were read. A process whose batch
conflicts reads both again and continues. So gateways and the delivery role can work on one source at the same time, any of them
may fail at any time, and the record shows the copies that are left to make.

A session that has expired is ended before the next batch of copies, which takes it off the list: it gets no copy.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from postroad.api.streams import media_type
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.kernel.errors import Conflict, EngineRefused, Overloaded
from postroad.kernel.ids import new_id
from postroad.kernel.names import SESSION_PREFIX, streams_store
from postroad.kernel.usage_counters import TenantCounters, UsageCounters
from postroad.sessions import metrics
from postroad.sessions.liveness import SessionLiveness
from postroad.sessions.records import (
    FanoutState,
    Subscriber,
    condition_subject,
    decode_pattern,
    decode_state,
    encode,
    patterns_subject,
    state_subject,
)
from postroad.sessions.rules import (
    Copy,
    CopyBatch,
    SourceMessage,
    SubscriberList,
    empty_envelope,
    envelope,
    is_eligible,
    next_batch,
    pattern_matches,
)
from postroad.sessions.subscribers import SubscriberLog
from postroad.streams.offsets import offset_text
from postroad.streams.records import StreamRecord
from postroad.streams.store import LAST_ONLY, StreamName, precondition

_BATCH_COPIES_MAX = 900  # JetStream accepts 1,000 messages; the state and preconditions are among them
_BATCH_BYTES_MAX = 8 * 1024 * 1024
_READ_MESSAGES_MAX = 256
_READ_BYTES_MAX = 1024 * 1024
_ATTEMPTS_MAX = 50
_HEADER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class FanoutResult:
    """Eligible subscribers of one message, how many of them have a copy, and how many turned out to have ended."""

    count: int
    successes: int
    ended: int = 0

    @property
    def failures(self) -> int:
        """Copies that are still to be made."""
        return self.count - self.successes - self.ended


class TooManySubscribers(Exception):
    """The list has grown beyond the size up to which a fan-out is inline."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class PatternLog:
    """Patterns of one tenant with subscribers, as one process knows them."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self._connection, self._store, self.subject = connection, streams_store(tenant), patterns_subject(tenant)
        self.position = 0
        self.names: set[str] = set()

    async def refresh(self) -> None:
        """Read the patterns added since the last call."""
        while True:
            page = await stream_reader.read(self._connection, self._store, self.subject, self.position + 1)
            for entry in page.entries:
                self.position = entry.sequence
                self.names.add(decode_pattern(entry.payload).pattern)
            if page.is_end:
                return

    def matching(self, stream: str) -> list[str]:
        return sorted(pattern for pattern in self.names if pattern_matches(pattern, stream))


class Fanout:
    """Fan-out of one source stream in one process."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        name: StreamName,
        patterns: PatternLog,
        counters: TenantCounters,
        liveness: SessionLiveness,
    ) -> None:
        self._connection, self._name, self._patterns, self._counters = connection, name, patterns, counters
        self._liveness = liveness
        self._check_liveness_at = 0
        self._committer = committers.of(name.store)
        self._own = SubscriberLog(connection, name.tenant, name.id)
        self._by_pattern: dict[str, SubscriberLog] = {}
        self._patterns_at = 0  # position of the patterns in `_by_pattern`; another fan-out may have refreshed the shared log
        self._state = FanoutState()
        self._state_at = 0
        self._subscribers: SubscriberList | None = None
        self._lock = asyncio.Lock()

    # State

    async def subscribers(self, inline_max: int) -> SubscriberList:
        """Subscribers. A list that leads to an inline fan-out may be outdated, which the precondition of its batch shows; any
        other list is read now."""
        known = self._subscribers
        if known is not None and 0 < len(known) <= inline_max:
            return known
        async with self._lock:
            return await self._read_all()

    async def refresh(self) -> tuple[FanoutState, SubscriberList]:
        async with self._lock:
            subscribers = await self._read_all()
            return self._state, subscribers

    async def _read_all(self) -> SubscriberList:
        """Read all changes. Each part has its own precondition, so the parts need not be of the same time.

        `_subscribers` is unset until all parts are read: preconditions newer than the list would let a batch pass that lacks a
        subscriber.
        """
        self._subscribers = None
        await self._patterns.refresh()
        matching, self._patterns_at = self._patterns.matching(self._name.id), self._patterns.position
        self._by_pattern = {
            name: self._by_pattern.get(name) or SubscriberLog(self._connection, self._name.tenant, name) for name in matching
        }
        entry = await stream_reader.last(self._connection, self._name.store, state_subject(self._name.tenant, self._name.id))
        if entry is not None:
            self._state, self._state_at = decode_state(entry.payload), entry.sequence
        for log in self._logs():
            await log.refresh()
        self._subscribers = SubscriberList(log.by_session.values() for log in self._logs())
        self._check_liveness_at = 0
        return self._subscribers

    def _logs(self) -> list[SubscriberLog]:
        return [self._own, *self._by_pattern.values()]

    # Copies

    async def run(self, record: StreamRecord, until: int, subscribers_max: int | None = None) -> FanoutResult:
        """Make the outstanding copies, at least up to the sequence `until`. Returns the result for that message.

        Raises TooManySubscribers if the list turns out to be longer than `subscribers_max`.
        """
        async with self._lock:
            subscribers = self._subscribers or await self._read_all()
            successes = conflicts = ended = 0
            media = media_type(record.content_type)
            while self._state.done < until and len(subscribers):
                if gone := await self._end_stale(subscribers):
                    ended += sum(is_eligible(one, until, media) for one in gone)
                    subscribers = await self._read_all()
                    continue
                if subscribers_max is not None and len(subscribers) > subscribers_max:
                    raise TooManySubscribers(len(subscribers))
                messages = await self._pending_messages(record, subscribers)
                if not messages:
                    break
                batch = next_batch(self._state, messages, subscribers, media, _BATCH_COPIES_MAX, _BATCH_BYTES_MAX)
                try:
                    await self._store_batch(batch, media)
                except (Conflict, EngineRefused) as problem:  # refused: some of the copies exist already
                    metrics.fanout_conflicts.inc()
                    conflicts += 1
                    if conflicts > _ATTEMPTS_MAX:
                        raise Overloaded("too many concurrent fan-outs of this stream", retry_after=1) from problem
                    subscribers = await self._read_all()
                    continue
                conflicts = 0
                successes += sum(copy.message.sequence == until for copy in batch.copies)
            count = subscribers.count_eligible(until, media)
            # Another process may have made some of the copies.
            return FanoutResult(count + ended, max(successes, count if self._state.done >= until else 0), ended)

    async def _end_stale(self, subscribers: SubscriberList) -> Sequence[Subscriber]:
        """End the sessions on the list that have expired; returns them. Reads no more than the sessions whose known expiry has
        passed."""
        now = self._liveness.now()
        if now < self._check_liveness_at:
            return ()
        gone, self._check_liveness_at = await self._liveness.end_stale(self._name.tenant, subscribers.after(""), now)
        return gone

    async def _pending_messages(self, record: StreamRecord, subscribers: SubscriberList) -> Sequence[SourceMessage]:
        after = max(self._state.done, record.incarnation, subscribers.first_joined())
        page = await stream_reader.read(
            self._connection, self._name.store, self._name.data, after + 1, _READ_MESSAGES_MAX, _READ_BYTES_MAX
        )
        return [SourceMessage(entry.sequence, entry.payload) for entry in page.entries]

    async def _store_batch(self, batch: CopyBatch, media: str) -> None:
        """Store the copies and the new state together. Raises Conflict if the state or the subscribers have changed."""
        tenant, name = self._name.tenant, self._name.id
        subject = state_subject(tenant, name)
        message_id = f"{name}:{batch.state.done}:{batch.state.at}:{batch.state.upto}:fan"
        conditions = self._conditions()
        copies = self._copy_messages(batch.copies, media, conditions)
        state = PendingMessage(
            subject, encode(batch.state), message_id, LAST_ONLY + precondition(subject, self._state_at), is_conditional=True
        )
        messages = [state, *copies]
        for number in range(len(copies), len(conditions)):  # a message carries one precondition
            headers = LAST_ONLY + conditions[number]
            messages.append(PendingMessage(condition_subject(tenant, name, number), b"", new_id(), headers, is_conditional=True))
        stored = await self._committer.append_together(messages)
        self._state, self._state_at = batch.state, stored[0].sequence
        metrics.fanned_out.add(tenant, len(copies))
        self._counters.fanout_messages += len(copies)

    def _conditions(self) -> list[str]:
        """Preconditions: no change of the subscribers, no new pattern."""
        conditions = [precondition(self._own.subject, self._own.position)]
        conditions.append(precondition(self._patterns.subject, self._patterns_at))
        conditions += [precondition(log.subject, log.position) for log in self._by_pattern.values()]
        return conditions

    def _copy_messages(self, copies: Sequence[Copy], media: str, conditions: list[str]) -> list[PendingMessage]:
        envelopes: dict[int, bytes] = {}
        messages: list[PendingMessage] = []
        for copy in copies:
            source, subscriber = copy.message, copy.subscriber
            payload = source.payload
            if subscriber.envelope:
                if source.sequence not in envelopes:
                    envelopes[source.sequence] = self._envelope(source, media)
                payload = envelopes[source.sequence]
            target = StreamName(self._name.tenant, SESSION_PREFIX + subscriber.session)
            condition = conditions[len(messages)] if len(messages) < len(conditions) else ""
            message_id = f"{subscriber.session}:{self._name.id}:{source.sequence}"
            messages.append(PendingMessage(target.data, payload, message_id, condition, is_conditional=bool(condition)))
        return messages

    def _envelope(self, message: SourceMessage, media: str) -> bytes:
        offset = offset_text(message.sequence)
        payload = envelope(self._name.id, offset, message.payload, media)
        is_too_large = len(payload) + _HEADER_BYTES_MAX > self._connection.max_payload
        return empty_envelope(self._name.id, offset) if is_too_large else payload

    # Compaction

    async def compact(self) -> None:
        """Compact subscriber logs that have become long."""
        async with self._lock:
            for log in self._logs():
                if log.needs_compaction:
                    self._subscribers = None
                    await self._compact(log)

    async def _compact(self, log: SubscriberLog) -> None:
        messages = log.compacted()
        condition = precondition(log.subject, log.position)
        messages[0] = msgspec.structs.replace(messages[0], headers=condition, is_conditional=True)
        try:
            stored = await self._committer.append_together(messages, uses_reserve=True)
        except Conflict:
            return  # a concurrent change; the next reconciliation tries again
        await purge_stream(self._connection, self._name.store, log.subject, before=stored[0].sequence)


class FanoutPool:
    """The most recently used fan-outs of the process."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        usage: UsageCounters,
        liveness: SessionLiveness,
        *,
        size_max: int = 2000,
    ) -> None:
        self._connection, self._committers, self._usage, self._size_max = connection, committers, usage, size_max
        self._liveness = liveness
        self._fanouts: dict[StreamName, Fanout] = {}
        self._patterns: dict[str, PatternLog] = {}

    def of(self, name: StreamName) -> Fanout:
        fanout = self._fanouts.pop(name, None)
        if fanout is None:
            counters = self._usage.of(name.tenant)
            fanout = Fanout(self._connection, self._committers, name, self.patterns(name.tenant), counters, self._liveness)
            if len(self._fanouts) >= self._size_max:
                self._fanouts.pop(next(iter(self._fanouts)))
        self._fanouts[name] = fanout  # moved to the end: the first entry is evicted
        return fanout

    def patterns(self, tenant: str) -> PatternLog:
        patterns = self._patterns.get(tenant)
        if patterns is None:
            patterns = self._patterns[tenant] = PatternLog(self._connection, tenant)
        return patterns
