"""The whole page, which needs nothing but itself: no address is in it that a browser would fetch, and its policy forbids that."""

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256

from postroad.report.charts import Frame
from postroad.report.fetch import DayData, TenantData, moments_of
from postroad.report.formatting import DAY, MINUTE, number, percent, size
from postroad.report.html import details, empty, section, table, text, tiles
from postroad.report.sections import (
    REDRIVEN,
    backlog_section,
    dead_section,
    forbidden,
    health_section,
    latency_section,
    published_by,
    readable,
    sessions_section,
    usage_section,
    usage_totals,
)
from postroad.report.style import SCRIPT, STYLE

_MINUTES_MIN = 10


def page(data: DayData) -> str:
    """As UTF-8 text, to be written to a file."""
    names = [one.tenant for one in data.tenants]
    whose = names[0] if len(names) == 1 else f"{len(names)} tenants"
    title = f"Postroad: {whose}, {data.day.isoformat()}"
    frame = frame_of(data)
    body = "".join(_tenant(data, frame, one, index) for index, one in enumerate(data.tenants))
    top = _overview(data, frame) if len(names) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{text(_long_day(data))}</h1><p class="sub">{text(_about(data, whose))}</p>{_links(data)}</header>'
        f'<main>{top}{body}</main><footer>{text(_footer(data))}</footer><div id="tip" role="status" hidden></div>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _policy() -> str:
    return f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; base-uri 'none'; form-action 'none'"


def _hash(content: str) -> str:
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"


def frame_of(data: DayData) -> Frame:
    """By the hour it is the whole day; by the minute, from the first to the last that has anything."""
    start = int(datetime(data.day.year, data.day.month, data.day.day, tzinfo=UTC).timestamp() * 1000)
    moments = sorted({at for one in data.tenants for at in moments_of(one)})
    if data.grain == "hour" or not moments:
        return Frame(start, start + DAY, data.step)
    end = moments[-1] + MINUTE
    return Frame(max(start, min(moments[0], end - _MINUTES_MIN * MINUTE)), end, MINUTE)


def _long_day(data: DayData) -> str:
    return f"{data.day:%A}, {data.day.day} {data.day:%B %Y}"


def _about(data: DayData, whose: str) -> str:
    return f"What Postroad did for {whose}, by the {data.grain}. All times are UTC."


def _footer(data: DayData) -> str:
    return f"Made by postroad report at {readable(data.made_at.astimezone(UTC).isoformat())} from {data.url}."


def _links(data: DayData) -> str:
    if len(data.tenants) < 2:
        return ""
    links = (f'<a href="#t{index}">{text(one.tenant)}</a>' for index, one in enumerate(data.tenants))
    return f'<nav aria-label="Tenants">{"".join(links)}</nav>'


def _overview(data: DayData, frame: Frame) -> str:
    whose = [(one.tenant, one.usage) for one in data.tenants]
    return section("all", "All tenants", "", usage_totals(whose) + published_by(frame, whose, data.grain))


def _tenant(data: DayData, frame: Frame, one: TenantData, index: int) -> str:
    heading = f'<h2 id="t{index}">{text(one.tenant)}</h2><p class="sub">{text(_computed(one))}</p>'
    if one.is_empty and not one.forbidden:
        return heading + section(f"t{index}-none", "Nothing to show", "", empty(_nothing(one)))
    may_not = one.forbidden
    sections = [
        health_section(f"t{index}-health", one.health, _when(one, "health")),
        latency_section(f"t{index}-latency", frame, one.latency, one.latency_day),
        backlog_section(f"t{index}-backlog", frame, one.backlog),
        dead_section(f"t{index}-dead", frame, one.dead_letters),
        forbidden(f"t{index}-usage", "Usage")
        if "usage" in may_not
        else usage_section(f"t{index}-usage", frame, one.usage, data.grain),
        forbidden(f"t{index}-sessions", "Sessions")
        if "sessions" in may_not
        else sessions_section(f"t{index}-sessions", frame, one.sessions),
    ]
    return heading + tiles(_glance(one)) + "".join(sections) + _provenance(one)


def _glance(one: TenantData) -> list[tuple[str, str, str]]:
    died = [row for row in one.dead_letters if row.reason != REDRIVEN]
    dead, first = sum(row.count for row in died), sum(row.first_attempt for row in died)
    published, done = (sum(getattr(row, name) for row in one.usage) for name in ("published", "done"))
    stored = max(one.usage, key=lambda row: row.time).stored_bytes if one.usage else 0
    sick = sum(row.status == "unhealthy" for row in one.health)
    return [
        ("Published", number(published), size(sum(row.published_bytes for row in one.usage))),
        ("Done", number(done), f"{percent(done, published)} of what was published" if published else ""),
        ("Dead letters", number(dead), f"{percent(first, dead)} at the first attempt" if dead else ""),
        ("Queues in need", f"{sick} of {len(one.health)}", ""),
        ("Subscribed", number(sum(row.subscribed for row in one.sessions)), "by sessions"),
        ("Stored", size(stored), "at the end"),
    ]


def _when(one: TenantData, report: str) -> str | None:
    return one.computed[report].at if report in one.computed else None


def _computed(one: TenantData) -> str:
    """When the newest of it was computed, and by which batch."""
    known = [(found.at, found.batch) for found in one.computed.values() if found.at is not None]
    if not known:
        return "The pipeline has computed nothing for this day yet."
    at, batch = max(known, key=lambda found: found[0])
    return f"Computed by the pipeline at {readable(at)}" + (f", batch {batch}." if batch is not None else ".")


def _nothing(one: TenantData) -> str:
    if any(found.at for found in one.computed.values()):
        return "Nothing happened on this day."
    return "There are no results of this day. postroad up runs the pipeline, which computes them; see postroad pipeline status."


def _provenance(one: TenantData) -> str:
    rows = [
        [report, readable(found.at), found.batch or "", f"{found.dropped:,} rows are missing" if found.dropped else ""]
        for report, found in one.computed.items()
    ]
    missing = sum(found.dropped for found in one.computed.values())
    note = (
        f'<p class="note">{missing:,} rows were too many for the pipeline to tell: this page is not complete.</p>'
        if missing
        else ""
    )
    return note + details("When each report was computed", table(("report", "computed", "batch", ""), rows))
