"""States of the messages that were delivered: leased, returned for a retry, settled. Pure.

JetStream counts the messages that were delivered and not acknowledged, but does not report when each lease ends. So workers
exchange transitions (`lease_log.py`), and each folds them here. The latest transition of a message decides, by delivery and
time: the order in which transitions arrive, and repetitions, make no difference.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

import msgspec

_TOMBSTONE_MS = 10_000  # longer than a transition takes to every worker
_SETTLED_MAX = 100_000  # of a queue
_ENDS_MIN = 1000


class Step(IntEnum):
    """What happened to a delivery."""

    LEASED = 0
    EXTENDED = 1
    SHORTENED = 2  # extended to a time before the deadline of an earlier receipt
    RETRIED = 3
    REQUEUED = 4
    DEAD_LETTERED = 5
    ACKED = 6
    PURGED = 7  # the queue; has no sequence
    PROMOTED = 8  # a retry was made due


LIVE = (Step.LEASED, Step.EXTENDED, Step.SHORTENED)
_RETURNED = (Step.RETRIED, Step.REQUEUED)
_NACKED = (Step.RETRIED, Step.REQUEUED, Step.DEAD_LETTERED)


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """A step of the delivery `attempt` of a message. `until_ms`: the end of the lease, or the time of the next delivery.

    `receipt_until_ms` is the deadline of the receipt that was used for a nack: as long, the nack must be remembered.
    """

    sequence: int
    attempt: int
    step: int
    at_ms: int
    until_ms: int = 0
    receipt_until_ms: int = 0
    first_ms: int = 0  # the first lease of the message, if it is not that of this delivery

    @property
    def rank(self) -> tuple[int, bool, int, int, int]:
        return self.attempt, self.step > Step.SHORTENED, self.at_ms, self.step, self.until_ms


@dataclass(frozen=True, slots=True)
class LeaseCounts:
    """Deliveries by state. `overdue`: the lease has ended, and the message was not delivered again."""

    leased: int = 0
    retrying: int = 0
    overdue: int = 0


class QueueLeases:
    """The states of the deliveries of one queue. Memory grows with the deliveries that are not settled."""

    def __init__(self) -> None:
        self._latest: dict[int, Transition] = {}  # by sequence
        self._nacks: dict[tuple[int, int], Transition] = {}  # by sequence and attempt
        self._first: dict[int, int] = {}  # by sequence: the first lease of messages that were leased or extended again
        self._ends: list[tuple[int, int, Transition]] = []  # a heap
        self._order = count()
        self._now = 0
        self._purged: Transition | None = None
        self._leased = self._retrying = self._overdue = 0

    def apply(self, transition: Transition) -> None:
        """Take a transition into account. Commutative and idempotent."""
        if self._purged is not None and transition.at_ms <= self._purged.at_ms:
            return
        if transition.step == Step.PURGED:
            self._purge(transition)
            return
        key = transition.sequence, transition.attempt
        if Step.SHORTENED <= transition.step <= Step.DEAD_LETTERED:
            known = self._nacks.get(key)
            if known is None or known.rank < transition.rank:
                self._nacks[key] = transition
        elif transition.step in LIVE and (nack := self._nacks.get(key)) and nack.step in _NACKED:
            return
        before = self._latest.get(transition.sequence)
        if before is not None:
            is_end = transition.step == Step.ACKED and before.step <= Step.SHORTENED and before.attempt <= transition.attempt
            if not is_end and (before == transition or before.rank > transition.rank):  # the end is the common case
                return
            self._count(before, -1)
        self._remember_first(transition, before)
        self._latest[transition.sequence] = transition
        self._count(transition, 1)
        self._schedule(transition, self._now)
        if len(self._ends) > 2 * len(self._latest) + _ENDS_MIN:
            self._rebuild_ends()

    def _remember_first(self, transition: Transition, before: Transition | None) -> None:
        sequence = transition.sequence
        if transition.step >= Step.DEAD_LETTERED:
            self._first.pop(sequence, None)
        elif transition.first_ms or before is not None:
            known = (self._first.get(sequence), transition.first_ms, _leased_at(before) if before is not None else 0)
            if first := min((one for one in known if one), default=0):
                self._first[sequence] = first

    def first_lease_ms(self, sequence: int) -> int | None:
        """The time of the first lease of a message, None if it is not known any more."""
        first, latest = self._first.get(sequence), self._latest.get(sequence)
        return first or (_leased_at(latest) if latest is not None else 0) or None

    def _count(self, transition: Transition, change: int) -> None:
        if transition.step in LIVE:
            if transition.until_ms > self._now:
                self._leased += change
            else:
                self._overdue += change
        elif transition.step in _RETURNED and transition.until_ms > self._now:
            self._retrying += change

    def _purge(self, transition: Transition) -> None:
        self._purged = transition
        latest, self._latest, self._ends = self._latest, {}, []
        self._first = {}
        self._leased = self._retrying = self._overdue = 0
        for one in latest.values():
            self.apply(one)
        self._nacks = {key: one for key, one in self._nacks.items() if one.at_ms > transition.at_ms}

    def _schedule(self, transition: Transition, now_ms: int) -> None:
        """Note when the state changes by itself. A message that is gone or due is remembered for a while: other workers may
        report its lease later than its end. An overdue one stays."""
        end = _end(transition, now_ms)
        if end > now_ms:
            heapq.heappush(self._ends, (end, next(self._order), transition))
        elif transition.step not in LIVE:
            del self._latest[transition.sequence]

    def _rebuild_ends(self) -> None:
        self._ends = []
        for one in list(self._latest.values()):
            self._schedule(one, self._now)

    def advance(self, now_ms: int) -> None:
        """Let time pass: leases end, retries become due."""
        if now_ms <= self._now:
            return
        while self._ends and self._ends[0][0] <= now_ms:
            end, _, transition = heapq.heappop(self._ends)
            if self._latest.get(transition.sequence) is not transition:
                continue
            if transition.step in LIVE:
                self._leased -= 1
                self._overdue += 1
            elif transition.step in _RETURNED and end == transition.until_ms:
                self._retrying -= 1
                self._schedule(transition, now_ms)
            else:
                del self._latest[transition.sequence]
        self._now = now_ms

    def counts(self, now_ms: int) -> LeaseCounts:
        self.advance(now_ms)
        return LeaseCounts(self._leased, self._retrying, self._overdue)

    def lease_of(self, sequence: int) -> Transition | None:
        """The latest transition of a message, if it is leased or waits for a retry. `advance` first."""
        found = self._latest.get(sequence)
        return found if found is not None and found.step <= Step.REQUEUED and found.until_ms > self._now else None

    def delivery_state(self, sequence: int, attempt: int) -> str:
        """`leased`, `overdue`, or `settled`: ended in any way, or not known any more. `advance` first."""
        found = self._latest.get(sequence)
        if found is None or found.attempt != attempt or found.step not in LIVE:
            return "settled"
        return "leased" if found.until_ms > self._now else "overdue"

    def nack_of(self, sequence: int, attempt: int) -> Transition | None:
        """How the lease of a delivery was ended or shortened before its deadline."""
        return self._nacks.get((sequence, attempt))

    def is_delivered_again(self, sequence: int, attempt: int) -> bool:
        found = self._latest.get(sequence)
        return found is not None and found.attempt > attempt

    def latest_attempt(self, sequence: int) -> int:
        """The latest known delivery of a message, 0 if none is."""
        found = self._latest.get(sequence)
        return 0 if found is None else found.attempt

    def forget_overdue(self, before_ms: int) -> None:
        """Forget messages whose lease ended before this time: JetStream does not have them any more."""
        for one in [one for one in self._latest.values() if one.step in LIVE and one.until_ms < before_ms]:
            del self._latest[one.sequence]
            self._overdue -= 1

    def sweep(self, now_ms: int) -> bool:
        """Drop what is no longer needed; true if nothing is left."""
        self.advance(now_ms)
        self._first = {sequence: first for sequence, first in self._first.items() if sequence in self._latest}
        self._nacks = {key: one for key, one in self._nacks.items() if one.receipt_until_ms >= now_ms}
        for key in list(self._nacks)[: max(0, len(self._nacks) - _SETTLED_MAX)]:
            del self._nacks[key]
        return not self._latest and not self._nacks and (self._purged is None or now_ms - self._purged.at_ms > _TOMBSTONE_MS)

    def transitions(self) -> Iterator[Transition]:
        """A snapshot from which the state can be built again."""
        if self._purged is not None:
            yield self._purged
        for latest in self._latest.values():
            first = self._first.get(latest.sequence)
            yield latest if not first else msgspec.structs.replace(latest, first_ms=first)
        for transition in self._nacks.values():
            if transition.step != Step.SHORTENED or transition.sequence in self._latest:  # else the message is gone
                yield transition

    def __len__(self) -> int:
        return len(self._latest) + len(self._nacks)


def _leased_at(transition: Transition) -> int:
    """The time of the first lease, if this transition has it."""
    return transition.first_ms or (transition.at_ms if transition.step == Step.LEASED and transition.attempt == 1 else 0)


def _end(transition: Transition, now_ms: int) -> int:
    if transition.step in LIVE or (transition.step in _RETURNED and transition.until_ms > now_ms):
        return transition.until_ms
    return max(transition.at_ms, transition.until_ms) + _TOMBSTONE_MS


class LeaseFrame(msgspec.Struct, frozen=True, array_like=True):
    """Format 1 of a message on `lease.frames`: transitions by queue, as one process recorded them."""

    v: int
    process: str
    by_queue: dict[str, list[Transition]]


encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(LeaseFrame).decode
