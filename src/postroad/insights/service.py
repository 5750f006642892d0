"""What a user can do with results: read them, page by page. A caller that is kept to some queues sees the rows of these."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from postroad.insights.rows import Batch, Report, Results
from postroad.insights.rules import Grain, Key, Part, Place, Span, cursor_place, cursor_text, is_begun, is_in, parts, span
from postroad.insights.store import ResultsStore
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Forbidden
from postroad.kernel.identity import Caller

_AT_ONCE = 16
_BYTES_MAX = 16 * 1024 * 1024  # of messages looked at for one page: a page that would take more ends early
_WHOLE_TENANT = frozenset({Report.USAGE, Report.SESSIONS})
_NOW = Part("now", "all", 0, 3)  # the keys of its rows begin with how bad it is, of three


class Found(NamedTuple):
    """A page. `computed_at` and `batch` are those of the newest results that were looked at. `dropped` counts rows that there
    would be, had they not been too many, in the results that this page has the end of."""

    asked: Span | None
    computed_at: datetime | None
    batch: Batch | None
    rows: list[Any]
    dropped: int
    cursor: str | None


class Insights:
    """All of these raise EngineUnavailable."""

    def __init__(self, store: ResultsStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def over_time(
        self,
        caller: Caller,
        report: Report,
        *,
        since: int | None,
        until: int | None,
        grain: Grain | None,
        queue: str | None,
        limit: int,
        cursor: str | None,
    ) -> Found:
        """Oldest first. A cursor goes on with the range that its list began with, whatever the time is by then.

        Raises InvalidParameter, or Forbidden where a report is about the whole tenant and the caller is kept to a part of it.
        """
        _check_may(caller, report)
        place = cursor_place(cursor, has_time=True) if cursor else None
        asked = place.asked if place and place.asked else span(since, until, grain, self._clock())
        page = _Page(_wants(caller, queue), asked, place.after if place else None, limit)
        waiting = parts(asked, page.after)
        while some := list(islice(waiting, _AT_ONCE)):
            read = await self._store.read(caller.tenant, report, [(part.day, part.name) for part in some])
            if page.add(some, read):
                break
        return page.found()

    async def health(self, caller: Caller, *, queue: str | None, limit: int, cursor: str | None) -> Found:
        """As it is now, the worst first. Raises InvalidParameter."""
        place = cursor_place(cursor, has_time=False) if cursor else None
        page = _Page(_wants(caller, queue), None, place.after if place else None, limit)
        page.add([_NOW], await self._store.read(caller.tenant, Report.HEALTH, [(_NOW.day, _NOW.name)]))
        return page.found()


class _Page:
    """A page in the making."""

    def __init__(self, wants: Callable[[Any], bool], asked: Span | None, after: Key | None, limit: int) -> None:
        self.after = after
        self._wants, self._asked, self._limit = wants, asked, limit
        self._rows: list[Any] = []
        self._last: Key | None = None  # of a row that is in, or of the part that is next
        self._newest: Results = Results()
        self._dropped = self._bytes = 0
        self._has_more = False

    def add(self, some: Sequence[Part], read: Sequence[tuple[Results, int]]) -> bool:
        """Whether that is enough."""
        for part, (results, size) in zip(some, read, strict=True):
            if self._bytes > _BYTES_MAX:
                self._last, self._has_more = (part.since,), True
                return True
            self._bytes += size
            if results.computed_at and (self._newest.computed_at is None or results.computed_at > self._newest.computed_at):
                self._newest = results
            count = len(self._rows)
            if not self._add_rows(part, results):
                self._has_more = True
                return True
            if len(self._rows) > count or not is_begun(part, self.after):  # else the page before had the end of it
                self._dropped += results.dropped
        return False

    def _add_rows(self, part: Part, results: Results) -> bool:
        """Whether there was room for all that are wanted."""
        for key, row in results.rows:
            if self.after is not None and key <= self.after:
                continue
            if not self._wants(row) or not (self._asked is None or is_in(key, self._asked, part)):
                continue
            if len(self._rows) == self._limit:
                return False
            self._rows.append(row)
            self._last = key
        return True

    def found(self) -> Found:
        cursor = cursor_text(Place(self._asked, self._last)) if self._has_more and self._last else None
        return Found(self._asked, self._newest.computed_at, self._newest.batch, self._rows, self._dropped, cursor)


def _check_may(caller: Caller, report: Report) -> None:
    if report in _WHOLE_TENANT and (caller.allowed is not None or caller.only_stream is not None):
        raise Forbidden(f"the report {report.value!r} is about the whole tenant, and the key is kept to a part of it")


def _wants(caller: Caller, queue: str | None) -> Callable[[Any], bool]:
    is_free = caller.allowed is None and caller.only_stream is None

    def wants(row: Any) -> bool:
        name = row.of_queue
        return (queue is None or name == queue) and (is_free or name is None or caller.may_use("queue", name))

    return wants
