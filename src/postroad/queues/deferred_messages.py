"""Deferred messages of fair queues as they are stored: count, remove, purge.

A deferred message is on `….wait.<hash of its group>` until it is moved back to the subject of ready messages. Moved messages may
still be stored there for a moment; the record on `….moved` says which (`fairness.py`).
"""

import asyncio
from dataclasses import dataclass, field

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_message, purge_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.ids import new_id
from postroad.queues.fairness import MoveRecord, decode_moved, encode_moved
from postroad.queues.records import QueueRecord

SINCE = "Postroad-Since"  # header of a message that was moved back: when it was stored first, in milliseconds
RECORD_SECONDS = 120  # of a record without contents: no process still writes then what it decided without it
_CONFLICTS_MAX = 20
_CHECKED_MAX = 400  # groups of the record, which the mover keeps below


@dataclass(frozen=True, slots=True)
class StoredMoves:
    """The record of the moved messages, and its sequence; 0 if there is none."""

    record: MoveRecord
    sequence: int

    def is_moved(self, entry: Entry) -> bool:
        """True for an entry of a deferred message that was moved back."""
        return bool(self.record.moved) and self.record.is_moved(entry.subject.rpartition(".")[2], entry.sequence)


NO_MOVES = StoredMoves(MoveRecord(), 0)


def moves_write(record: QueueRecord, moves: MoveRecord, before: int) -> PendingMessage:
    """The write of the record of moves, on condition that the one before has this sequence."""
    headers = [("Nats-Rollup", "sub"), ("Nats-Expected-Last-Subject-Sequence", str(before))]
    if not moves.moved:
        headers.append(("Nats-TTL", f"{RECORD_SECONDS}s"))
    return PendingMessage(record.moved_subject, encode_moved(moves), new_id(), header_lines(headers), is_conditional=True)


def since_ms(entry: Entry) -> int:
    """When the message became ready, in the order of the engine's clock."""
    since = entry.headers.get(SINCE, "")
    return int(since) if since.isdecimal() else entry.at_ms


@dataclass(slots=True)
class _Stop:
    """The latest write that stopped moves of a queue, and when it began."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun_at: float = float("-inf")
    moves: StoredMoves = NO_MOVES
    callers: int = 0


class DeferredMessages:
    def __init__(self, connection: Connection, committers: Committers) -> None:
        self._connection, self._committers = connection, committers
        self._stops: dict[str, _Stop] = {}

    async def moves(self, record: QueueRecord) -> StoredMoves:
        if not record.has_deferred:
            return NO_MOVES
        entry = await stream_reader.last(self._connection, record.stream, record.moved_subject)
        return NO_MOVES if entry is None else StoredMoves(decode_moved(entry.payload), entry.sequence)

    async def count(self, record: QueueRecord) -> tuple[int, int | None]:
        """The number of deferred messages, and when the oldest one was stored."""
        if not record.has_deferred:
            return 0, None
        moves = await self.moves(record)
        tokens = list(moves.record.moved)[:_CHECKED_MAX]
        page, *firsts = await asyncio.gather(
            stream_reader.read(self._connection, record.stream, record.wait_subject("*"), 1, 1),
            *(stream_reader.read(self._connection, record.stream, record.wait_subject(token), 1, 1) for token in tokens),
        )
        stored = len(page.entries) + page.remaining
        moved = sum(
            moves.record.moved[token].count
            for token, first in zip(tokens, firsts, strict=True)
            if first.entries and moves.is_moved(first.entries[0])
        )
        count = max(0, stored - moved)
        return count, page.entries[0].at_ms if count and page.entries else None

    async def remove(self, record: QueueRecord, entry: Entry) -> bool:
        """Delete a deferred message; false if it is not there any more: it was moved back, or deleted."""
        is_deleted = await delete_message(self._connection, record.stream, entry.sequence)
        moves = await self._stop_moves(record)
        return is_deleted and not moves.is_moved(entry)

    async def purge(self, record: QueueRecord) -> int:
        """Delete all deferred messages; return their number. Those that are moved back meanwhile are ready then."""
        count, _ = await self.count(record)
        if record.has_deferred:
            await purge_stream(self._connection, record.stream, record.wait_subject("*"))
            await self._stop_moves(record)
        return count

    async def _stop_moves(self, record: QueueRecord) -> StoredMoves:
        """Let moves fail that were prepared before this call. Returns what was moved by then. Concurrent calls share a write."""
        called_at = asyncio.get_running_loop().time()
        stop = self._stops.setdefault(record.stream, _Stop())
        stop.callers += 1
        try:
            async with stop.lock:
                if stop.begun_at < called_at:
                    begun_at = asyncio.get_running_loop().time()
                    stop.moves = await self._write_again(record)
                    stop.begun_at = begun_at
                return stop.moves
        finally:
            stop.callers -= 1
            if not stop.callers:
                self._stops.pop(record.stream, None)

    async def _write_again(self, record: QueueRecord) -> StoredMoves:
        for _ in range(_CONFLICTS_MAX):
            moves = await self.moves(record)
            try:
                write = moves_write(record, moves.record, moves.sequence)
                await self._committers.of(record.stream).append(write, uses_reserve=True)
                return moves
            except Conflict:
                await asyncio.sleep(0.001)
        raise EngineUnavailable("deferred messages are moved back at the moment; repeat the request", retry_after=1)


def is_deferred_entry(record: QueueRecord, entry: Entry) -> bool:
    return entry.subject.startswith(f"{record.subject}.wait.")
