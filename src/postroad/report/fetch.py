"""Fetches the rows of a report from the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from postroad.api.insights import Report
from postroad.api.reports import reports
from postroad.api.reports.latency import REPORT as LATENCY
from postroad.client import LatencyRow, Postroad
from postroad.client.errors import Forbidden
from postroad.report.formatting import HOUR, MINUTE, millis

GrainName = Literal["minute", "hour"]

_PAGE_SIZE = 1000
_MINUTE_HOURS_MAX = 3  # up to this many hours with data are shown per minute


@dataclass(frozen=True, slots=True)
class Computed:
    """Time and batch that computed a report (None: not computed yet), and the number of rows that were dropped."""

    at: str | None = None
    batch: str | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TenantData:
    """A tenant's day: rows by the name of their report. `latency_day` has percentiles of the whole day; `forbidden` names
    reports that the key cannot read."""

    tenant: str
    rows: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    latency_day: Sequence[LatencyRow] = ()
    computed: Mapping[str, Computed] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()

    def __getitem__(self, report: str) -> Sequence[Any]:
        return self.rows.get(report, ())

    @property
    def is_empty(self) -> bool:
        return not any(self.rows.values())


@dataclass(frozen=True, slots=True)
class DayData:
    """Data of a page."""

    day: date
    grain: GrainName
    tenants: tuple[TenantData, ...]
    url: str
    made_at: datetime

    @property
    def step(self) -> int:
        return MINUTE if self.grain == "minute" else HOUR


def fetch_day(clients: Sequence[tuple[str, Postroad]], day: date, grain: GrainName | None, url: str, now: datetime) -> DayData:
    """Fetch the reports of all tenants in one grain: minutes if only a few hours of the day have data, else hours."""
    chosen = grain or _choose_grain([client for _, client in clients], day)
    return DayData(day, chosen, tuple(_fetch_tenant(name, client, day, chosen) for name, client in clients), url, now)


def _choose_grain(clients: Sequence[Postroad], day: date) -> GrainName:
    hours: set[str] = set()
    for client in clients:
        hours |= {row.time for row in client.insights.latency(grain="hour", **_range(day), page_size=_PAGE_SIZE)}
        hours |= {row.time for row in client.insights.backlog(grain="hour", **_range(day), page_size=_PAGE_SIZE)}
    return "minute" if len(hours) <= _MINUTE_HOURS_MAX else "hour"


def _range(day: date) -> dict[str, Any]:
    since = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return {"since": since, "until": since + timedelta(days=1)}


def _fetch_tenant(tenant: str, client: Postroad, day: date, grain: GrainName) -> TenantData:
    computed: dict[str, Computed] = {}
    forbidden: set[str] = set()

    def rows(report: Report[Any], name: str, grain: str) -> list[Any]:
        options = {} if report.is_snapshot else {**_range(day), "grain": grain}
        found: list[Any] = []
        cursor = None
        try:
            while True:
                page = getattr(client.insights, f"{report.identifier}_page")(page_size=_PAGE_SIZE, cursor=cursor, **options)
                found += page.items
                batch = None if page.batch is None else str(page.batch)
                computed[name] = Computed(page.computed_at, batch, page.dropped)
                if (cursor := page.next_cursor) is None:
                    return found
        except Forbidden:
            forbidden.add(name)
            return []

    return TenantData(
        tenant=tenant,
        rows={report.name: rows(report, report.name, grain) for report in reports()},
        latency_day=rows(LATENCY, "latency of the day", "day"),
        computed=computed,
        forbidden=frozenset(forbidden),
    )


def times_of(data: TenantData) -> set[int]:
    """The times that have data, in milliseconds since 1970."""
    return {millis(row.time) for rows in data.rows.values() for row in rows if hasattr(row, "time")}
