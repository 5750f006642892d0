"""Fair queues: which group has more than its share, and which deferred messages are moved back next. Pure.

A message is deferred when it is published, if its group has more than `QUIET_MAX` messages that are ready or leased, and more
than a tenth of those that are leased or next to be delivered. Of many groups that exceed `QUIET_MIN`, fewer are enough. Deferred
messages are moved back as the queue is emptied, from each group in turn.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from postroad.api.queues import Priority

QUIET_MAX = 30  # messages of a group that are not deferred, if few groups have as many
QUIET_MIN = 4  # messages of a group that are never deferred
READY_SHARED = 64  # messages ahead of the consumers that groups with more than `QUIET_MIN` share
_SHARE = 0.1
READY_COUNTED_MAX = 300  # of the queue; else many groups with a long backlog would each have less than a tenth of it
_TRACKED_MAX = 4096  # messages of a queue that a process remembers; further ones are not counted
_UNCONFIRMED_MS = 1000  # in which the lease of another process becomes known here
_DRAIN_SECONDS = 0.075  # of messages that are moved back ahead of the consumers
READY_MIN, READY_MAX = 4, 900


def exceeds_share(count: int, total: int) -> bool:
    """True if a group with `count` messages has more than its share. `total`: messages of the queue that are leased, and those
    that are ready, up to `READY_COUNTED_MAX`."""
    return count > QUIET_MAX and count > total * _SHARE


def exceeds_equal_share(count: int, leased: int, groups: int) -> bool:
    """True if a group with `count` messages that are due has more than its share of those that are leased and of the first ready
    ones.

    `groups` have more than `QUIET_MIN` messages. Otherwise each of many could have `QUIET_MAX` in front of a quiet one.
    """
    return count > max(QUIET_MIN, (leased + READY_SHARED) // max(groups, 1))


class _Delivered:
    __slots__ = ("group", "is_counted", "noticed_ms")

    def __init__(self, group: str, noticed_ms: int) -> None:
        self.group, self.noticed_ms, self.is_counted = group, noticed_ms, True


class GroupLoad:
    """Messages of a queue that are ready, leased or delayed, by group, as far as this process has published them.

    A message counts from the decision to publish it until it is settled. A process does not know what others publish, so a
    group may have its share once in each; that is not worth a count in the engine.
    """

    def __init__(self) -> None:
        self.crowded = 0  # groups with more than `QUIET_MIN` messages that are due
        self.due = 0  # messages that are ready or leased, or about to be stored
        self._counts: dict[str, int] = {}
        self._later: dict[str, int] = {}  # of these, how many are not ready for some time
        self._ready: dict[Priority, deque[tuple[int, str]]] = {}  # sequences in the order of their outcomes, by priority
        self._delivered: dict[int, _Delivered] = {}
        self._delayed: list[tuple[int, str]] = []  # a heap: when they become ready

    def count(self, group: str) -> int:
        return self._counts.get(group, 0)

    def due_of(self, group: str) -> int:
        return self._counts.get(group, 0) - self._later.get(group, 0)

    def add(self, group: str) -> None:
        """A message is about to be stored."""
        self._change(group, counted=1)

    def discard(self, group: str) -> None:
        """A message was not stored, or it is settled."""
        if group in self._counts:
            self._change(group, counted=-1)

    def _change(self, group: str, *, counted: int = 0, later: int = 0) -> None:
        before = self.due_of(group)
        for counts, change in ((self._counts, counted), (self._later, later)):
            if change:
                left = counts.get(group, 0) + change
                if left:
                    counts[group] = left
                else:
                    del counts[group]
        after = self.due_of(group)
        self.due += after - before
        self.crowded += (after > QUIET_MIN) - (before > QUIET_MIN)

    def stored(self, group: str, sequence: int, priority: Priority = "normal") -> None:
        """A message that was added is ready, with this sequence."""
        ready = self._ready.setdefault(priority, deque())
        ready.append((sequence, group))
        if len(ready) > _TRACKED_MAX:
            self.discard(ready.popleft()[1])

    def delayed(self, group: str, due_ms: int) -> None:
        """A message that was added becomes ready at this time."""
        if len(self._delayed) < _TRACKED_MAX:
            heapq.heappush(self._delayed, (due_ms, group))
            self._change(group, later=1)
        else:
            self.discard(group)

    def refresh(self, delivered: Mapping[Priority, int], is_held: Callable[[int], bool], now_ms: int) -> None:
        """Leave out what is settled.

        `delivered`: the consumer of each priority has delivered every message up to this sequence. `is_held`: whether the message
        of a sequence is leased or waits for a retry, which may become known a moment later.
        """
        for priority, ready in self._ready.items():
            while ready and ready[0][0] <= delivered.get(priority, 0):
                sequence, group = ready.popleft()
                self._delivered[sequence] = _Delivered(group, now_ms)
        for sequence, one in list(self._delivered.items()):
            is_counted = is_held(sequence)
            if is_counted != one.is_counted:
                one.is_counted = is_counted
                (self.add if is_counted else self.discard)(one.group)
            if not is_counted and now_ms - one.noticed_ms > _UNCONFIRMED_MS:
                del self._delivered[sequence]
        while len(self._delivered) > _TRACKED_MAX:
            _, one = self._delivered.popitem()
            if one.is_counted:
                self.discard(one.group)
        while self._delayed and self._delayed[0][0] + _UNCONFIRMED_MS <= now_ms:
            self._change(heapq.heappop(self._delayed)[1], counted=-1, later=-1)


class ReadyTarget:
    """How many messages should be ready, so that consumers find some, and those of quiet groups wait little behind them.

    That is what consumers take in 75 ms; more if they were found waiting.
    """

    def __init__(self) -> None:
        self._taken: int | None = None
        self._at = 0.0
        self._rate = 0.0
        self._boost = float(READY_MIN)

    def budget(self, ready: int, taken: int, now: float) -> int:
        """How many messages to move back. `ready`: messages that are ready and not deferred; `taken`: deliveries so far.

        If quiet groups alone keep the consumers busy, the others get a tenth of what is taken: they are not forgotten.
        """
        new = 0 if self._taken is None or taken < self._taken else taken - self._taken
        if self._taken is not None and now > self._at:
            weight = min(1.0, (now - self._at) / 0.5)
            self._rate += (new / (now - self._at) - self._rate) * weight
        self._taken, self._at = taken, now
        if ready == 0 and new:
            self._boost = min(self._boost * 2, READY_MAX)
        else:
            self._boost = max(self._boost * 0.95, READY_MIN)
        target = min(READY_MAX, max(self._rate * _DRAIN_SECONDS, self._boost))
        return min(READY_MAX, max(int(target) - ready, -(-new // 10)))


class Turns:
    """The groups that have deferred messages, in the order of their turns."""

    def __init__(self) -> None:
        self._order: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def add(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self._order.setdefault(token, None)

    def remove(self, token: str) -> None:
        self._order.pop(token, None)

    def next(self, budget: int) -> dict[str, int]:
        """How many messages each of the next groups may move: the same number, or one more for the first ones."""
        total = len(self._order)
        if not total or budget <= 0:
            return {}
        each, more = divmod(budget, total)
        first = list(islice(self._order, more if each == 0 else total))
        chosen = {token: each + (index < more) for index, token in enumerate(first)}
        for token in first[:more]:
            self._order.move_to_end(token)
        return chosen


class MovedMessages(msgspec.Struct, frozen=True, array_like=True):
    """The deferred messages of a group up to the sequence `last` were moved back; `count` of them may still be stored."""

    last: int
    count: int


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of the record on `….moved`: what was moved back and is perhaps not removed yet, by token of the group.

    It is written in one batch with the messages that are moved, on condition that it is still the latest. So of two processes
    that move messages only one succeeds, and one that has deleted a deferred message writes it to stop a move in progress.
    """

    v: int = 1
    moved: Mapping[str, MovedMessages] = {}

    def is_moved(self, token: str, sequence: int) -> bool:
        known = self.moved.get(token)
        return known is not None and sequence <= known.last

    def with_moved(self, moves: Mapping[str, Sequence[int]], removed: Iterable[str]) -> "MoveRecord":
        """The record after moves of sequences; the moved messages of the groups in `removed` are not stored any more."""
        gone = set(removed)
        known = {token: one for token, one in self.moved.items() if token not in gone}
        for token, sequences in moves.items():
            before = known.get(token)
            count = len(sequences) + (before.count if before is not None else 0)
            known[token] = MovedMessages(sequences[-1], count)
        return MoveRecord(moved=known)


encode_moved = msgspec.json.Encoder().encode
decode_moved = msgspec.json.Decoder(MoveRecord).decode
