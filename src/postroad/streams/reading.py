"""Reading durable streams: from a place on, through what a fork has from others, and what counts as use."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.streams import metrics
from postroad.streams.offsets import Place
from postroad.streams.records import Segment, StreamRecord
from postroad.streams.rules import StreamSnapshot, found
from postroad.streams.store import Name, Store

CHUNK_MESSAGES_MAX = 1000
CHUNK_BYTES_MAX = 1024 * 1024
_TOUCH_SHARE = 10  # a read is noted once per this part of a stream's lifetime
_TOUCH_MS_MAX = 60_000
_FOREVER = 2**63
_LAG_TRIES, _LAG_SECONDS = 20, 0.005

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Data from one place to another. `is_end`: there was no more at that moment; `is_closed`: and there never will be."""

    record: StreamRecord
    payloads: Sequence[bytes]
    start: int
    next_offset: int
    is_end: bool
    is_closed: bool


class Reading:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._notes: set[asyncio.Task[None]] = set()

    async def look(self, name: Name, *, touches: bool = False) -> StreamSnapshot:
        """The stream as it is now. Raises StreamNotFound, StreamGone."""
        known = await self._store.known(name)
        record = found(known, self._clock())
        if touches:
            self._touch(name, record, known.touched_at_ms)
        return known

    async def read(self, name: Name, place: Place) -> Chunk:
        """The data after a place, as much as fits an answer. Counts as use of the stream."""
        if not isinstance(place, int):
            known = await self.look(name, touches=True)
            record = found(known, self._clock())
            return Chunk(record, (), known.tail, known.tail, is_end=True, is_closed=record.is_closed)
        record = await self._readable(name)
        return await self.chunk(name, record, place)

    async def _readable(self, name: Name) -> StreamRecord:
        """The record, by the quicker way for streams that do not expire by being left alone."""
        record = await self._store.record(name)
        if record is not None and record.ttl_seconds is not None:
            return found(await self.look(name, touches=True), self._clock())
        return found(StreamSnapshot(record), self._clock())

    async def chunk(self, name: Name, record: StreamRecord, place: int) -> Chunk:
        entries, is_end = await self._entries_to_end(name, record, place)
        payloads = [entry.payload for entry in entries]
        next_offset = entries[-1].sequence if entries else place
        if is_end:  # what a fork has from its source may end between two messages
            next_offset = max(next_offset, record.base)
        metrics.read_bytes.add(name.tenant, sum(map(len, payloads)))
        if not entries or (is_end and record.is_closed):
            # Where it ends must come from the stream itself: the reader may have asked from beyond it, and the record may be
            # newer than the data just read.
            known = await self._store.known(name)
            if known.record is not None and known.record.born == record.born:
                if not entries and known.tail < place:
                    next_offset = known.tail
                is_end = next_offset >= known.tail
                record = known.record
        is_closed = is_end and record.is_closed
        return Chunk(record, payloads, min(place, next_offset), next_offset, is_end, is_closed)

    async def _entries_to_end(self, name: Name, record: StreamRecord, place: int) -> tuple[list[Entry], bool]:
        """What fits a chunk. A replica that lacks what was there when this was asked for is asked again, for a moment: after that
        the reader is told that there is more, and comes back for it."""
        known = await self._store.known(name) if self._store.may_lag else None
        end = 0 if known is None or known.record is None or known.record.born != record.born else known.tail
        for _ in range(_LAG_TRIES):
            entries, is_end = await self.entries(name, record, place, CHUNK_MESSAGES_MAX, CHUNK_BYTES_MAX)
            if not is_end or max(entries[-1].sequence if entries else place, record.base) >= end:
                return entries, is_end
            await asyncio.sleep(_LAG_SECONDS)
        return entries, False

    async def entries(self, name: Name, record: StreamRecord, after: int, limit: int, bytes_max: int) -> tuple[list[Entry], bool]:
        """Messages after a sequence: first those that a fork has from others, then its own. And whether these were all."""
        entries: list[Entry] = []
        size = 0
        own = Segment(name.id, record.born, _FOREVER)
        for part in (*(record.origin.segments if record.origin else ()), own):
            while (start := max(after, part.born)) < part.until:
                count = min(limit - len(entries), part.until - start)  # its stream may have gone on far beyond this part
                page = await self._store.read(Name(name.tenant, part.stream), start, count, bytes_max - size)
                fitting = [entry for entry in page.entries if entry.sequence <= part.until]
                entries += fitting
                size += sum(len(entry.payload) for entry in fitting)
                after = fitting[-1].sequence if fitting else after
                is_done = page.is_end or len(fitting) < len(page.entries)
                if len(entries) >= limit or size >= bytes_max:
                    return entries, is_done and part is own
                if is_done:
                    break
        return entries, True

    def _touch(self, name: Name, record: StreamRecord, touched_at_ms: int) -> None:
        """Note that the stream was read, if it lives by that; not each time, but often enough."""
        if record.ttl_seconds is None:
            return
        if self._clock() - touched_at_ms >= min(_TOUCH_MS_MAX, record.ttl_seconds * 1000 // _TOUCH_SHARE):
            task = asyncio.create_task(self._note(name))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _note(self, name: Name) -> None:
        try:
            await self._store.touch(name)
        except PostroadError as problem:
            log.warning("read_not_noted", stream=name.id, code=problem.code)
