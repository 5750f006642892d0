"""Reads of durable streams: from a position, across the segments of a fork, and the time of the last read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.streams import metrics
from postroad.streams.offsets import Now, Position
from postroad.streams.records import Segment, StreamRecord
from postroad.streams.rules import StreamSnapshot, existing_record, start_of
from postroad.streams.store import StreamName, StreamStore

CHUNK_MESSAGES_MAX = 1000
CHUNK_BYTES_MAX = 1024 * 1024
_USE_FRACTION = 10  # a read is stored once per this fraction of the TTL
_USE_INTERVAL_MS_MAX = 60_000
_SEQUENCE_MAX = 2**63
_LAG_ATTEMPTS, _LAG_SECONDS = 20, 0.005

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Data from `start` to `next_offset`. `is_end`: it reached the end of the stream; `is_closed`: nothing will follow."""

    record: StreamRecord
    payloads: Sequence[bytes]
    start: int
    next_offset: int
    is_end: bool
    is_closed: bool


class StreamReader:
    def __init__(self, store: StreamStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._saving: set[asyncio.Task[None]] = set()

    async def snapshot(self, name: StreamName, *, is_use: bool = False) -> StreamSnapshot:
        """Current state of a stream; `is_use` prolongs its TTL. Raises StreamNotFound, StreamGone."""
        snapshot = await self._store.snapshot(name)
        record = existing_record(snapshot, self._clock())
        if is_use:
            self._save_use(name, record, snapshot.used_at_ms)
        return snapshot

    async def read(self, name: StreamName, position: Position) -> ReadResult:
        """Data after a position, up to the limits of one response. Prolongs the TTL.

        Raises StreamNotFound, StreamGone, OffsetGone.
        """
        if isinstance(position, Now):
            snapshot = await self.snapshot(name, is_use=True)
            record = existing_record(snapshot, self._clock())
            return ReadResult(record, (), snapshot.tail, snapshot.tail, is_end=True, is_closed=record.is_closed)
        record = await self._readable_record(name)
        while True:
            start = start_of(record, position, 0)
            result = await self.read_after(name, record, start)
            current = await self._store.record(name) if record.retention is not None else record
            if current is None or current.incarnation != record.incarnation or current.trimmed_to <= start:
                return result
            record = current  # it was trimmed while it was read

    async def _readable_record(self, name: StreamName) -> StreamRecord:
        """The record; read without a snapshot unless the stream has a TTL."""
        record = await self._store.record(name)
        if record is not None and record.ttl_seconds is not None:
            return existing_record(await self.snapshot(name, is_use=True), self._clock())
        return existing_record(StreamSnapshot(record, stream=name.id), self._clock())

    async def read_after(self, name: StreamName, record: StreamRecord, position: int) -> ReadResult:
        entries, is_end = await self._entries_to_end(name, record, position)
        payloads = [entry.payload for entry in entries]
        next_offset = entries[-1].sequence if entries else position
        if is_end:  # the data from a fork's source may end between two messages
            next_offset = max(next_offset, record.base)
        metrics.read_bytes.add(name.tenant, sum(map(len, payloads)))
        if not entries or (is_end and record.is_closed):
            # The end must come from a snapshot: the position may be beyond it, and the record may be newer than the data.
            snapshot = await self._store.snapshot(name)
            if snapshot.record is not None and snapshot.record.incarnation == record.incarnation:
                if not entries and snapshot.tail < position:
                    next_offset = snapshot.tail
                is_end = next_offset >= snapshot.tail
                record = snapshot.record
        is_closed = is_end and record.is_closed
        return ReadResult(record, payloads, min(position, next_offset), next_offset, is_end, is_closed)

    async def _entries_to_end(self, name: StreamName, record: StreamRecord, position: int) -> tuple[list[Entry], bool]:
        """Entries for one response, and whether they reach the end. A replica that is behind is asked again for a short time;
        after that the response says that there is more."""
        snapshot = await self._store.snapshot(name) if self._store.may_lag else None
        is_same = snapshot is not None and snapshot.record is not None and snapshot.record.incarnation == record.incarnation
        end = snapshot.tail if snapshot is not None and is_same else 0
        for _ in range(_LAG_ATTEMPTS):
            entries, is_end = await self.entries(name, record, position, CHUNK_MESSAGES_MAX, CHUNK_BYTES_MAX)
            if not is_end or max(entries[-1].sequence if entries else position, record.base) >= end:
                return entries, is_end
            await asyncio.sleep(_LAG_SECONDS)
        return entries, False

    async def entries(
        self, name: StreamName, record: StreamRecord, after: int, limit: int, bytes_max: int
    ) -> tuple[list[Entry], bool]:
        """Messages after a sequence, first from the segments of a fork, then its own; and whether these were all."""
        entries: list[Entry] = []
        size = 0
        own = Segment(name.id, record.incarnation, _SEQUENCE_MAX)
        for segment in (*(record.origin.segments if record.origin else ()), own):
            while (start := max(after, segment.incarnation)) < segment.until:
                count = min(limit - len(entries), segment.until - start)  # its stream may continue far beyond the segment
                page = await self._store.read(StreamName(name.tenant, segment.stream), start, count, bytes_max - size)
                fitting = [entry for entry in page.entries if entry.sequence <= segment.until]
                entries += fitting
                size += sum(len(entry.payload) for entry in fitting)
                after = fitting[-1].sequence if fitting else after
                is_done = page.is_end or len(fitting) < len(page.entries)
                if len(entries) >= limit or size >= bytes_max:
                    return entries, is_done and segment is own
                if is_done:
                    break
        return entries, True

    def _save_use(self, name: StreamName, record: StreamRecord, used_at_ms: int) -> None:
        """Store the time of the read if the stream has a TTL; not every time, but often enough."""
        if record.ttl_seconds is None:
            return
        if self._clock() - used_at_ms >= min(_USE_INTERVAL_MS_MAX, record.ttl_seconds * 1000 // _USE_FRACTION):
            task = asyncio.create_task(self._save_read_time(name))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    async def _save_read_time(self, name: StreamName) -> None:
        try:
            await self._store.save_read_time(name)
        except PostroadError as problem:
            log.warning("read_time_not_saved", stream=name.id, code=problem.code)
