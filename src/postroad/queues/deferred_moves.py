"""Moves of deferred messages back to the ready ones, as fast as consumers take them, from each group in turn.

One gateway does it for a queue, chosen by rendezvous hashing. That is only for speed: a move is one atomic batch of the messages
and the record of moves, on condition that the record has not changed, so two at once move nothing twice.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.queues import Priority
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ConsumerState, consumer_state, has_current_replicas, purge_stream, subject_counts
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, EngineRefused
from postroad.queues import metrics
from postroad.queues.deferred_messages import NO_MOVES, SINCE, DeferredMessages, StoredMoves, moves_write, since_ms
from postroad.queues.fairness import ReadyTarget, Turns
from postroad.queues.message_writes import ttl_header
from postroad.queues.records import QueueRecord, ready_subject

_READ_AHEAD = 2048  # messages that are read ahead, of all groups
_READ_MAX = 64
_READ_BYTES = 256 * 1024
_READS_MAX = 32  # at the same time
_MOVE_BYTES_MAX = 2 * 1024 * 1024
_READ_AGE_SECONDS = 10.0  # far less than the time for which a record without contents is kept
_KEPT_MAX = 64  # moved messages of a group that are stored before they are removed
_UNREMOVED_MAX = 200  # groups with such messages
_LAG_SECONDS, _LAG_SECONDS_MAX = 0.005, 2.0

log = structlog.get_logger("postroad.queues")


@dataclass(slots=True)
class _Waiting:
    """Deferred messages of a group that were read, and where to read on."""

    entries: deque[Entry]
    position: int
    is_end: bool
    read_at: float


@dataclass(frozen=True, slots=True)
class Round:
    """`moved` messages were moved back; `groups` have more."""

    moved: int
    groups: int


class QueueMoves:
    """The moves of one queue, by one process at a time."""

    def __init__(
        self, connection: Connection, committers: Committers, deferred: DeferredMessages, record: QueueRecord, clock: Clock
    ) -> None:
        self._connection, self._committers, self._deferred, self._clock = connection, committers, deferred, clock
        self.record = record
        self.turns = Turns()
        self._target = ReadyTarget()
        self._waiting: dict[str, _Waiting] = {}
        self._announced: set[str] = set()  # groups that were announced since their last read began
        self._positions: dict[str, int] = {}  # of groups whose moved messages were removed: a replica may still have them
        self._removed: set[str] = set()  # groups whose moved messages were removed since the record was written
        self._moves: StoredMoves | None = None

    async def scan(self) -> None:
        """Find the groups that have deferred messages. Raises EngineUnavailable."""
        async for page in subject_counts(self._connection, self.record.stream, self.record.wait_subject("*")):
            self.add([subject.rpartition(".")[2] for subject in page])

    def add(self, tokens: Sequence[str]) -> None:
        """These groups may have new deferred messages."""
        self._announced.update(tokens)
        for token in tokens:
            known = self._waiting.get(token)
            if known is not None:
                known.is_end = False
        self.turns.add(tokens)

    async def round(self) -> Round:
        """Move as many messages back as consumers need. Raises EngineUnavailable."""
        if not self.turns:
            await self._finish()
            return Round(0, 0)
        state = await self._consumer_state()
        if state is None:  # the queue is being deleted
            return Round(0, 0)
        budget = self._target.budget(state.num_pending, state.delivered.consumer_seq, asyncio.get_running_loop().time())
        moved = 0
        if budget > 0:
            if self._moves is None:
                await self._load()
            try:
                moved = await self._move(self.turns.next(budget))
            except (Conflict, EngineRefused):  # another process moves, or has deleted a message: read everything again
                metrics.move_conflicts.inc()
                self._forget()
                return Round(0, len(self.turns))
            except BaseException:  # it may or may not be stored
                self._forget()
                raise
        await self._remove_moved()
        return Round(moved, len(self.turns))

    async def _consumer_state(self) -> ConsumerState | None:
        """The state of the consumers of all priorities together."""
        record = self.record
        states = await asyncio.gather(
            *(consumer_state(self._connection, record.stream, record.consumer_of(one)) for one in record.priorities)
        )
        found = [state for state in states if state is not None]
        if len(found) < len(states):
            return None
        first = found[0]
        for one in found[1:]:
            delivered = type(first.delivered)(first.delivered.consumer_seq + one.delivered.consumer_seq, 0)
            first = ConsumerState(delivered=delivered, num_pending=first.num_pending + one.num_pending)
        return first

    async def _load(self) -> None:
        """Read the record, once the replicas have what was moved or deleted before, so that it is not read again from them. One
        that is away is not awaited for ever: the ids of moved messages are known for a minute."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LAG_SECONDS_MAX
        while not await has_current_replicas(self._connection, self.record.stream):
            if loop.time() > until:
                break
            await asyncio.sleep(_LAG_SECONDS)
        self._moves = await self._deferred.moves(self.record)

    def _forget(self) -> None:
        self._moves = None
        self._waiting.clear()
        self._positions.clear()
        self._removed.clear()

    async def _move(self, chosen: dict[str, int]) -> int:
        await self._read(chosen)
        moves = self._moves or NO_MOVES
        now, oldest = self._clock(), asyncio.get_running_loop().time() - _READ_AGE_SECONDS
        writes: list[PendingMessage] = []
        taken: dict[str, list[int]] = {}
        size = 0
        for token, count in chosen.items():
            known = self._waiting.get(token)
            if known is None or known.read_at < oldest:
                self._waiting.pop(token, None)
                continue
            for entry in list(known.entries)[:count]:
                size += len(entry.payload)
                if size > _MOVE_BYTES_MAX and writes:
                    break
                known.entries.popleft()
                taken.setdefault(token, []).append(entry.sequence)
                write = _ready_write(self.record, entry, now)
                if write is not None:
                    writes.append(write)
        if taken:
            changed = moves.record.with_moved(taken, self._removed)
            record_write = moves_write(self.record, changed, moves.sequence)
            acks = await self._committers.of(self.record.stream).append_together([*writes, record_write], uses_reserve=True)
            self._moves = StoredMoves(changed, acks[-1].sequence)
            self._removed.clear()
            metrics.moved_back.add(self.record.tenant, len(writes))
        for token in chosen:
            known = self._waiting.get(token)
            if known is not None and known.is_end and not known.entries:
                self.turns.remove(token)
        return len(writes)

    async def _read(self, chosen: dict[str, int]) -> None:
        """Read ahead what is missing of the groups."""
        ahead = max(1, min(_READ_MAX, _READ_AHEAD // max(1, len(self.turns))))
        missing = [
            (token, max(count, ahead))
            for token, count in chosen.items()
            if (known := self._waiting.get(token)) is None or (len(known.entries) < count and not known.is_end)
        ]
        for start in range(0, len(missing), _READS_MAX):
            await asyncio.gather(*(self._read_group(token, count) for token, count in missing[start : start + _READS_MAX]))

    async def _read_group(self, token: str, count: int) -> None:
        moves = self._moves or NO_MOVES
        known, read_at = self._waiting.get(token), asyncio.get_running_loop().time()
        moved = moves.record.moved.get(token)
        position = known.position if known is not None else max(self._positions.get(token, 1), moved.last + 1 if moved else 1)
        self._announced.discard(token)
        page = await stream_reader.read(
            self._connection, self.record.stream, self.record.wait_subject(token), position, count, _READ_BYTES
        )
        entries = deque(known.entries if known is not None else ())
        entries.extend(page.entries)
        read_at = min(read_at, known.read_at) if known is not None and known.entries else read_at
        is_end = page.is_end and token not in self._announced
        self._waiting[token] = _Waiting(entries, page.next_sequence, is_end, read_at)

    async def _remove_moved(self, *, is_last: bool = False) -> None:
        """Remove messages that were moved: of groups with many of them or without others, or all if the groups are many."""
        moves = self._moves
        if moves is None:
            return
        left = {token: one for token, one in moves.record.moved.items() if token not in self._removed}
        is_all = is_last or len(left) > _UNREMOVED_MAX
        due = [token for token, one in left.items() if is_all or one.count >= _KEPT_MAX or token not in self._waiting]
        for start in range(0, len(due), _READS_MAX):
            await asyncio.gather(*(self._remove(token, left[token].last) for token in due[start : start + _READS_MAX]))

    async def _remove(self, token: str, last: int) -> None:
        await purge_stream(self._connection, self.record.stream, self.record.wait_subject(token), before=last + 1)
        self._removed.add(token)
        self._positions[token] = last + 1

    async def _finish(self) -> None:
        """No group has deferred messages: remove what is left of those that were moved, and let the record expire."""
        if self._moves is None:
            await self._load()
        moves = self._moves
        if moves is None or not moves.record.moved:
            self._forget()
            return
        await self._remove_moved(is_last=True)
        try:
            write = moves_write(self.record, moves.record.with_moved({}, self._removed), moves.sequence)
            await self._committers.of(self.record.stream).append(write, uses_reserve=True)
        except Conflict:
            metrics.move_conflicts.inc()
        self._forget()


def _ready_write(record: QueueRecord, entry: Entry, now_ms: int) -> PendingMessage | None:
    """The write of a deferred message to the ready ones; None if it has expired. Its id makes it known for a minute."""
    headers = [(SINCE, str(since_ms(entry)))]
    ttl = entry.headers.get("Nats-TTL", "").removesuffix("s")
    if ttl.isdecimal():
        left_ms = int(ttl) * 1000 - (now_ms - entry.at_ms)
        if left_ms <= 0:
            return None
        headers.append(("Nats-TTL", ttl_header(left_ms)))
    subject = ready_subject(record.subject, _priority_of(entry.payload))
    return PendingMessage(subject, entry.payload, f"move/{entry.sequence}", header_lines(headers))


class _Prioritized(msgspec.Struct, frozen=True):
    priority: Priority = "normal"


_decode_prioritized = msgspec.json.Decoder(_Prioritized).decode


def _priority_of(payload: bytes) -> Priority:
    """Priority of a stored message, which is not checked otherwise."""
    try:
        return _decode_prioritized(payload).priority if b'"priority"' in payload else "normal"
    except (msgspec.DecodeError, RecursionError):
        return "normal"
