"""Lists of streams, in the order of their ids, with size and last activity."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroad.api.pages import Page
from postroad.jetstream import stream_reader
from postroad.jetstream.management import subject_messages
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import SESSION_PREFIX, streams_store
from postroad.streams.directory import StreamDirectory
from postroad.streams.directory_pages import after_id, prefix_end
from postroad.streams.rules import StreamSnapshot, existing_record
from postroad.streams.store import StreamName, StreamStore, snapshot_of

_CHUNK = 100  # streams of one read
_EXAMINED_MAX = 5000  # ids for one page, of which few may be shown
_COUNTS_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream, and the number of its appends."""

    name: StreamName
    snapshot: StreamSnapshot
    appends: int


class StreamListing:
    def __init__(self, store: StreamStore, directory: StreamDirectory, clock: Clock) -> None:
        self._store, self._directory, self._clock = store, directory, clock

    async def page(
        self, tenant: str, prefix: str, after: str | None, limit: int, is_shown: Callable[[str], bool]
    ) -> Page[ListedStream]:
        """Streams whose ids begin with the prefix, after the id `after`. Those of sessions are left out, unless the prefix asks
        for them. A page may have fewer than `limit` and still a cursor."""
        if not await self._store.exists(tenant):
            return Page(items=[])
        low = max(prefix, after_id(after) if after is not None else "")
        end = prefix_end(prefix)
        has_sessions = prefix.startswith(SESSION_PREFIX)
        found: list[ListedStream] = []
        examined = 0
        while examined < _EXAMINED_MAX:
            high = end
            if not has_sessions and low < SESSION_PREFIX:
                high = SESSION_PREFIX if end is None else min(end, SESSION_PREFIX)
            elif not has_sessions and low.startswith(SESSION_PREFIX):
                low = prefix_end(SESSION_PREFIX) or low
            ids = await self._directory.ids(tenant, low, high, _CHUNK)
            examined += len(ids)
            for one in await self._describe(tenant, [stream for stream in ids if is_shown(stream)]):
                found.append(one)
                if len(found) > limit:
                    return Page(items=found[:limit], next_cursor=found[limit - 1].name.id)
            if len(ids) == _CHUNK:
                low = after_id(ids[-1])
            elif high != end:  # behind the streams of sessions there may be more
                low = prefix_end(SESSION_PREFIX) or low
            else:
                return Page(items=found)
        return Page(items=found, next_cursor=low.rstrip("\0"))

    async def _describe(self, tenant: str, ids: Sequence[str]) -> list[ListedStream]:
        """The streams that exist, in order."""
        if not ids:
            return []
        names = [StreamName(tenant, stream) for stream in ids]
        subjects = [subject for name in names for subject in (name.data_and_record, name.last_read)]
        entries = await stream_reader.newest(self._store.connection, streams_store(tenant), subjects)
        by_token: dict[str, list[Entry]] = {}
        for entry in entries:
            by_token.setdefault(entry.subject.split(".")[2], []).append(entry)
        snapshots = [snapshot_of(name, by_token.get(name.record.split(".")[2], [])) for name in names]
        now = self._clock()
        found = [(name, one) for name, one in zip(names, snapshots, strict=True) if _exists(one, now)]
        slots = asyncio.Semaphore(_COUNTS_CONCURRENCY)

        async def count(name: StreamName, snapshot: StreamSnapshot) -> int:
            if snapshot.record is None or snapshot.tail <= snapshot.record.base:
                return 0
            async with slots:
                return await subject_messages(self._store.connection, name.store, name.data)

        counts = await asyncio.gather(*(count(name, one) for name, one in found))
        return [ListedStream(name, one, size) for (name, one), size in zip(found, counts, strict=True)]


def _exists(snapshot: StreamSnapshot, now_ms: int) -> bool:
    try:
        existing_record(snapshot, now_ms)
    except PostroadError:
        return False
    return True
