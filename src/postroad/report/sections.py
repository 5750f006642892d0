"""The sections of a report, each from the rows of one kind. Pure: rows in, markup out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from postroad.client import BacklogRow, DeadLettersRow, HealthRow, LatencyRow, SessionsRow, UsageRow
from postroad.report.charts import Axis, Frame, Series, bar_chart, line_chart
from postroad.report.formatting import clock, duration, duration_ticks, millis, number, percent, short, size, whole_ticks
from postroad.report.html import Cell, chip, details, empty, figure, grid, legend, section, table, text

Line = list[Cell | str]

REDRIVEN = "redriven"  # among the dead letters' reasons: those that were put back
_QUEUES_DRAWN_MAX = 8
_REASONS_DRAWN_MAX = 7
_SMALL = (500, 170)
_MISCONFIGURED = 0.9  # of the dead ones at their first attempt

_MILLISECONDS = Axis(duration, duration, duration_ticks)
_COUNTS = Axis(number, short, whole_ticks)
_BYTES = Axis(size, size)


def counts(value: float) -> Cell:
    return Cell(number(value))


# Queue health


_PROBLEMS = {
    "old": "the oldest message is older than it should be",
    "growing": "it grew in each of the last five minutes",
    "unpolled": "nobody has polled it for five minutes",
}
_WORST_FIRST = {"unhealthy": 0, "unknown": 1, "healthy": 2}


def health_section(anchor: str, rows: Sequence[HealthRow], computed_at: str | None) -> str:
    when = f"As of {readable(computed_at)}, whatever the day of this report is." if computed_at else ""
    if not rows:
        return section(anchor, "Queue health", when, empty("Nothing is known of any queue yet."))
    listed = sorted(rows, key=lambda row: (_WORST_FIRST.get(row.status, 0), -(row.ready or 0), row.queue))
    sick, unknown = (sum(row.status == status for row in rows) for status in ("unhealthy", "unknown"))
    verdict = f"{sick} of {len(rows)} queues need somebody." if sick else "No queue needs anybody."
    verdict += f" Of {unknown} nothing was heard for five minutes." if unknown else ""
    head = ("queue", "status", "why", "ready", "leased", "delayed", "dead", "oldest", "should drain in", "growth a minute")
    return section(anchor, "Queue health", f"{verdict} {when}", table(head, [_health_row(row) for row in listed]))


def _health_row(row: HealthRow) -> Line:
    kind = row.status if row.status in _WORST_FIRST else "unknown"
    why = "; ".join(_PROBLEMS.get(one, one) for one in row.problems)
    drain = "" if not row.expected_drain_seconds else duration(row.expected_drain_seconds * 1000)
    growth = "" if row.growth_per_minute is None else f"{row.growth_per_minute:+.1f}".replace("+0.0", "0").replace("-0.0", "0")
    numbers = [Cell("" if one is None else number(one)) for one in (row.ready, row.leased, row.delayed, row.dead)]
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
    lead = "How long messages waited for their first delivery, and how long their processing took; each chart has its own scale."
    lead += f" Drawn are the {_QUEUES_DRAWN_MAX} busiest queues; {left} more are in the table." if left > 0 else ""
    return section(anchor, title, lead, _latency_table(of_day or rows) + grid(figures))


def _latency_table(rows: Sequence[LatencyRow]) -> str:
    listed = sorted(rows, key=lambda row: (-row.p99, row.queue, row.phase))
    head = ("queue", "phase", "messages", "p50", "p95", "p99", "slowest", "mean")
    body: list[Line] = [
        [
            row.queue,
            row.phase,
            counts(row.count),
            *(Cell(duration(one)) for one in (row.p50, row.p95, row.p99, row.max, row.mean)),
        ]
        for row in listed
    ]
    return table(head, body, "The whole day, the slowest first")


def _latency_figure(frame: Frame, queue: str, phase: str, rows: Sequence[LatencyRow]) -> str:
    series = [Series(name, {millis(row.time): float(getattr(row, name)) for row in rows}, name) for name in _PERCENTILES]
    title = f"{queue}: {_PHASES.get(phase, phase)}"
    worst = duration(max(row.p99 for row in rows))
    about = f"p50, p95 and p99 of {sum(row.count for row in rows):,} messages; the highest p99 is {worst}."
    head = ("time (UTC)", "messages", *_PERCENTILES, "slowest")
    body: list[Line] = [
        [clock(millis(row.time)), counts(row.count), *(Cell(duration(one)) for one in (row.p50, row.p95, row.p99, row.max))]
        for row in sorted(rows, key=lambda row: row.time)
    ]
    chart = line_chart(frame, series, _MILLISECONDS, title, about)
    return figure(title, chart, legend(_PERCENTILES, _PERCENTILES), details("Numbers", table(head, body)), is_small=True)


# Backlog


def backlog_section(anchor: str, frame: Frame, rows: Sequence[BacklogRow]) -> str:
    title = "Backlog"
    if not rows:
        return section(anchor, title, "", empty("No queue had anything in it on this day, or none was looked at."))
    by_queue: dict[str, list[BacklogRow]] = defaultdict(list)
    for row in rows:
        by_queue[row.queue].append(row)
    queues = sorted(by_queue, key=lambda queue: (-max(row.ready_max for row in by_queue[queue]), queue))
    drawn = queues[:_QUEUES_DRAWN_MAX]
    series = [Series(queue, {millis(row.time): float(row.ready) for row in by_queue[queue]}) for queue in drawn]
    deepest = max(row.ready_max for row in by_queue[queues[0]])
    name = "Messages that are ready, by queue"
    chart = line_chart(frame, series, _COUNTS, name, f"The deepest was {queues[0]} with {number(deepest)}.")
    head = ("queue", "ready, mean", "ready, most", "leased", "delayed", "dead at the end", "oldest")
    summary = table(head, [_backlog_row(queue, by_queue[queue]) for queue in queues])
    fallback = details("Numbers", _moments_table(series, number))
    lead = "The mean of each moment's samples: a line that only rises is a queue that nobody keeps up with."
    return section(anchor, title, lead, figure(name, chart, legend(drawn), fallback) + summary)


def _backlog_row(queue: str, rows: Sequence[BacklogRow]) -> Line:
    means = [counts(sum(getattr(row, name) for row in rows) / len(rows)) for name in ("leased", "delayed")]
    ready = sum(row.ready for row in rows) / len(rows)
    ages = [row.oldest_age_ms_max for row in rows if row.oldest_age_ms_max is not None]
    dead = max(rows, key=lambda row: row.time).dead
    oldest = duration(max(ages)) if ages else ""
    return [queue, counts(ready), counts(max(row.ready_max for row in rows)), *means, counts(dead), Cell(oldest)]


# Dead letters


def dead_section(anchor: str, frame: Frame, rows: Sequence[DeadLettersRow]) -> str:
    title = "Dead letters"
    died = [row for row in rows if row.reason != REDRIVEN]
    back = sum(row.count for row in rows if row.reason == REDRIVEN)
    if not died:
        return section(anchor, title, "", empty("No dead letters on this day." + (f" {back:,} were put back." if back else "")))
    by_reason: Counter[str] = Counter()
    for row in died:
        by_reason[row.reason] += row.count
    reasons = [reason for reason, _ in sorted(by_reason.items(), key=lambda one: (-one[1], one[0]))]
    series = _dead_series(died, reasons)
    first, whole = sum(row.first_attempt for row in died), sum(row.count for row in died)
    lead = f"{whole:,} messages were given up, {percent(first, whole)} of them at their first attempt; {back:,} were put back."
    name = "Dead letters by reason"
    chart = bar_chart(frame, series, _COUNTS, name, lead, is_stacked=True)
    names, classes = [one.name for one in series], [one.css or f"s{index}" for index, one in enumerate(series)]
    fallback = details("Numbers", _moments_table(series, number))
    return section(anchor, title, lead, figure(name, chart, legend(names, classes), fallback) + _dead_table(died))


def _dead_series(rows: Sequence[DeadLettersRow], reasons: Sequence[str]) -> list[Series]:
    """The most frequent reasons, and all others as one."""
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
        body.append([queue, Cell(reason, is_number=False, mark=mark), counts(count), share, clock(millis(last[queue, reason]))])
    return table(("queue", "reason", "messages", "at the first attempt", "last (UTC)"), body)


def share_bar(part: float) -> str:
    """A small bar beside a number that says the same."""
    wide = max(0.0, min(part, 1.0)) * 72
    bars = f'<rect width="72" height="8" rx="4"/><rect width="{wide:.1f}" height="8" rx="4"/>'
    return f'<svg class="share" viewBox="0 0 72 8" aria-hidden="true">{bars}</svg>'


# Usage


def usage_section(anchor: str, frame: Frame, rows: Sequence[UsageRow], per: str) -> str:
    title = "Usage"
    if not rows:
        return section(anchor, title, "", empty("Nothing was used on this day."))
    small = frame.sized(*_SMALL)
    figures = [
        _usage_figure(small, rows, f"Messages per {per}", ("published", "deliveries", "done"), _COUNTS),
        _usage_figure(small, rows, f"Requests per {per}", ("requests",), _COUNTS),
        _usage_figure(small, rows, f"Bytes per {per}", ("bytes_in", "bytes_out"), _BYTES),
        _usage_figure(small, rows, f"Streams and sessions per {per}", ("appends", "fanout_messages"), _COUNTS),
    ]
    return section(anchor, title, "", usage_totals([("total", rows)], "") + grid(figures))  # those of nothing are empty


_NAMES = {"bytes_in": "bytes in", "bytes_out": "bytes out", "fanout_messages": "copies to sessions"}


def _usage_figure(frame: Frame, rows: Sequence[UsageRow], title: str, fields: Sequence[str], axis: Axis) -> str:
    series = [Series(_NAMES.get(name, name), {millis(row.time): float(getattr(row, name)) for row in rows}) for name in fields]
    if not any(value for one in series for value in one.values.values()):
        return ""
    about = ", ".join(f"{one.name}: {axis.write(sum(one.values.values()))} in all" for one in series) + "."
    chart = bar_chart(frame, series, axis, title, about)
    fallback = details("Numbers", _moments_table(series, axis.write))
    return figure(title, chart, legend([one.name for one in series]), fallback, is_small=True)


def usage_totals(whose: Sequence[tuple[str, Sequence[UsageRow]]], first: str = "tenant") -> str:
    """The sums of a day, a row for each."""
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        ("published", "published", number),
        ("", "published_bytes", size),
        ("deliveries", "deliveries", number),
        ("done", "done", number),
        ("dead", "dead", number),
        ("requests", "requests", number),
        ("in", "bytes_in", size),
        ("out", "bytes_out", size),
        ("appends", "appends", number),
        ("copies", "fanout_messages", number),
    ]
    head = (first, *(title or "bytes" for title, _, _ in columns), "stored at the end", "byte-hours")
    body: list[Line] = []
    for name, rows in whose:
        sums = [Cell(write(sum(getattr(row, field) for row in rows))) for _, field, write in columns]
        stored = Cell(size(max(rows, key=lambda row: row.time).stored_bytes if rows else 0))
        body.append([name, *sums, stored, Cell(size(sum(row.storage_byte_hours for row in rows)))])
    return table(head, body)


# Sessions


_STEPS = ("subscribed", "unsubscribed", "touched", "deleted", "expired")


def sessions_section(anchor: str, frame: Frame, rows: Sequence[SessionsRow]) -> str:
    title = "Sessions"
    if not any(getattr(row, step) for row in rows for step in _STEPS):
        return section(anchor, title, "", empty("No session came, was touched or went on this day."))
    series = [Series(step, {millis(row.time): float(getattr(row, step)) for row in rows}) for step in _STEPS]
    totals = ", ".join(f"{sum(one.values.values()):,.0f} {one.name}" for one in series)
    name = "What sessions did"
    chart = line_chart(frame, series, _COUNTS, name, f"{totals}.")
    fallback = details("Numbers", _moments_table(series, number))
    return section(anchor, title, f"{totals}.".capitalize(), figure(name, chart, legend(_STEPS), fallback))


# For several of them


def _moments_table(series: Sequence[Series], write: Callable[[float], str]) -> str:
    moments = sorted({at for one in series for at in one.values})
    body: list[Line] = [
        [clock(at), *(Cell(write(one.values[at]) if at in one.values else "") for one in series)] for at in moments
    ]
    return table(("time (UTC)", *(one.name for one in series)), body)


def readable(moment: str | None) -> str:
    """`2026-11-16 13:45:07 UTC`."""
    return "never" if moment is None else f"{moment[:10]} {moment[11:19]} UTC"


def forbidden(anchor: str, title: str) -> str:
    said = "This key may not see it: it is kept to some queues, topics or streams."
    return section(anchor, title, "", f'<p class="note">{text(said)}</p>')


def published_by(frame: Frame, whose: Sequence[tuple[str, Sequence[UsageRow]]], per: str) -> str:
    """What each of several tenants published, on top of each other."""
    sums: list[tuple[str, Sequence[Any]]] = sorted(whose, key=lambda one: (-sum(row.published for row in one[1]), one[0]))
    shown = [(name, rows) for name, rows in sums if any(row.published for row in rows)]
    series = [Series(name, {millis(row.time): float(row.published) for row in rows}) for name, rows in shown]
    if not series:
        return empty("Nobody published anything on this day.")
    title = f"Messages published per {per}, by tenant"
    chart = bar_chart(frame, series, _COUNTS, title, f"{shown[0][0]} published most.", is_stacked=True)
    return figure(title, chart, legend([one.name for one in series]), details("Numbers", _moments_table(series, number)))
