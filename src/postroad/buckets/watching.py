"""Watches of a bucket: its current values, then each change, as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from postroad.buckets import metrics, rules
from postroad.buckets.records import BucketRecord, StoredEntry, encode_entry, entry_of, read_entry
from postroad.buckets.values import BucketValues
from postroad.http.sse import HEARTBEAT_SECONDS, frame, id_frame
from postroad.jetstream.connection import Connection
from postroad.jetstream.shared_tail import SharedTails
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source
from postroad.kernel.clock import Clock

_PAGE_ENTRIES = 500


class BucketWatches:
    """All watches of a bucket in this process share one tail."""

    def __init__(self, connection: Connection, values: BucketValues, clock: Clock) -> None:
        self._values, self._clock = values, clock
        self._tails: SharedTails[Source, Entry] = SharedTails(
            connection, lambda source: source, lambda _source: lambda entry: entry
        )

    async def frames(self, record: BucketRecord, prefix: str, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
        """Events from the current values on, or after an event. An id alone, without data, is a heartbeat: it moves the position
        of a client that reconnects. Raises InvalidParameter, BucketNotFound, EngineUnavailable."""
        metrics.watchers.inc()
        try:
            end = (await self._values.stats(record)).last_revision
            after = self._resumed(record, last_event_id, end)
            if after is None and last_event_id is not None:
                yield frame(b"{}", event="reset", event_id=rules.event_id(0, self._clock()))
            async with aclosing(self._stored(record, prefix, after, end)) as stored:
                async for entry in stored:
                    yield _frame(entry)
            yield frame(b"{}", event="ready", event_id=rules.event_id(end, self._clock()))
            async with aclosing(self._live(record, prefix, end)) as live:
                async for event in live:
                    yield event
        finally:
            metrics.watchers.dec()

    def _resumed(self, record: BucketRecord, last_event_id: str | None, end: int) -> int | None:
        """The revision to resume after; None without one, or if changes since then may have left no trace."""
        if last_event_id is None:
            return None
        revision, at_ms = rules.parse_event_id(last_event_id)
        can_resume = rules.can_resume(
            at_ms,
            record.created_at_ms,
            self._clock(),
            marker_seconds=record.marker_seconds,
            ttl_seconds=record.settings.ttl_seconds,
        )
        return revision if can_resume and revision <= end else None

    async def _stored(self, record: BucketRecord, prefix: str, after: int | None, end: int) -> AsyncGenerator[StoredEntry, None]:
        """Up to the revision `end`: the changes after a revision, or the current values.

        What is written meanwhile has later revisions. It may be of a key whose value was not read any more, or was read: so it
        is left to the live part, in which nothing is missing.
        """
        following: int | None = (after or 0) + 1
        while following is not None and following <= end:
            if after is None:
                found = await self._values.current(record, prefix, following, _PAGE_ENTRIES)
            else:
                found = await self._values.changes(record, following, end, _PAGE_ENTRIES)
            for entry in found.entries:
                if entry.revision <= end and entry.key.startswith(prefix):
                    yield entry
            following = found.next_revision

    async def _live(self, record: BucketRecord, prefix: str, position: int) -> AsyncGenerator[bytes, None]:
        source = Source(record.stream, f"{record.subject}>", is_only_subject=True)
        async with aclosing(self._tails.follow(source, position)) as entries:
            coming: asyncio.Future[Entry] | None = None
            try:
                while True:
                    coming = coming or asyncio.ensure_future(anext(entries))
                    await asyncio.wait({coming}, timeout=HEARTBEAT_SECONDS)
                    if not coming.done():
                        yield id_frame(rules.event_id(position, self._clock()))
                        continue
                    entry = read_entry(record, coming.result())
                    coming = None
                    position = entry.revision
                    if entry.key.startswith(prefix) and rules.is_key(entry.key):
                        yield _frame(entry)
            finally:
                if coming is not None:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)


def _frame(entry: StoredEntry) -> bytes:
    data = encode_entry(entry_of(entry, with_value=True))
    return frame(data, event=entry.operation, event_id=rules.event_id(entry.revision, entry.at_ms))
