"""Appending: one lane per stream and process. What is wished for while something is on its way goes together with the next.

A lane keeps what it knows of its stream and decides from that; the fence tells when somebody else has written meanwhile, and
then it looks again. It says no, or "done before", only from what it has just read.
"""

import asyncio
import contextlib
import random
from collections import ChainMap, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import structlog

from postroad.jetstream.commit import PendingMessage, PublishAck
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Overloaded, PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.usage_counters import TenantCounters, UsageCounters
from postroad.streams import metrics
from postroad.streams.records import Producer, State, StreamRecord, resolved
from postroad.streams.rules import AppendRequest, Change, Outcome, StreamSnapshot, after, decide
from postroad.streams.store import Name, Store, data_draft, precondition, record_draft

_ROUND_WISHES_MAX = 400
_ROUND_BYTES_MAX = 2 * 1024 * 1024
_TRIES = 30
_PATIENCE = 3
_CHECKPOINT_EVERY = 512
_LANES_MAX = 20_000

log = structlog.get_logger("postroad.streams")


class _Waiting:
    __slots__ = ("future", "request")

    def __init__(self, request: AppendRequest) -> None:
        self.request = request
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a round comes to: from what was known, an answer for each wish, and the drafts that make the changes true."""

    known: StreamSnapshot
    answers: Sequence[tuple[_Waiting, Change | Outcome | PostroadError]]
    drafts: Sequence[PendingMessage]
    producers: dict[str, Producer]
    last_seq: str | None


_Seen = tuple[int, StreamRecord | None, int]  # the tail, the record, and the record's sequence


class _Stale(Exception):
    """What is known is too old to refuse something by."""


class StreamAppender:
    """Makes the changes of one stream, one round after the other."""

    def __init__(self, store: Store, name: Name, tally: TenantCounters, clock: Clock) -> None:
        self._store, self._name, self._tally, self._clock = store, name, tally, clock
        self._known: StreamSnapshot | None = None
        self._producers: dict[str, Producer] | None = None
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._data_subject = name.data
        self._fenced_at, self._record_fence = -1, ""
        self._since_checkpoint = 0
        self._saving: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def submit(self, request: AppendRequest) -> "asyncio.Future[Outcome]":
        waiting = _Waiting(request)
        if not self._is_sent(waiting):
            self._queue(waiting)
        return waiting.future

    def _queue(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    # The short way, which nearly all go: plain appends depend on the record alone and need no rounds

    def _is_sent(self, waiting: _Waiting) -> bool:
        """Hand a plain append to the committer at once, if nothing is to be decided by what others append."""
        known, request = self._known, waiting.request
        if (
            known is None
            or request.data is None
            or request.is_guarded
            or self._producers is not None
            or self._running is not None
        ):
            return False
        try:
            if not isinstance(decide(known, request, self._clock()), Change):
                return False
        except PostroadError:
            return False  # a no needs a closer look
        if self._fenced_at != known.record_at:
            self._fenced_at, self._record_fence = known.record_at, precondition(self._name.record, known.record_at)
        draft = PendingMessage(self._data_subject, request.data, new_id(), self._record_fence, is_conditional=True)
        stored = self._store.committer(self._name).submit((draft,))
        stored.add_done_callback(partial(self._stored, waiting))
        return True

    def _stored(self, waiting: _Waiting, stored: "asyncio.Future[Sequence[PublishAck]]") -> None:
        if stored.cancelled():
            waiting.future.cancel()
            return
        problem = stored.exception()
        if isinstance(problem, Conflict):
            if self._running is None:  # a round has read for itself
                self._known = None
            self._queue(waiting)
        elif problem is not None:
            _tell([waiting], problem)
        else:
            metrics.appended.add(self._name.tenant)
            self._tally.appends += 1
            self._tally.append_bytes += len(waiting.request.data or b"")
            if self._known is not None and self._known.record is not None and self._known.record.ttl_seconds is not None:
                self._known = replace(self._known, touched_at_ms=self._clock())
            if not waiting.future.done():
                waiting.future.set_result(Outcome(stored.result()[0].sequence, is_closed=False))

    # Rounds

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = self._take()
                try:
                    answered = await self._round(taken)
                    self._waiting[:0] = taken[answered:]  # what comes after a close is decided anew
                except Exception as problem:  # our own mistakes too: whoever waits must be told
                    self._known = self._producers = None
                    _tell(taken, problem)
        finally:
            self._running = asyncio.create_task(self._run()) if self._waiting else None

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for waiting in self._waiting:
            size += len(waiting.request.data or b"")
            if count and (count >= _ROUND_WISHES_MAX or size > _ROUND_BYTES_MAX):
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _round(self, taken: list[_Waiting]) -> int:
        """Carry out the wishes together. Returns how many of them were answered."""
        is_guarded = any(waiting.request.is_guarded for waiting in taken)
        is_fresh = False
        for tries in range(_TRIES):
            if is_guarded and tries >= _PATIENCE:
                await self._hold_others_up()
            if self._known is None or (is_guarded and self._producers is None):
                self._learn(await self._store.known(self._name, with_producers=is_guarded))
                is_fresh = True
            try:
                plan = self._plan(taken, is_fresh=is_fresh)
                stored = await self._store.committer(self._name).append_together(plan.drafts) if plan.drafts else ()
            except (Conflict, _Stale) as problem:
                self._known = self._producers = None
                is_fresh = False
                if isinstance(problem, Conflict):
                    metrics.append_conflicts.inc()
                    await asyncio.sleep(random.uniform(0, 0.002 * min(tries, 10)))  # noqa: S311  # so that two writers part
                continue
            self._answer(plan, stored)
            return len(plan.answers)
        raise Overloaded("too many write to this stream at once", retry_after=1)

    async def _hold_others_up(self) -> None:
        """Others append without end, and each time the fence tells. A new version of the record stops those that they have on
        their way, and while they look what it is, this one has its turn."""
        known = await self._store.known(self._name)
        if known.record is not None and known.record.state is State.LIVE:
            draft = record_draft(self._name, known.record, precondition(self._name.record, known.record_at))
            with contextlib.suppress(Conflict):
                await self._store.committer(self._name).append(draft)

    def _learn(self, known: StreamSnapshot) -> None:
        self._known = known
        self._producers = None if known.producers is None else dict(known.producers)

    def _plan(self, taken: list[_Waiting], *, is_fresh: bool) -> _Plan:
        begin = self._known
        if begin is None:
            raise _Stale
        noted: ChainMap[str, Producer] = ChainMap({}, self._producers or {})
        known = replace(begin, producers=noted)
        now = self._clock()
        answers: list[tuple[_Waiting, Change | Outcome | PostroadError]] = []
        drafts: list[PendingMessage] = []
        condition = self._fence(known)
        for waiting in taken:
            answer: Change | Outcome | PostroadError
            try:
                answer = decide(known, waiting.request, now)
            except PostroadError as refusal:
                answer = refusal
            if not isinstance(answer, Change) and not is_fresh:
                raise _Stale
            answers.append((waiting, answer))
            if isinstance(answer, Change):
                drafts += self._drafts(answer, condition if not drafts else "")
                noted.update(answer.producers or {})
                known = after(known, answer, now)
                if answer.request.closes:  # where the stream ends is known once this is stored; what follows must say it
                    break
        return _Plan(begin, answers, drafts, dict(noted.maps[0]), known.last_seq)

    def _fence(self, known: StreamSnapshot) -> str:
        """Who knows the producers must hear of every append, also of those that others make, or it no longer knows them."""
        if self._producers is not None:
            return precondition(self._name.everything, known.last)
        return precondition(self._name.record, known.record_at)

    def _drafts(self, change: Change, condition: str) -> list[PendingMessage]:
        """A record that closes comes after its data, so that nobody sees the end before them; one that says that guarded appends
        begin comes before."""
        request = change.request
        drafts: list[PendingMessage] = []
        if change.record is not None and not request.closes:
            drafts.append(record_draft(self._name, change.record, condition))
            condition = ""
        if request.data is not None:
            drafts.append(data_draft(self._name, request.data, request.claim, request.seq, condition))
            condition = ""
        if change.record is not None and request.closes:
            drafts.append(record_draft(self._name, change.record, condition))
        return drafts

    def _answer(self, plan: _Plan, stored: Sequence[PublishAck]) -> None:
        known = plan.known
        places = iter(stored)
        seen: _Seen = (known.tail, known.record, known.record_at)
        for waiting, answer in plan.answers:
            if isinstance(answer, PostroadError):
                _tell([waiting], answer)
                continue
            if isinstance(answer, Change):
                if answer.request.data is not None:
                    self._tally.appends += 1
                    self._tally.append_bytes += len(answer.request.data)
                seen = self._placed(answer, places, seen)
                outcome = Outcome(seen[0], is_closed=answer.request.closes, claim=answer.request.claim)
            else:
                outcome = msgspec.structs.replace(answer, next_offset=seen[0])
            if not waiting.future.done():
                waiting.future.set_result(outcome)
        tail, record, record_at = seen
        last = stored[-1].sequence if stored else known.last
        touched = self._clock() if stored else known.touched_at_ms
        self._known = replace(
            known, record=record, record_at=record_at, last=last, tail=tail, last_seq=plan.last_seq, touched_at_ms=touched
        )
        if self._producers is not None:
            self._producers.update(plan.producers)
        metrics.appended.add(self._name.tenant, sum(isinstance(answer, Change) for _, answer in plan.answers))
        self._since_checkpoint += len(stored)
        self._save_if_due()

    def _placed(self, change: Change, places: Iterator[PublishAck], seen: "_Seen") -> "_Seen":
        """What is seen of the stream once the change has its places, which are in the order of its drafts."""
        request = change.request
        tail, record, record_at = seen
        if change.record is not None and not request.closes:
            record_at = next(places).sequence
            record = resolved(change.record, record_at)
        if request.data is not None:
            tail = next(places).sequence
        if change.record is not None and request.closes:
            record_at = next(places).sequence
            record = resolved(change.record, record_at)
        return tail, record, record_at

    def _save_if_due(self) -> None:
        known = self._known
        if known is None or self._producers is None or known.record is None or known.record.guarded_from is None:
            return
        if self._since_checkpoint < max(_CHECKPOINT_EVERY, len(self._producers)) or self._saving is not None:
            return
        self._since_checkpoint = 0
        self._saving = asyncio.create_task(self._save(replace(known, producers=dict(self._producers))))

    async def _save(self, known: StreamSnapshot) -> None:
        try:
            await self._store.save_checkpoint(self._name, known)
        except PostroadError as problem:  # the next one will do
            log.warning("checkpoint_not_saved", stream=self._name.id, code=problem.code)
        finally:
            self._saving = None


def _tell(waiting: Sequence[_Waiting], problem: BaseException) -> None:
    for one in waiting:
        if not one.future.done():
            one.future.set_exception(problem)


class StreamAppenders:
    """The process's lanes, those used last."""

    def __init__(self, store: Store, traffic: UsageCounters, clock: Clock) -> None:
        self._store, self._traffic, self._clock = store, traffic, clock
        self._lanes: OrderedDict[Name, StreamAppender] = OrderedDict()

    def of(self, name: Name) -> StreamAppender:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = StreamAppender(self._store, name, self._traffic.of(name.tenant), self._clock)
            if len(self._lanes) > _LANES_MAX:
                oldest, idle = next(iter(self._lanes.items()))
                if idle.is_idle:
                    del self._lanes[oldest]
        else:
            self._lanes.move_to_end(name)
        return lane

    def forget(self, tenant: str) -> None:
        """The tenant's streams are gone, and what lanes know of them."""
        for name in [name for name in self._lanes if name.tenant == tenant]:
            del self._lanes[name]
