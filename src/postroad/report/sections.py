"""The sections of a report, each from the rows of one report. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from postroad.api.insights import Report, ReportColumn, columns_of
from postroad.client import BacklogRow, DeadLettersRow, HealthRow, LatencyRow, UsageRow
from postroad.report.charts import Axis, Frame, Series, bar_chart, line_chart
from postroad.report.formatting import (
    UNIT_FORMATS,
    NumberFormat,
    clock,
    column_text,
    duration,
    duration_ticks,
    millis,
    number,
    percent,
    short,
    size,
    whole_ticks,
)
from postroad.report.html import Cell, chip, details, empty, escaped, figure, grid, legend, section, table

Line = list[Cell | str]

REDRIVEN = "redriven"  # the reason that counts redriven messages among the dead letters
_QUEUES_DRAWN_MAX = 8
_REASONS_DRAWN_MAX = 7
_SMALL = (500, 170)
_MISCONFIGURED = 0.9  # share of dead letters at their first attempt that suggests a misconfigured consumer

_MILLISECONDS = Axis(duration, duration, duration_ticks)
_COUNTS = Axis(number, short, whole_ticks)
_BYTES = Axis(size, size)


def count_cell(value: float) -> Cell:
    return Cell(number(value))


# Queue health


_PROBLEMS = {
    "old": "the oldest message is older than the expected drain time",
    "growing": "it grew in each of the last five minutes",
    "unpolled": "no consumer has polled it for five minutes",
}
_WORST_FIRST = {"unhealthy": 0, "unknown": 1, "healthy": 2}


def health_section(anchor: str, rows: Sequence[HealthRow], computed_at: str | None) -> str:
    as_of = f"As of {format_time(computed_at)}, independent of the day of this report." if computed_at else ""
    if not rows:
        return section(anchor, "Queue health", as_of, empty("No queue health has been computed yet."))
    listed = sorted(rows, key=lambda row: (_WORST_FIRST.get(row.status, 0), -(row.ready or 0), row.queue))
    unhealthy, unknown = (sum(row.status == status for row in rows) for status in ("unhealthy", "unknown"))
    lead = _health_lead(len(rows), unhealthy, unknown)
    head = (
        "queue",
        "status",
        "why",
        "ready",
        "leased",
        "retrying",
        "delayed",
        "dead",
        "oldest",
        "expected drain time",
        "growth per minute",
    )
    return section(anchor, "Queue health", f"{lead} {as_of}", table(head, [_health_row(row) for row in listed]))


def _health_lead(count: int, unhealthy: int, unknown: int) -> str:
    if unhealthy:
        lead = f"{unhealthy} of {count} queues are unhealthy."
    else:
        lead = "No queue is unhealthy." if unknown else "All queues are healthy."
    return lead + (f" The status of {unknown} is unknown: no sample for five minutes." if unknown else "")


def _health_row(row: HealthRow) -> Line:
    kind = row.status if row.status in _WORST_FIRST else "unknown"
    why = "; ".join(_PROBLEMS.get(one, one) for one in row.problems)
    drain = "" if not row.expected_drain_seconds else duration(row.expected_drain_seconds * 1000)
    growth = "" if row.growth_per_minute is None else f"{row.growth_per_minute:+.1f}".replace("+0.0", "0").replace("-0.0", "0")
    numbers = [Cell("" if one is None else number(one)) for one in (row.ready, row.leased, row.retrying, row.delayed, row.dead)]
    oldest = Cell("" if row.oldest_age_ms is None else duration(row.oldest_age_ms))
    return [row.queue, Cell("", is_number=False, mark=chip(kind, row.status)), why, *numbers, oldest, Cell(drain), Cell(growth)]


# Latency


_PERCENTILES = ("p50", "p95", "p99")
_PHASES = {"wait": "waiting for its first delivery", "processing": "from lease to acknowledgement"}


def latency_section(anchor: str, frame: Frame, rows: Sequence[LatencyRow], of_day: Sequence[LatencyRow]) -> str:
    title = "Latency"
    if not rows:
        return section(anchor, title, "", empty("No message was delivered on this day."))
    by_chart: dict[tuple[str, str], list[LatencyRow]] = defaultdict(list)
    volume: Counter[str] = Counter()
    for row in rows:
        by_chart[row.queue, row.phase].append(row)
        volume[row.queue] += row.count
    drawn = [queue for queue, _ in sorted(volume.items(), key=lambda one: (-one[1], one[0]))]
    figures = [
        _latency_figure(frame.sized(*_SMALL), queue, phase, by_chart[queue, phase])
        for queue in drawn[:_QUEUES_DRAWN_MAX]
        for phase in _PHASES
        if (queue, phase) in by_chart
    ]
    left = len(drawn) - _QUEUES_DRAWN_MAX
    lead = "Time from publishing to the first delivery, and from lease to acknowledgement; each chart has its own scale."
    lead += f" The charts show the {_QUEUES_DRAWN_MAX} busiest queues; {left} more are in the table." if left > 0 else ""
    return section(anchor, title, lead, _latency_table(of_day or rows) + grid(figures))


def _latency_table(rows: Sequence[LatencyRow]) -> str:
    listed = sorted(rows, key=lambda row: (-row.p99, row.queue, row.phase))
    columns = [one for one in columns_of(LatencyRow) if one.is_listed]
    head, body = [one.title for one in columns], [_cells(row, columns) for row in listed]
    return table(head, body, "The whole day, the slowest first")


def _latency_figure(frame: Frame, queue: str, phase: str, rows: Sequence[LatencyRow]) -> str:
    series = [Series(name, {millis(row.time): float(getattr(row, name)) for row in rows}, name) for name in _PERCENTILES]
    title = f"{queue}: {_PHASES.get(phase, phase)}"
    worst = duration(max(row.p99 for row in rows))
    about = f"p50, p95 and p99 of {sum(row.count for row in rows):,} messages; the highest p99 is {worst}."
    head = ("time (UTC)", "messages", *_PERCENTILES, "slowest")
    body: list[Line] = [
        [clock(millis(row.time)), count_cell(row.count), *(Cell(duration(one)) for one in (row.p50, row.p95, row.p99, row.max))]
        for row in sorted(rows, key=lambda row: row.time)
    ]
    chart = line_chart(frame, series, _MILLISECONDS, title, about)
    return figure(title, chart, legend(_PERCENTILES, _PERCENTILES), details("Numbers", table(head, body)), is_small=True)


# Backlog


def backlog_section(anchor: str, frame: Frame, rows: Sequence[BacklogRow]) -> str:
    title = "Backlog"
    if not rows:
        return section(anchor, title, "", empty("No queue had messages on this day, or no samples were taken."))
    by_queue: dict[str, list[BacklogRow]] = defaultdict(list)
    for row in rows:
        by_queue[row.queue].append(row)
    queues = sorted(by_queue, key=lambda queue: (-max(row.ready_max for row in by_queue[queue]), queue))
    drawn = queues[:_QUEUES_DRAWN_MAX]
    series = [Series(queue, {millis(row.time): float(row.ready) for row in by_queue[queue]}) for queue in drawn]
    deepest = max(row.ready_max for row in by_queue[queues[0]])
    name = "Ready messages by queue"
    chart = line_chart(frame, series, _COUNTS, name, f"The deepest was {queues[0]} with {number(deepest)}.")
    head = ("queue", "ready (mean)", "ready (max)", "leased", "retrying", "delayed", "dead at the end", "oldest")
    summary = table(head, [_backlog_row(queue, by_queue[queue]) for queue in queues])
    fallback = details("Numbers", times_table(series, number))
    lead = "Mean of the samples at each time. A line that only rises is a queue whose consumers are too slow."
    return section(anchor, title, lead, figure(name, chart, legend(drawn), fallback) + summary)


def _backlog_row(queue: str, rows: Sequence[BacklogRow]) -> Line:
    means = [count_cell(sum(getattr(row, name) for row in rows) / len(rows)) for name in ("leased", "retrying", "delayed")]
    ready = sum(row.ready for row in rows) / len(rows)
    ages = [row.oldest_age_ms_max for row in rows if row.oldest_age_ms_max is not None]
    dead = max(rows, key=lambda row: row.time).dead
    oldest = duration(max(ages)) if ages else ""
    return [queue, count_cell(ready), count_cell(max(row.ready_max for row in rows)), *means, count_cell(dead), Cell(oldest)]


# Dead letters


def dead_section(anchor: str, frame: Frame, rows: Sequence[DeadLettersRow]) -> str:
    title = "Dead letters"
    died = [row for row in rows if row.reason != REDRIVEN]
    redriven = sum(row.count for row in rows if row.reason == REDRIVEN)
    if not died:
        message = "No dead letters on this day." + (f" {redriven:,} messages were redriven." if redriven else "")
        return section(anchor, title, "", empty(message))
    by_reason: Counter[str] = Counter()
    for row in died:
        by_reason[row.reason] += row.count
    reasons = [reason for reason, _ in sorted(by_reason.items(), key=lambda one: (-one[1], one[0]))]
    series = _dead_series(died, reasons)
    first, whole = sum(row.first_attempt for row in died), sum(row.count for row in died)
    lead = f"{whole:,} messages became dead letters, {percent(first, whole)} at their first attempt; {redriven:,} were redriven."
    name = "Dead letters by reason"
    chart = bar_chart(frame, series, _COUNTS, name, lead, is_stacked=True)
    names, classes = [one.name for one in series], [one.css or f"s{index}" for index, one in enumerate(series)]
    fallback = details("Numbers", times_table(series, number))
    return section(anchor, title, lead, figure(name, chart, legend(names, classes), fallback) + _dead_table(died))


def _dead_series(rows: Sequence[DeadLettersRow], reasons: Sequence[str]) -> list[Series]:
    """A series for each of the most frequent reasons, and one for all others."""
    drawn = list(reasons[:_REASONS_DRAWN_MAX])
    values: dict[str, dict[int, float]] = {reason: defaultdict(float) for reason in drawn}
    others: dict[int, float] = defaultdict(float)
    for row in rows:
        values.get(row.reason, others)[millis(row.time)] += row.count
    series = [Series(reason, dict(values[reason])) for reason in drawn]
    left = len(reasons) - len(drawn)
    return [*series, Series(f"{left} other reasons", dict(others), "sx")] if left > 0 else series


def _dead_table(rows: Sequence[DeadLettersRow]) -> str:
    counted: Counter[tuple[str, str]] = Counter()
    first: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], str] = {}
    for row in rows:
        key = (row.queue, row.reason)
        counted[key] += row.count
        first[key] += row.first_attempt
        last[key] = max(last.get(key, ""), row.last_at or row.time)
    body: list[Line] = []
    for (queue, reason), count in sorted(counted.items(), key=lambda one: (-one[1], one[0])):
        part = first[queue, reason] / count if count else 0
        mark = chip("problem", "misconfigured?") if part >= _MISCONFIGURED else ""
        share = Cell(percent(part, 1), mark=share_bar(part))
        body.append(
            [queue, Cell(reason, is_number=False, mark=mark), count_cell(count), share, clock(millis(last[queue, reason]))]
        )
    return table(("queue", "reason", "messages", "at the first attempt", "last (UTC)"), body)


def share_bar(part: float) -> str:
    """A small bar that shows the number beside it."""
    wide = max(0.0, min(part, 1.0)) * 72
    bars = f'<rect width="72" height="8" rx="4"/><rect width="{wide:.1f}" height="8" rx="4"/>'
    return f'<svg class="share" viewBox="0 0 72 8" aria-hidden="true">{bars}</svg>'


# Usage


def usage_section(anchor: str, frame: Frame, rows: Sequence[UsageRow], per: str) -> str:
    title = "Usage"
    if not rows:
        return section(anchor, title, "", empty("No usage on this day."))
    small = frame.sized(*_SMALL)
    figures = [
        _usage_figure(small, rows, f"Messages per {per}", ("published", "deliveries", "done"), _COUNTS),
        _usage_figure(small, rows, f"Requests per {per}", ("requests",), _COUNTS),
        _usage_figure(small, rows, f"Bytes per {per}", ("bytes_in", "bytes_out"), _BYTES),
        _usage_figure(small, rows, f"Streams and sessions per {per}", ("appends", "fanout_messages"), _COUNTS),
    ]
    return section(anchor, title, "", usage_totals([("total", rows)], "") + grid(figures))


_NAMES = {"bytes_in": "bytes in", "bytes_out": "bytes out", "fanout_messages": "copies to sessions"}


def _usage_figure(frame: Frame, rows: Sequence[UsageRow], title: str, fields: Sequence[str], axis: Axis) -> str:
    series = [Series(_NAMES.get(name, name), {millis(row.time): float(getattr(row, name)) for row in rows}) for name in fields]
    if not any(value for one in series for value in one.values.values()):
        return ""
    about = ", ".join(f"{one.name}: {axis.value_format(sum(one.values.values()))} in total" for one in series) + "."
    chart = bar_chart(frame, series, axis, title, about)
    fallback = details("Numbers", times_table(series, axis.value_format))
    return figure(title, chart, legend([one.name for one in series]), fallback, is_small=True)


def usage_totals(by_tenant: Sequence[tuple[str, Sequence[UsageRow]]], first: str = "tenant") -> str:
    """Sums of the day, a row for each tenant."""
    columns = [one for one in columns_of(UsageRow) if one.is_listed and one.field != "stored_bytes"]
    head = (first, *(one.title for one in columns), "stored at the end", "byte-hours")
    body: list[Line] = []
    for name, rows in by_tenant:
        sums = [Cell(UNIT_FORMATS[one.unit](sum(getattr(row, one.field) for row in rows))) for one in columns]
        stored = Cell(size(max(rows, key=lambda row: row.time).stored_bytes if rows else 0))
        body.append([name, *sums, stored, Cell(size(sum(row.storage_byte_hours for row in rows)))])
    return table(head, body)


# Reports without a section of their own


def report_section(anchor: str, frame: Frame, report: Report[Any], rows: Sequence[Any]) -> str:
    """A line for each number over time; a table if the report has no times, or several rows for a time."""
    columns = [one for one in columns_of(report.row) if one.is_listed]
    if not any(getattr(row, one.field) for row in rows for one in columns):
        return section(anchor, report.title, "", empty(f"No {report.title.lower()} on this day."))
    if report.is_snapshot or report.names:
        return section(anchor, report.title, "", table([one.title for one in columns], [_cells(row, columns) for row in rows]))
    series = [Series(one.title, {millis(row.time): float(getattr(row, one.field) or 0) for row in rows}) for one in columns]
    totals = ", ".join(f"{sum(one.values.values()):,.0f} {one.name}" for one in series)
    chart = line_chart(frame, series, _COUNTS, report.title, f"{totals}.")
    fallback = details("Numbers", times_table(series, number))
    drawn = figure(report.title, chart, legend([one.name for one in series]), fallback)
    return section(anchor, report.title, f"{totals}.".capitalize(), drawn)


def _cells(row: Any, columns: Sequence[ReportColumn]) -> Line:
    values = [(getattr(row, one.field), column_text(row, one)) for one in columns]
    return [Cell(text, is_number=not isinstance(value, str | list)) for value, text in values]


# Shared


def times_table(series: Sequence[Series], value_format: NumberFormat) -> str:
    times = sorted({at for one in series for at in one.values})
    body: list[Line] = [
        [clock(at), *(Cell(value_format(one.values[at]) if at in one.values else "") for one in series)] for at in times
    ]
    return table(("time (UTC)", *(one.name for one in series)), body)


def format_time(time: str | None) -> str:
    """`2026-11-16 13:45:07 UTC`."""
    return "never" if time is None else f"{time[:10]} {time[11:19]} UTC"


def forbidden_section(anchor: str, title: str) -> str:
    note = "Not available: this key is restricted to some queues, topics or streams."
    return section(anchor, title, "", f'<p class="note">{escaped(note)}</p>')


def published_by_tenant(frame: Frame, by_tenant: Sequence[tuple[str, Sequence[UsageRow]]], per: str) -> str:
    """A stacked chart of published messages by tenant."""
    sums: list[tuple[str, Sequence[Any]]] = sorted(by_tenant, key=lambda one: (-sum(row.published for row in one[1]), one[0]))
    shown = [(name, rows) for name, rows in sums if any(row.published for row in rows)]
    series = [Series(name, {millis(row.time): float(row.published) for row in rows}) for name, rows in shown]
    if not series:
        return empty("No messages were published on this day.")
    title = f"Messages published per {per}, by tenant"
    chart = bar_chart(frame, series, _COUNTS, title, f"{shown[0][0]} published the most.", is_stacked=True)
    return figure(title, chart, legend([one.name for one in series]), details("Numbers", times_table(series, number)))
