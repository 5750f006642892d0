"""The stream `INSIGHTS`, and reading results from it through a cache."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from postroad.api.insights import Report
from postroad.contracts.reports import REPORT_RESULTS
from postroad.insights import metrics
from postroad.insights.results import Results, read_results
from postroad.insights.rules import Part
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream

STREAM = REPORT_RESULTS.stream
CACHE_BYTES_MAX = 8 * 1024 * 1024
_LOGGED_MAX = 3
_SECOND_NS = 1_000_000_000

log = structlog.get_logger("postroad.insights")


def insights_stream(replicas: int, bytes_max: int = -1) -> StreamSpec:
    """Keeps the latest message of each subject. A repeated batch has the same message ids, so that it is not stored twice."""
    return StreamSpec(
        STREAM,
        (REPORT_RESULTS.subjects,),
        {
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_age": 400 * 86_400 * _SECOND_NS,
            "max_bytes": bytes_max,
            "duplicate_window": 120 * _SECOND_NS,
        },
    )


class _Cached(NamedTuple):
    sequence: int
    size: int
    results: Results


class ResultsStore:
    """Reads results by subject. The engine is queried each time, so that a newer batch is visible at once; the cache avoids
    decoding a message whose sequence has not changed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._cached_bytes = 0

    async def read(self, tenant: str, report: Report[Any], parts: Sequence[Part]) -> list[tuple[Results, int]]:
        """The results of each part, and their size. The parts are read concurrently: pass few. Raises EngineUnavailable."""
        return await asyncio.gather(*(self._read(tenant, report, part) for part in parts))

    async def _read(self, tenant: str, report: Report[Any], part: Part) -> tuple[Results, int]:
        subject = REPORT_RESULTS.subject_of(tenant=tenant, report=report.name, day=part.day, part=part.name)
        entry = await stream_reader.last(self._connection, STREAM, subject)
        if entry is None:
            return Results(), 0
        cached = self._cache.get(subject)
        if cached is None or cached.sequence != entry.sequence:
            results = read_results(entry.payload, report, tenant)
            if results.unreadable:
                metrics.unreadable.inc()
                log.error(
                    "result_unreadable", subject=subject, sequence=entry.sequence, problems=results.unreadable[:_LOGGED_MAX]
                )
            cached = _Cached(entry.sequence, len(entry.payload), results)
            self._store(subject, cached)
        else:
            self._cache.move_to_end(subject)
        return cached.results, cached.size

    def _store(self, subject: str, cached: _Cached) -> None:
        before = self._cache.pop(subject, None)
        self._cached_bytes += cached.size - (before.size if before else 0)
        self._cache[subject] = cached
        while self._cached_bytes > CACHE_BYTES_MAX:
            self._cached_bytes -= self._cache.popitem(last=False)[1].size

    async def delete_all(self, tenant: str) -> None:
        """Delete the results of a deleted tenant."""
        await purge_stream(self._connection, STREAM, REPORT_RESULTS.subjects_of(tenant))
