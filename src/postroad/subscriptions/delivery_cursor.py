"""The progress of one subscription in its topic: what was read, and which messages are not settled yet. Pure.

Messages up to `read_to` have been read from the topic. Those that matched and are neither delivered nor dead-lettered are *open*:
waiting for their first attempt, in flight, or waiting for a retry. Every other message up to `read_to` is settled. So `read_to`
and the open messages are the whole progress, and its size is bounded by the number of open messages.

A cursor that is stored and loaded again delivers every open message again, in flight or not: at least once. Attempts are counted
when they end.
"""

import heapq
from collections import deque
from typing import Any

import msgspec

OPEN_MAX = 1000
_UNUSED: dict[Any, Any] = {}  # of all cursors without order, whose messages have no keys; never changed


class OpenMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message that is not settled: its sequence in the topic, the attempts that failed, and the time of the next one.

    `quarantine`: why it becomes a dead letter without an attempt.
    """

    sequence: int
    attempts: int = 0
    due_ms: int = 0
    quarantine: str = ""


class CursorState(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a cursor."""

    v: int = 1
    read_to: int
    open: tuple[OpenMessage, ...] = ()

    @property
    def settled_to(self) -> int:
        """The low watermark: all messages up to this sequence are settled."""
        return min((message.sequence for message in self.open), default=self.read_to + 1) - 1


class DeliveryCursor:
    """Progress in memory. `is_ordered`: of the messages with one key, at most one is in flight, in the order of the topic."""

    __slots__ = (
        "_due",
        "_in_flight",
        "_keys",
        "_open",
        "_open_max",
        "_queues",
        "_unkeyed",
        "is_ordered",
        "read_to",
        "version",
    )

    def __init__(self, state: CursorState, *, is_ordered: bool = False, open_max: int = OPEN_MAX) -> None:
        self.read_to = state.read_to
        self.is_ordered = is_ordered
        self._open_max = open_max
        self._open: dict[int, OpenMessage] = {}
        self._in_flight: dict[int, None] = {}  # an empty set is three times as large
        self._due: list[tuple[int, int]] = []  # heap of (due time, sequence) of messages that may be attempted
        self._keys: dict[int, str] = {} if is_ordered else _UNUSED
        self._queues: dict[str, deque[int]] = {} if is_ordered else _UNUSED  # open messages of each key, oldest first
        # Of an ordered cursor that was loaded: the keys are in the messages.
        self._unkeyed: dict[int, OpenMessage] = {} if is_ordered else _UNUSED
        self.version = 0  # incremented with each change of the state
        for message in sorted(state.open, key=lambda one: one.sequence):
            if is_ordered:
                self._open[message.sequence] = self._unkeyed[message.sequence] = message
            else:
                self._insert(message)

    # Reading

    @property
    def capacity(self) -> int:
        """How many more messages may be opened."""
        return max(0, self._open_max - len(self._open))

    def open(self, sequence: int, key: str = "", now_ms: int = 0, quarantine: str = "") -> None:
        """The message of this sequence was read and matches, or cannot be compared."""
        self.read_to = max(self.read_to, sequence)
        self._insert(OpenMessage(sequence, 0, now_ms, quarantine), key)
        self.version += 1

    def skip_to(self, sequence: int) -> None:
        """All messages up to this sequence were read; those that were not opened do not match."""
        if sequence > self.read_to:
            self.read_to = sequence
            self.version += 1

    @property
    def unkeyed(self) -> tuple[int, ...]:
        """Sequences of loaded messages whose keys must be set before they can be attempted, oldest first."""
        return tuple(self._unkeyed)

    def set_key(self, sequence: int, key: str) -> None:
        """Set the key of a loaded message. Must be called in the order of `unkeyed`, before further messages are opened."""
        message = self._unkeyed.pop(sequence, None)
        if message is not None:
            self._insert(message, key)

    def _insert(self, message: OpenMessage, key: str = "") -> None:
        self._open[message.sequence] = message
        if self.is_ordered:
            self._keys[message.sequence] = key
            queue = self._queues.setdefault(key, deque())
            queue.append(message.sequence)
            if queue[0] != message.sequence:
                return
        heapq.heappush(self._due, (message.due_ms, message.sequence))

    # Attempts

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def next_due_ms(self) -> int | None:
        """The time of the next attempt; None while no message waits for one."""
        self._drop_settled()
        return self._due[0][0] if self._due else None

    def start(self, now_ms: int) -> tuple[int, int] | None:
        """Begin the next attempt that is due: its sequence and number, from 1 on. None if no attempt is due."""
        due_ms = self.next_due_ms
        if due_ms is None or due_ms > now_ms:
            return None
        _, sequence = heapq.heappop(self._due)
        self._in_flight[sequence] = None
        return sequence, self._open[sequence].attempts + 1

    def _drop_settled(self) -> None:
        while self._due and self._due[0][1] not in self._open:
            heapq.heappop(self._due)

    def quarantine(self, sequence: int) -> str:
        """Why the open message becomes a dead letter without an attempt; empty for one that is delivered."""
        return self._open[sequence].quarantine

    def release(self, sequence: int) -> None:
        """The attempt was not made, for reasons that are not the endpoint's: it is due at once again. Idempotent."""
        if sequence not in self._in_flight:
            return
        self._in_flight.pop(sequence, None)
        heapq.heappush(self._due, (self._open[sequence].due_ms, sequence))

    def settle(self, sequence: int) -> None:
        """The message was delivered, or stored as a dead letter, or no longer exists."""
        self._in_flight.pop(sequence, None)
        if self._open.pop(sequence, None) is None:
            return
        self._unkeyed.pop(sequence, None)
        self.version += 1
        if not self.is_ordered or sequence not in self._keys:
            return
        key = self._keys.pop(sequence)
        queue = self._queues[key]
        queue.remove(sequence)
        if not queue:
            del self._queues[key]
        elif queue[0] > sequence:  # it was the first of its key, so the next one may be attempted
            following = self._open[queue[0]]
            heapq.heappush(self._due, (following.due_ms, following.sequence))

    def retry(self, sequence: int, due_ms: int) -> None:
        """The attempt failed; the next one is due at this time. Idempotent."""
        if sequence not in self._in_flight:
            return
        self._in_flight.pop(sequence, None)
        message = self._open[sequence]
        self._open[sequence] = OpenMessage(sequence, message.attempts + 1, due_ms, message.quarantine)
        heapq.heappush(self._due, (due_ms, sequence))
        self.version += 1

    # State

    @property
    def oldest_open(self) -> int | None:
        return min(self._open, default=None)

    @property
    def state(self) -> CursorState:
        """What is stored. Messages in flight are open."""
        return CursorState(read_to=self.read_to, open=tuple(self._open[one] for one in sorted(self._open)))
