"""Asking the server for all that a report shows. The only part of it that waits for anybody."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from postroad.client import BacklogRow, DeadLettersRow, HealthRow, LatencyRow, Postroad, SessionsRow, UsageRow
from postroad.client.errors import Forbidden
from postroad.report.formatting import HOUR, MINUTE, millis

GrainName = Literal["minute", "hour"]

_PAGE_SIZE = 1000
_MINUTES_SHOWN_MAX = 3  # hours with something in them: up to so many are shown by the minute


@dataclass(frozen=True, slots=True)
class Computed:
    """When a report was computed, by which batch, and how many rows are missing. None: it was not, so far."""

    at: str | None = None
    batch: str | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TenantData:
    """A tenant's day. What the key may not see is in `forbidden`; `latency_day` has the percentiles of the whole day."""

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
    """All that the page is made of."""

    day: date
    grain: GrainName
    tenants: tuple[TenantData, ...]
    url: str
    made_at: datetime

    @property
    def step(self) -> int:
        return MINUTE if self.grain == "minute" else HOUR


def gather(clients: Sequence[tuple[str, Postroad]], day: date, grain: GrainName | None, url: str, now: datetime) -> DayData:
    """Of all tenants, in one grain: by the minute if only a few hours of the day have anything, else by the hour."""
    chosen = grain or _fitting([client for _, client in clients], day)
    return DayData(day, chosen, tuple(_tenant(name, client, day, chosen) for name, client in clients), url, now)


def _fitting(clients: Sequence[Postroad], day: date) -> GrainName:
    hours: set[str] = set()
    for client in clients:
        hours |= {row.time for row in client.insights.latency(grain="hour", **_range(day), page_size=_PAGE_SIZE)}
        hours |= {row.time for row in client.insights.backlog(grain="hour", **_range(day), page_size=_PAGE_SIZE)}
    return "minute" if len(hours) <= _MINUTES_SHOWN_MAX else "hour"


def _range(day: date) -> dict[str, Any]:
    since = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return {"since": since, "until": since + timedelta(days=1)}


def _tenant(tenant: str, client: Postroad, day: date, grain: GrainName) -> TenantData:
    asked = client.insights
    computed: dict[str, Computed] = {}
    forbidden: set[str] = set()

    def rows(report: str, page_of: Callable[..., Any], **options: Any) -> list[Any]:
        found: list[Any] = []
        cursor = None
        try:
            while True:
                page = page_of(page_size=_PAGE_SIZE, cursor=cursor, **options)
                found += page.items
                batch = None if page.batch is None else str(page.batch)
                computed[report] = Computed(page.computed_at, batch, page.dropped)
                if (cursor := page.next_cursor) is None:
                    return found
        except Forbidden:
            forbidden.add(report)
            return []

    fine = {**_range(day), "grain": grain}
    return TenantData(
        tenant=tenant,
        usage=rows("usage", asked.usage_page, **fine),
        latency=rows("latency", asked.latency_page, **fine),
        latency_day=rows("latency of the day", asked.latency_page, **{**fine, "grain": "day"}),
        backlog=rows("backlog", asked.backlog_page, **fine),
        dead_letters=rows("dead letters", asked.dead_letters_page, **fine),
        sessions=rows("sessions", asked.sessions_page, **fine),
        health=rows("health", asked.health_page),
        computed=computed,
        forbidden=frozenset(forbidden),
    )


def moments_of(data: TenantData) -> set[int]:
    """The moments that have something."""
    rows: Sequence[Any] = [*data.usage, *data.latency, *data.backlog, *data.dead_letters, *data.sessions]
    return {millis(row.time) for row in rows}
