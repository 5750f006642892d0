"""The whole page. It is self-contained: it has no address to fetch, and its content security policy forbids fetching."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from postroad.api.insights import Report
from postroad.api.reports import reports
from postroad.report.charts import Frame
from postroad.report.command_sections import (
    commands_section,
    fairness_section,
    limits_section,
    skew_section,
    telemetry_section,
)
from postroad.report.fetch import DayData, TenantData, times_of
from postroad.report.formatting import DAY, MINUTE, number, percent, size
from postroad.report.html import details, empty, escaped, section, table, tiles
from postroad.report.sections import (
    REDRIVEN,
    backlog_section,
    dead_section,
    forbidden_section,
    format_time,
    health_section,
    latency_section,
    published_by_tenant,
    report_section,
    usage_section,
    usage_totals,
)
from postroad.report.style import SCRIPT, STYLE

_MINUTES_MIN = 10


def render_page(data: DayData) -> str:
    names = [one.tenant for one in data.tenants]
    subject = names[0] if len(names) == 1 else f"{len(names)} tenants"
    title = f"Postroad: {subject}, {data.day.isoformat()}"
    frame = frame_of(data)
    body = "".join(_tenant_section(data, frame, one, index) for index, one in enumerate(data.tenants))
    top = _overview(data, frame) if len(names) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escaped(_long_day(data))}</h1><p class="sub">{escaped(_about(data, subject))}</p>{_links(data)}</header>'
        f'<main>{top}{body}</main><footer>{escaped(_footer(data))}</footer><div id="tip" role="status" hidden></div>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _policy() -> str:
    return f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; base-uri 'none'; form-action 'none'"


def _hash(content: str) -> str:
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"


def frame_of(data: DayData) -> Frame:
    """The whole day per hour; per minute, from the first to the last minute with data."""
    start = int(datetime(data.day.year, data.day.month, data.day.day, tzinfo=UTC).timestamp() * 1000)
    times = sorted({at for one in data.tenants for at in times_of(one)})
    if data.grain == "hour" or not times:
        return Frame(start, start + DAY, data.step)
    end = times[-1] + MINUTE
    return Frame(max(start, min(times[0], end - _MINUTES_MIN * MINUTE)), end, MINUTE)


def _long_day(data: DayData) -> str:
    return f"{data.day:%A}, {data.day.day} {data.day:%B %Y}"


def _about(data: DayData, subject: str) -> str:
    return f"Traffic of {subject} per {data.grain}. All times are UTC."


def _footer(data: DayData) -> str:
    return f"Created by postroad report at {format_time(data.made_at.astimezone(UTC).isoformat())} from {data.url}."


def _links(data: DayData) -> str:
    if len(data.tenants) < 2:
        return ""
    links = (f'<a href="#t{index}">{escaped(one.tenant)}</a>' for index, one in enumerate(data.tenants))
    return f'<nav aria-label="Tenants">{"".join(links)}</nav>'


def _overview(data: DayData, frame: Frame) -> str:
    by_tenant = [(one.tenant, one["usage"]) for one in data.tenants]
    return section("all", "All tenants", "", usage_totals(by_tenant) + published_by_tenant(frame, by_tenant, data.grain))


def _tenant_section(data: DayData, frame: Frame, one: TenantData, index: int) -> str:
    heading = f'<h2 id="t{index}">{escaped(one.tenant)}</h2><p class="sub">{escaped(_computed(one))}</p>'
    if one.is_empty and not one.forbidden:
        return heading + section(f"t{index}-none", "No data", "", empty(_no_data(one)))
    sections = [_report_section(f"t{index}-{report.name}", data, frame, one, report) for report in _in_order()]
    return heading + tiles(_key_figures(one)) + "".join(sections) + _provenance(one)


_Drawn = Callable[[str, DayData, Frame, TenantData], str]

_DRAWN: Mapping[str, _Drawn] = {  # reports with a section of their own, in the order of the page
    "health": lambda anchor, data, frame, one: health_section(anchor, one["health"], _computed_at(one, "health")),
    "latency": lambda anchor, data, frame, one: latency_section(anchor, frame, one["latency"], one.latency_day),
    "backlog": lambda anchor, data, frame, one: backlog_section(anchor, frame, one["backlog"]),
    "dead-letters": lambda anchor, data, frame, one: dead_section(anchor, frame, one["dead-letters"]),
    "commands": lambda anchor, data, frame, one: commands_section(anchor, frame, one["commands"]),
    "fairness": lambda anchor, data, frame, one: fairness_section(anchor, frame, one["fairness"]),
    "skew": lambda anchor, data, frame, one: skew_section(anchor, frame, one["skew"]),
    "limits": lambda anchor, data, frame, one: limits_section(anchor, one["limits"]),
    "telemetry": lambda anchor, data, frame, one: telemetry_section(anchor, frame, one["telemetry"]),
    "usage": lambda anchor, data, frame, one: usage_section(anchor, frame, one["usage"], data.grain),
}


def _in_order() -> list[Report[Any]]:
    drawn = list(_DRAWN)
    return sorted(reports(), key=lambda one: drawn.index(one.name) if one.name in drawn else len(drawn))


def _report_section(anchor: str, data: DayData, frame: Frame, one: TenantData, report: Report[Any]) -> str:
    if report.name in one.forbidden:
        return forbidden_section(anchor, report.title)
    draw = _DRAWN.get(report.name)
    return draw(anchor, data, frame, one) if draw else report_section(anchor, frame, report, one[report.name])


def _key_figures(one: TenantData) -> list[tuple[str, str, str]]:
    usage, health = one["usage"], one["health"]
    died = [row for row in one["dead-letters"] if row.reason != REDRIVEN]
    dead, first = sum(row.count for row in died), sum(row.first_attempt for row in died)
    published, done = (sum(getattr(row, name) for row in usage) for name in ("published", "done"))
    stored = max(usage, key=lambda row: row.time).stored_bytes if usage else 0
    unhealthy = sum(row.status == "unhealthy" for row in health)
    return [
        ("Published", number(published), size(sum(row.published_bytes for row in usage))),
        ("Done", number(done), f"{percent(done, published)} of the published messages" if published else ""),
        ("Dead letters", number(dead), f"{percent(first, dead)} at the first attempt" if dead else ""),
        ("Unhealthy queues", f"{unhealthy} of {len(health)}", ""),
        ("Subscribed", number(sum(row.subscribed for row in one["sessions"])), "by sessions"),
        ("Stored", size(stored), "at the end"),
    ]


def _computed_at(one: TenantData, report: str) -> str | None:
    return one.computed[report].at if report in one.computed else None


def _computed(one: TenantData) -> str:
    """Time and batch of the newest computation."""
    known = [(found.at, found.batch) for found in one.computed.values() if found.at is not None]
    if not known:
        return "The pipeline has computed nothing for this day yet."
    at, batch = max(known, key=lambda found: found[0])
    return f"Computed by the pipeline at {format_time(at)}" + (f", batch {batch}." if batch is not None else ".")


def _no_data(one: TenantData) -> str:
    if any(found.at for found in one.computed.values()):
        return "There was no traffic on this day."
    return "There are no results for this day. Is the pipeline running? postroad up starts it; see postroad pipeline status."


def _provenance(one: TenantData) -> str:
    rows = [
        [report, format_time(found.at), found.batch or "", f"{found.dropped:,} rows dropped" if found.dropped else ""]
        for report, found in one.computed.items()
    ]
    missing = sum(found.dropped for found in one.computed.values())
    note = (
        f'<p class="note">This page is incomplete: the pipeline dropped {missing:,} rows above its limit.</p>' if missing else ""
    )
    return note + details("When each report was computed", table(("report", "computed", "batch", ""), rows))
