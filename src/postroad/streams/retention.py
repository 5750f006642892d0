"""Retention of streams: drops the oldest appends of streams with a limit of age, bytes or number.

Trimming first stores a record with the new start, so that no reader sees a gap, and then removes the data; after a crash in
between, the next round removes it. The producers are saved before, since they are rebuilt from the data. A stream with forks is
not trimmed: they read its data by reference.
"""

from collections.abc import AsyncIterator

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import subjects_of
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store, unescape
from postroad.streams import metrics
from postroad.streams.records import Retention, RetentionProgress, State, StreamRecord, decode_progress, encode_record
from postroad.streams.rules import StreamSnapshot
from postroad.streams.store import LAST_ONLY, StreamName, StreamStore, precondition, trim_message

_PAGE = 256

log = structlog.get_logger("postroad.streams")


def marker_message(name: StreamName, progress: RetentionProgress | None = None) -> PendingMessage:
    """Marks a stream with retention, and has the number of its bytes as far as they were counted."""
    return PendingMessage(name.retention, encode_record(progress or RetentionProgress()), new_id(), LAST_ONLY)


class RetentionEnforcer:
    def __init__(self, store: StreamStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def enforce(self, tenant: str) -> int:
        """Trim the streams of a tenant that have retention; returns the number of dropped appends."""
        if not await self._store.exists(tenant):
            return 0
        dropped = 0
        for subject in await subjects_of(self._store.connection, streams_store(tenant), f"r.{tenant}.*"):
            name = StreamName(tenant, unescape(subject.split(".")[2]))
            try:
                dropped += await self._enforce(name)
            except Conflict:
                continue  # a concurrent change of the stream; the next round tries again
            except PostroadError as problem:
                log.warning("stream_not_trimmed", tenant=tenant, stream=name.id, code=problem.code)
        return dropped

    async def _enforce(self, name: StreamName) -> int:
        snapshot = await self._store.snapshot(name)
        record = snapshot.record
        if record is None or record.state is not State.LIVE or record.retention is None or record.forks:
            return 0
        cut, progress = await self._cut(name, snapshot, record, record.retention)
        if cut > record.trimmed_to:
            await self._trim(name, snapshot, record, cut, progress)
        elif progress is not None:
            await self._store.committer(name).append(marker_message(name, progress), uses_reserve=True)
        first = await self._store.read(name, record.incarnation, 1, 1)
        if not first.entries or first.entries[0].sequence > cut:
            return 0
        dropped = await self._store.purge_subject(name.tenant, name.data, cut + 1)
        metrics.trimmed.add(name.tenant, dropped)
        return dropped

    async def _trim(
        self, name: StreamName, snapshot: StreamSnapshot, record: StreamRecord, cut: int, progress: RetentionProgress | None
    ) -> None:
        """Raises Conflict."""
        if record.guarded_from is not None:
            await self._store.save_checkpoint(name, await self._store.snapshot(name, with_producers=True))
        trimmed = msgspec.structs.replace(record, trimmed_to=cut, used_at_ms=snapshot.used_at_ms)
        messages = [trim_message(name, trimmed, precondition(name.record, snapshot.record_at))]
        if progress is not None:
            messages.append(marker_message(name, progress))
        await self._store.committer(name).append_together(messages, uses_reserve=True)

    # The new start

    async def _cut(
        self, name: StreamName, snapshot: StreamSnapshot, record: StreamRecord, limits: Retention
    ) -> tuple[int, RetentionProgress | None]:
        """Sequence of the last append to drop; and the counted bytes, if they have changed."""
        start = max(record.trimmed_to, record.incarnation)
        first = await self._store.read(name, start, 1, 1)
        cut = record.trimmed_to
        if not first.entries:
            return cut, None
        if limits.max_age_seconds is not None:
            cut = max(cut, await self._cut_by_age(name, snapshot, limits.max_age_seconds))
        if limits.max_count is not None and 1 + first.remaining > limits.max_count:
            cut = max(cut, await self._cut_by_count(name, first.entries[0].sequence, snapshot.tail, limits.max_count))
        if limits.max_bytes is None:
            return cut, None
        return await self._cut_by_bytes(name, record, limits.max_bytes, cut)

    async def _cut_by_age(self, name: StreamName, snapshot: StreamSnapshot, seconds: int) -> int:
        since = self._clock() - seconds * 1000
        page = await stream_reader.read_since(self._store.connection, name.store, name.data, since, 1)
        if not page.entries:
            return snapshot.tail
        return await self._last_before(name, page.entries[0].sequence)

    async def _cut_by_count(self, name: StreamName, first: int, tail: int, count: int) -> int:
        """By bisection: a read reports how many appends follow a sequence."""
        low, high = first, tail  # the appends from `low` on are too many, those after `high` are not
        while low < high:
            middle = (low + high + 1) // 2
            page = await self._store.read(name, middle - 1, 1, 1)
            if len(page.entries) + page.remaining > count:
                low = middle
            else:
                high = middle - 1
        return await self._last_before(name, low + 1)

    async def _last_before(self, name: StreamName, sequence: int) -> int:
        entry = await stream_reader.last_before(self._store.connection, name.store, name.data, sequence)
        return 0 if entry is None else entry.sequence

    async def _cut_by_bytes(
        self, name: StreamName, record: StreamRecord, bytes_max: int, cut: int
    ) -> tuple[int, RetentionProgress | None]:
        """Each append is read twice: when its bytes are counted, and when they are subtracted. The newest one is kept."""
        saved = await stream_reader.last(self._store.connection, name.store, name.retention)
        before = decode_progress(saved.payload) if saved is not None else RetentionProgress()
        progress = before
        if progress.incarnation != record.incarnation or progress.at < record.trimmed_to:
            start = max(record.trimmed_to, record.incarnation)
            progress = RetentionProgress(incarnation=record.incarnation, start=start, at=start)
        async for sizes in self._sizes(name, progress.at):
            total = progress.bytes + sum(size for _, size in sizes)
            progress = msgspec.structs.replace(progress, at=sizes[-1][0], bytes=total)
        async for sizes in self._sizes(name, progress.start):
            for sequence, size in sizes:
                if sequence > cut and (progress.bytes <= bytes_max or sequence >= progress.at):
                    return cut, progress if progress != before else None
                cut = max(cut, sequence)
                progress = msgspec.structs.replace(progress, start=sequence, bytes=progress.bytes - size)
        return cut, progress if progress != before else None

    async def _sizes(self, name: StreamName, after: int) -> AsyncIterator[list[tuple[int, int]]]:
        while True:
            page = await self._store.read(name, after, _PAGE, 4 * 1024 * 1024)
            if page.entries:
                yield [(entry.sequence, len(entry.payload)) for entry in page.entries]
                after = page.entries[-1].sequence
            if page.is_end:
                return
