"""Lists of queues: filtered, sorted, in pages."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from postroad.api.queue_list import QueuePage, QueueQuery
from postroad.api.queues import QueueStats
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.identity import Caller
from postroad.kernel.names import escape
from postroad.queues.events import QueueSampled
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord
from postroad.queues.responses import queue_of
from postroad.queues.sample_history import LatestSamples
from postroad.queues.stats import QueueStatsReader

_SORTED_BY_STATS_MAX = 500
_OF_RECORDS = {"createdAt": "created_at_ms", "updatedAt": "updated_at_ms"}
_OF_STATS = {
    "ready": "ready",
    "leased": "leased",
    "overdue": "overdue",
    "delayed": "delayed",
    "dead": "dead",
    "oldestAgeMs": "oldest_age_ms",
    "waiting": "waiting",
    "inPerSecond": "in_per_second",
    "outPerSecond": "out_per_second",
}

Position = tuple[int, str]  # the value that is sorted by, and the token of the name


class QueueListing:
    def __init__(self, lifecycle: QueueLifecycle, stats: QueueStatsReader, samples: LatestSamples) -> None:
        self._lifecycle, self._stats, self._samples = lifecycle, stats, samples

    async def page(self, caller: Caller, query: QueueQuery) -> QueuePage:
        """Raises InvalidParameter for an invalid cursor, EngineUnavailable."""
        if query.sort == "name" and query.search is None and query.paused is None:
            return await self._plain_page(caller, query)
        records = [record for record in self._lifecycle.records(caller, query.prefix or "") if _matches(record, query)]
        field, is_descending = query.sort.removeprefix("-"), query.sort.startswith("-")
        stats: dict[str, QueueStats] = {}
        if field in _OF_STATS:
            stats = await self._read_stats(records) if len(records) <= _SORTED_BY_STATS_MAX else {}
        levels: Mapping[str, QueueStats | QueueSampled] = stats
        if field in _OF_STATS and not stats and records:  # too many to be read: by their samples, of the last seconds
            levels = await self._samples.of(caller.tenant)
        positions = {_position(record, field, levels.get(record.name)): record for record in records}
        order = sorted(positions, reverse=is_descending)
        if query.cursor is not None:
            after = _parse_cursor(query.cursor, field)
            order = [one for one in order if (one < after if is_descending else one > after)]
        shown = [positions[one] for one in order[: query.limit]]
        if query.stats and not stats:
            stats = await self._read_stats(shown)
        queues = [queue_of(record, stats.get(record.name) if query.stats else None) for record in shown]
        last = order[query.limit - 1] if len(order) > query.limit else None
        return QueuePage(items=queues, next_cursor=_cursor(last, shown[-1], field) if last else None, total=len(records))

    async def _plain_page(self, caller: Caller, query: QueueQuery) -> QueuePage:
        """A page in the order of the table, at the cost of that page."""
        prefix = query.prefix or ""
        records = list(itertools.islice(self._lifecycle.records(caller, prefix, query.cursor), query.limit + 1))
        shown = records[: query.limit]
        stats = await self._read_stats(shown) if query.stats else {}
        return QueuePage(
            items=[queue_of(record, stats.get(record.name)) for record in shown],
            next_cursor=shown[-1].name if len(records) > query.limit else None,
            total=self._lifecycle.count(caller, prefix),
        )

    async def _read_stats(self, records: Sequence[QueueRecord]) -> dict[str, QueueStats]:
        """Stats by name; those that cannot be read are missing."""
        found = await asyncio.gather(*map(self._stats.stats, records), return_exceptions=True)
        return {record.name: one for record, one in zip(records, found, strict=True) if isinstance(one, QueueStats)}


def _matches(record: QueueRecord, query: QueueQuery) -> bool:
    return (query.search is None or query.search in record.name) and (query.paused is None or record.is_paused == query.paused)


def _position(record: QueueRecord, field: str, stats: QueueStats | QueueSampled | None) -> Position:
    if field in _OF_RECORDS:
        return getattr(record, _OF_RECORDS[field]), escape(record.name)
    if field in _OF_STATS:
        value = None if stats is None else getattr(stats, _OF_STATS[field])
        return -1 if value is None else int(value * 10) if isinstance(value, float) else value, escape(record.name)
    return 0, escape(record.name)


def _cursor(last: Position, record: QueueRecord, field: str) -> str:
    return record.name if field == "name" else f"{last[0]}~{record.name}"


def _parse_cursor(cursor: str, field: str) -> Position:
    if field == "name":
        return 0, escape(cursor)
    value, _, name = cursor.partition("~")
    if not name or not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > 20:
        raise InvalidParameter("cursor: it is not one of a list with this order")
    return int(value), escape(name)
