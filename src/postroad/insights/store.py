"""Where results lie: the stream, its subjects, and reading them with what was read before at hand."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from postroad.insights import metrics
from postroad.insights.rows import Report, Results, read_results
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream

STREAM = "INSIGHTS"
KEPT_BYTES_MAX = 8 * 1024 * 1024
_LOGGED_MAX = 3
_SECOND_NS = 1_000_000_000

log = structlog.get_logger("postroad.insights")


def insights_stream(replicas: int) -> StreamSpec:
    """The latest of each subject. A retried batch comes with the ids that it came with before, so nothing of it counts twice."""
    return StreamSpec(
        STREAM,
        ("insight.>",),
        {
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_age": 400 * 86_400 * _SECOND_NS,
            "duplicate_window": 120 * _SECOND_NS,
        },
    )


def subject_of(tenant: str, report: str, day: str, part: str) -> str:
    return f"insight.{tenant}.{report}.{day}.{part}"


class _Kept(NamedTuple):
    sequence: int
    size: int
    results: Results


class ResultsStore:
    """Reads by subject. The engine is asked each time, so that a newer batch is seen at once; what is kept spares reading the
    rows of a message anew whose sequence is still the same."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._kept_bytes = 0

    async def read(self, tenant: str, report: Report, where: Sequence[tuple[str, str]]) -> list[tuple[Results, int]]:
        """The results of each (day, part), and how large they are: all at once, so ask for few. Raises EngineUnavailable."""
        return await asyncio.gather(*(self._read(tenant, report, day, part) for day, part in where))

    async def _read(self, tenant: str, report: Report, day: str, part: str) -> tuple[Results, int]:
        subject = subject_of(tenant, report, day, part)
        entry = await stream_reader.last(self._connection, STREAM, subject)
        if entry is None:
            return Results(), 0
        kept = self._kept.get(subject)
        if kept is None or kept.sequence != entry.sequence:
            results = read_results(entry.payload, report, tenant)
            if results.unreadable:
                metrics.unreadable.inc()
                log.error(
                    "result_unreadable", subject=subject, sequence=entry.sequence, problems=results.unreadable[:_LOGGED_MAX]
                )
            kept = _Kept(entry.sequence, len(entry.payload), results)
            self._keep(subject, kept)
        else:
            self._kept.move_to_end(subject)
        return kept.results, kept.size

    def _keep(self, subject: str, kept: _Kept) -> None:
        before = self._kept.pop(subject, None)
        self._kept_bytes += kept.size - (before.size if before else 0)
        self._kept[subject] = kept
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size

    async def delete_all(self, tenant: str) -> None:
        """All results of a tenant that goes."""
        await purge_stream(self._connection, STREAM, f"insight.{tenant}.>")
