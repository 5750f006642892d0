"""Reads reports page by page. A caller that is restricted to some queues or services gets the rows of these."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from postroad.api.insights import Batch, Report, ReportQuery, TimeQuery, Visibility
from postroad.insights.results import Results
from postroad.insights.rules import (
    SNAPSHOT,
    Key,
    Part,
    Position,
    Span,
    decode_cursor,
    encode_cursor,
    is_begun,
    is_in,
    parts,
    span,
)
from postroad.insights.store import ResultsStore
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Forbidden
from postroad.kernel.identity import Caller

_CONCURRENT_READS = 16
_PAGE_BYTES_MAX = 16 * 1024 * 1024  # of messages read for one page: a page that needs more ends early


class FoundPage(NamedTuple):
    """`computed_at` and `batch` are those of the newest results that were read. `dropped` counts the rows above the limit in the
    results that end on this page."""

    span: Span | None
    computed_at: datetime | None
    batch: Batch | None
    rows: list[Any]
    dropped: int
    cursor: str | None


class Insights:
    def __init__(self, store: ResultsStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def read(self, caller: Caller, report: Report[Any], query: ReportQuery) -> FoundPage:
        """A page of the report. A cursor continues the range of its first page.

        Raises InvalidParameter, EngineUnavailable, and Forbidden if the report covers the whole tenant and the caller is
        restricted to a part of it.
        """
        _check_visibility(caller, report)
        position = decode_cursor(query.cursor, has_time=not report.is_snapshot) if query.cursor else None
        asked = position.asked if position else self._span(query)
        page = _Page(_row_filter(caller, report, query), asked, position.after if position else None, query.limit)
        waiting: Iterator[Part] = iter((SNAPSHOT,)) if asked is None else parts(asked, page.after)
        while some := list(islice(waiting, _CONCURRENT_READS)):
            if page.add(some, await self._store.read(caller.tenant, report, some)):
                break
        return page.found()

    def _span(self, query: ReportQuery) -> Span | None:
        if not isinstance(query, TimeQuery):
            return None
        return span(_millis(query.since), _millis(query.until), query.grain, self._clock())


class _Page:
    """A page that is being filled."""

    def __init__(self, is_wanted: Callable[[Any], bool], asked: Span | None, after: Key | None, limit: int) -> None:
        self.after = after
        self._is_wanted, self._asked, self._limit = is_wanted, asked, limit
        self._rows: list[Any] = []
        self._last: Key | None = None  # of the last row, or the start of the next part
        self._newest: Results = Results()
        self._dropped = self._bytes = 0
        self._has_more = False

    def add(self, some: Sequence[Part], read: Sequence[tuple[Results, int]]) -> bool:
        """Add the rows of these parts. Returns True when the page is complete."""
        for part, (results, size) in zip(some, read, strict=True):
            if self._bytes > _PAGE_BYTES_MAX:
                self._last, self._has_more = (part.since,), True
                return True
            self._bytes += size
            if results.computed_at and (self._newest.computed_at is None or results.computed_at > self._newest.computed_at):
                self._newest = results
            count = len(self._rows)
            if not self._add_rows(part, results):
                self._has_more = True
                return True
            if len(self._rows) > count or not is_begun(part, self.after):  # else the previous page had the end of the part
                self._dropped += results.dropped
        return False

    def _add_rows(self, part: Part, results: Results) -> bool:
        """Returns False if the page was full before all wanted rows were added."""
        for key, row in results.rows:
            if self.after is not None and key <= self.after:
                continue
            if not self._is_wanted(row) or not (self._asked is None or is_in(key, self._asked, part)):
                continue
            if len(self._rows) == self._limit:
                return False
            self._rows.append(row)
            self._last = key
        return True

    def found(self) -> FoundPage:
        cursor = encode_cursor(Position(self._asked, self._last)) if self._has_more and self._last else None
        return FoundPage(self._asked, self._newest.computed_at, self._newest.batch, self._rows, self._dropped, cursor)


def _check_visibility(caller: Caller, report: Report[Any]) -> None:
    if report.visibility is Visibility.TENANT and caller.is_partial:
        raise Forbidden(f"the report {report.name!r} covers the whole tenant, and the key is restricted to a part of it")


def _row_filter(caller: Caller, report: Report[Any], query: ReportQuery) -> Callable[[Any], bool]:
    """By the queue or service of a row, which is both the name of its column and the kind of the resource."""
    is_restricted, kind = caller.is_partial, report.visibility.value
    wanted = getattr(query, kind, None)

    def is_wanted(row: Any) -> bool:
        name = getattr(row, kind, None)
        return (wanted is None or name == wanted) and (not is_restricted or name is None or caller.may_use(kind, name))

    return is_wanted


def _millis(moment: datetime | None) -> int | None:
    return None if moment is None else max(0, int(moment.timestamp() * 1000))
