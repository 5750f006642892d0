"""Fetches the rows of a report from the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from postroad.client import BacklogRow, DeadLettersRow, HealthRow, LatencyRow, Postroad, SessionsRow, UsageRow
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
    """Rows of a tenant's day. `latency_day` has percentiles of the whole day; `forbidden` names reports that are unreadable."""

    tenant: str
    usage: list[UsageRow] = field(default_factory=list)
    latency: list[LatencyRow] = field(default_factory=list)
    latency_day: list[LatencyRow] = field(default_factory=list)
    backlog: list[BacklogRow] = field(default_factory=list)
    dead_letters: list[DeadLettersRow] = field(default_factory=list)
    sessions: list[SessionsRow] = field(default_factory=list)
    health: list[HealthRow] = field(default_factory=list)
    computed: dict[str, Computed] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        rows = (self.usage, self.latency, self.backlog, self.dead_letters, self.sessions, self.health)
        return not any(rows)


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
    insights = client.insights
    computed: dict[str, Computed] = {}
    forbidden: set[str] = set()

    def rows(report: str, fetch_page: Callable[..., Any], **options: Any) -> list[Any]:
        found: list[Any] = []
        cursor = None
        try:
            while True:
                page = fetch_page(page_size=_PAGE_SIZE, cursor=cursor, **options)
                found += page.items
                batch = None if page.batch is None else str(page.batch)
                computed[report] = Computed(page.computed_at, batch, page.dropped)
                if (cursor := page.next_cursor) is None:
                    return found
        except Forbidden:
            forbidden.add(report)
            return []

    options = {**_range(day), "grain": grain}
    return TenantData(
        tenant=tenant,
        usage=rows("usage", insights.usage_page, **options),
        latency=rows("latency", insights.latency_page, **options),
        latency_day=rows("latency of the day", insights.latency_page, **{**options, "grain": "day"}),
        backlog=rows("backlog", insights.backlog_page, **options),
        dead_letters=rows("dead letters", insights.dead_letters_page, **options),
        sessions=rows("sessions", insights.sessions_page, **options),
        health=rows("health", insights.health_page),
        computed=computed,
        forbidden=frozenset(forbidden),
    )


def times_of(data: TenantData) -> set[int]:
    """The times that have data, in milliseconds since 1970."""
    rows: Sequence[Any] = [*data.usage, *data.latency, *data.backlog, *data.dead_letters, *data.sessions]
    return {millis(row.time) for row in rows}
