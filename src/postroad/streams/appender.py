"""One appender per stream and process. Requests that arrive during a write are batched into the next one.

An appender decides from a cached snapshot of its stream. A failed precondition shows that another process has written, and the
appender reads a new snapshot. It refuses a request, or reports a duplicate, only from a snapshot that it has just read. What is
stored stays stored, so all but one of these are true even if the snapshot is some seconds old, as in a partition; a gap in a
producer's sequence is confirmed by a write.
"""

import asyncio
import contextlib
import random
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import structlog

from postroad.api.streams import ProducerGap
from postroad.jetstream.commit import PendingMessage, PublishAck
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel import futures
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Overloaded, PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.usage_counters import TenantCounters, UsageCounters
from postroad.streams import metrics
from postroad.streams.records import Producer, State, StreamRecord, resolve
from postroad.streams.rules import AppendOutcome, AppendRequest, StreamChange, StreamSnapshot, decide, with_change
from postroad.streams.store import StreamName, StreamStore, data_message, precondition, record_message

_BATCH_REQUESTS_MAX = 400
_BATCH_BYTES_MAX = 2 * 1024 * 1024
_ATTEMPTS_MAX = 30
_ATTEMPTS_BEFORE_BUMP = 3
_CHECKPOINT_EVERY = 512
_APPENDERS_MAX = 20_000

log = structlog.get_logger("postroad.streams")

_Decision = StreamChange | AppendOutcome | PostroadError


OnAppended = Callable[[AppendOutcome | Exception], None]


class _PendingAppend:
    """A request and the callback that gets its outcome.

    Its data have the same message id in every attempt: during a partition a leader that has been replaced can reject what its
    successor stores.
    """

    __slots__ = ("has_conflicted", "message_id", "on_outcome", "request")

    def __init__(self, request: AppendRequest, on_outcome: OnAppended) -> None:
        self.request, self.on_outcome = request, on_outcome
        self.message_id = new_id()
        self.has_conflicted = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """Decisions on the requests of a batch, made from `snapshot`, and the messages that store the accepted ones."""

    snapshot: StreamSnapshot
    decisions: Sequence[tuple[_PendingAppend, _Decision]]
    messages: Sequence[PendingMessage]
    producers: dict[str, Producer]
    last_seq: str | None


_Head = tuple[int, StreamRecord | None, int]  # tail, record, sequence of the record


class _StaleSnapshot(Exception):
    """The cached snapshot is not fresh enough to refuse a request."""


class StreamAppender:
    """Writes to one stream, one batch after the other."""

    def __init__(self, store: StreamStore, name: StreamName, counters: TenantCounters, clock: Clock) -> None:
        self._store, self._name, self._counters, self._clock = store, name, counters, clock
        self._snapshot: StreamSnapshot | None = None
        self._producers: dict[str, Producer] | None = None
        self._pending: list[_PendingAppend] = []
        self._running: asyncio.Task[None] | None = None
        self._data_subject = name.data
        self._condition_at, self._record_condition = -1, ""
        self._since_checkpoint = 0
        self._saving: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def submit(self, request: AppendRequest) -> "asyncio.Future[AppendOutcome]":
        future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self.submit_callback(request, partial(futures.resolve, future))
        return future

    def submit_callback(self, request: AppendRequest, on_outcome: OnAppended) -> None:
        """Like `submit`, but calls `on_outcome`, which must not raise. Raises TooLarge, StorageQuotaExceeded, EngineFull,
        Overloaded: then nothing is stored."""
        pending = _PendingAppend(request, on_outcome)
        if self._running is not None or not self._send_directly(pending):
            self._enqueue(pending)

    def _enqueue(self, pending: _PendingAppend) -> None:
        self._pending.append(pending)
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    # Fast path: an append without guards depends on the record alone and needs no batch of its own

    def _send_directly(self, pending: _PendingAppend) -> bool:
        """Pass the append to the committer at once. False if the decision depends on other appends or may be a refusal.

        No batch may be in progress.
        """
        snapshot, request = self._snapshot, pending.request
        if snapshot is None or request.data is None or request.is_guarded or self._producers is not None:
            return False
        try:
            if not isinstance(decide(snapshot, request, self._clock()), StreamChange):
                return False
        except PostroadError:
            return False  # a refusal needs a fresh snapshot
        if self._condition_at != snapshot.record_at:
            self._condition_at = snapshot.record_at
            self._record_condition = precondition(self._name.record, snapshot.record_at)
        message = PendingMessage(
            self._data_subject, request.data, pending.message_id, self._record_condition, is_conditional=True
        )
        self._store.committer(self._name).submit_callback((message,), partial(self._on_stored, pending))
        return True

    def _on_stored(self, pending: _PendingAppend, stored: Outcome) -> None:
        if isinstance(stored, Conflict):
            if self._running is None:  # a running batch has read its own snapshot
                self._snapshot = None
            pending.has_conflicted = True
            self._enqueue(pending)
        elif isinstance(stored, Exception):
            pending.on_outcome(stored)
        else:
            metrics.appended.add(self._name.tenant)
            self._counters.appends += 1
            self._counters.append_bytes += len(pending.request.data or b"")
            snapshot = self._snapshot
            if snapshot is not None and snapshot.record is not None and snapshot.record.ttl_seconds is not None:
                self._snapshot = replace(snapshot, used_at_ms=self._clock())
            pending.on_outcome(AppendOutcome(stored[0].sequence, is_closed=False))

    # Batches

    async def _run(self) -> None:
        try:
            while self._pending:
                self._send_waiting_directly()
                batch = self._next_batch()
                if not batch:
                    break
                try:
                    resolved = await self._process(batch)
                    self._pending[:0] = batch[resolved:]  # requests after a close are decided again
                except Exception as problem:  # including bugs: the callers must not wait for ever
                    self._snapshot = self._producers = None
                    _fail(batch, problem)
        finally:
            self._running = asyncio.create_task(self._run()) if self._pending else None

    def _send_waiting_directly(self) -> None:
        """Send the first appends without a batch, if they need none. Otherwise writers that append all the time, which waited
        together once, would wait for each other's batches for ever."""
        sent = 0
        for pending in self._pending:
            try:
                if pending.has_conflicted or not self._send_directly(pending):
                    break
            except PostroadError as refusal:
                pending.on_outcome(refusal)
            sent += 1
        del self._pending[:sent]

    def _next_batch(self) -> list[_PendingAppend]:
        size = count = 0
        for pending in self._pending:
            size += len(pending.request.data or b"")
            # An append that may be stored already goes alone: the server rejects a batch with a known id as a whole.
            if count and (count >= _BATCH_REQUESTS_MAX or size > _BATCH_BYTES_MAX or pending.has_conflicted):
                break
            count += 1
            if pending.has_conflicted:
                break
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    async def _process(self, batch: list[_PendingAppend]) -> int:
        """Decide and store the requests together. Returns the number of resolved requests."""
        is_guarded = any(pending.request.is_guarded for pending in batch)
        is_fresh = False
        for attempt in range(_ATTEMPTS_MAX):
            if is_guarded and attempt >= _ATTEMPTS_BEFORE_BUMP:
                await self._bump_record_version()
            if self._snapshot is None or (is_guarded and self._producers is None):
                self._set_snapshot(await self._store.snapshot(self._name, with_producers=is_guarded))
                is_fresh = True
            try:
                plan = self._plan(batch, is_fresh=is_fresh)
                if self._store.may_lag and any(isinstance(decision, ProducerGap) for _, decision in plan.decisions):
                    await self._store.confirm(self._name, plan.snapshot)  # a gap ends its producer
                stored = await self._store.committer(self._name).append_together(plan.messages) if plan.messages else ()
            except (Conflict, _StaleSnapshot) as problem:
                self._snapshot = self._producers = None
                is_fresh = False
                if isinstance(problem, Conflict):
                    metrics.append_conflicts.inc()
                    await asyncio.sleep(random.uniform(0, 0.002 * min(attempt, 10)))  # noqa: S311  # spreads writers, no secret
                continue
            self._resolve(plan, stored)
            return len(plan.decisions)
        raise Overloaded("too many concurrent writers of this stream", retry_after=1)

    async def _bump_record_version(self) -> None:
        """Write the record again. Other processes append continuously, so that the precondition of a guarded append always fails;
        a new version of the record fails their appends in flight, and this appender writes while they read it."""
        snapshot = await self._store.snapshot(self._name)
        if snapshot.record is not None and snapshot.record.state is State.LIVE:
            condition = precondition(self._name.record, snapshot.record_at)
            with contextlib.suppress(Conflict):
                await self._store.committer(self._name).append(record_message(self._name, snapshot.record, condition))

    def _set_snapshot(self, snapshot: StreamSnapshot) -> None:
        self._snapshot = snapshot
        self._producers = None if snapshot.producers is None else dict(snapshot.producers)

    def _plan(self, batch: list[_PendingAppend], *, is_fresh: bool) -> _Plan:
        """Raises _StaleSnapshot if a request would be refused by a cached snapshot."""
        start = self._snapshot
        if start is None:
            raise _StaleSnapshot
        producers: ChainMap[str, Producer] = ChainMap({}, self._producers or {})
        snapshot = replace(start, producers=producers)
        now = self._clock()
        decisions: list[tuple[_PendingAppend, _Decision]] = []
        messages: list[PendingMessage] = []
        condition = self._condition(snapshot)
        for pending in batch:
            decision: _Decision
            try:
                decision = decide(snapshot, pending.request, now)
            except PostroadError as refusal:
                decision = refusal
            if not isinstance(decision, StreamChange) and not is_fresh:
                raise _StaleSnapshot
            decisions.append((pending, decision))
            if isinstance(decision, StreamChange):
                messages += self._messages(decision, pending.message_id, condition if not messages else "")
                producers.update(decision.producers or {})
                snapshot = with_change(snapshot, decision, now)
                if decision.request.closes:  # the next refusal contains the end of the stream, which is known once this is stored
                    break
        return _Plan(start, decisions, messages, dict(producers.maps[0]), snapshot.last_seq)

    def _condition(self, snapshot: StreamSnapshot) -> str:
        """With producers in the cache every append of another process matters; otherwise only a change of the record."""
        if self._producers is not None:
            return precondition(self._name.data_and_record, snapshot.last)
        return precondition(self._name.record, snapshot.record_at)

    def _messages(self, change: StreamChange, message_id: str, condition: str) -> list[PendingMessage]:
        """A record that closes the stream follows its data, so that no reader sees the end before them. A record that starts
        guarded appends precedes the data."""
        request = change.request
        messages: list[PendingMessage] = []
        if change.record is not None and not request.closes:
            messages.append(record_message(self._name, change.record, condition))
            condition = ""
        if request.data is not None:
            messages.append(data_message(self._name, request.data, request.claim, request.seq, condition, message_id))
            condition = ""
        if change.record is not None and request.closes:
            messages.append(record_message(self._name, change.record, condition))
        return messages

    def _resolve(self, plan: _Plan, stored: Sequence[PublishAck]) -> None:
        snapshot = plan.snapshot
        acks = iter(stored)
        head: _Head = (snapshot.tail, snapshot.record, snapshot.record_at)
        for pending, decision in plan.decisions:
            if isinstance(decision, PostroadError):
                _fail([pending], decision)
                continue
            if isinstance(decision, StreamChange):
                if decision.request.data is not None:
                    self._counters.appends += 1
                    self._counters.append_bytes += len(decision.request.data)
                head = self._head_after(decision, acks, head)
                outcome = AppendOutcome(head[0], is_closed=decision.request.closes, claim=decision.request.claim)
            else:
                outcome = msgspec.structs.replace(decision, next_offset=head[0])
            pending.on_outcome(outcome)
        tail, record, record_at = head
        last = stored[-1].sequence if stored else snapshot.last
        used_at_ms = self._clock() if stored else snapshot.used_at_ms
        self._snapshot = replace(
            snapshot, record=record, record_at=record_at, last=last, tail=tail, last_seq=plan.last_seq, used_at_ms=used_at_ms
        )
        if self._producers is not None:
            self._producers.update(plan.producers)
        metrics.appended.add(self._name.tenant, sum(isinstance(decision, StreamChange) for _, decision in plan.decisions))
        self._since_checkpoint += len(stored)
        self._checkpoint_if_due()

    def _head_after(self, change: StreamChange, acks: Iterator[PublishAck], head: _Head) -> _Head:
        """Consume the acknowledgements of the change, which are in the order of its messages."""
        request = change.request
        tail, record, record_at = head
        if change.record is not None and not request.closes:
            record_at = next(acks).sequence
            record = resolve(change.record, record_at)
        if request.data is not None:
            tail = next(acks).sequence
        if change.record is not None and request.closes:
            record_at = next(acks).sequence
            record = resolve(change.record, record_at)
        return tail, record, record_at

    def _checkpoint_if_due(self) -> None:
        snapshot = self._snapshot
        if snapshot is None or self._producers is None or snapshot.record is None or snapshot.record.guarded_from is None:
            return
        if self._since_checkpoint < max(_CHECKPOINT_EVERY, len(self._producers)) or self._saving is not None:
            return
        self._since_checkpoint = 0
        self._saving = asyncio.create_task(self._save_checkpoint(replace(snapshot, producers=dict(self._producers))))

    async def _save_checkpoint(self, snapshot: StreamSnapshot) -> None:
        try:
            await self._store.save_checkpoint(self._name, snapshot)
        except PostroadError as problem:  # a later checkpoint replaces it
            log.warning("checkpoint_not_saved", stream=self._name.id, code=problem.code)
        finally:
            self._saving = None


def _fail(appends: Sequence[_PendingAppend], problem: Exception) -> None:
    for pending in appends:
        pending.on_outcome(problem)


class StreamAppenders:
    """The most recently used appenders of the process."""

    def __init__(self, store: StreamStore, usage: UsageCounters, clock: Clock) -> None:
        self._store, self._usage, self._clock = store, usage, clock
        self._appenders: OrderedDict[StreamName, StreamAppender] = OrderedDict()

    def of(self, name: StreamName) -> StreamAppender:
        appender = self._appenders.get(name)
        if appender is None:
            appender = StreamAppender(self._store, name, self._usage.of(name.tenant), self._clock)
            self._appenders[name] = appender
            if len(self._appenders) > _APPENDERS_MAX:
                oldest, candidate = next(iter(self._appenders.items()))
                if candidate.is_idle:
                    del self._appenders[oldest]
        else:
            self._appenders.move_to_end(name)
        return appender

    def forget(self, tenant: str) -> None:
        """Drop the appenders of a deleted tenant."""
        for name in [name for name in self._appenders if name.tenant == tenant]:
            del self._appenders[name]
