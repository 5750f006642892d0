"""Sections about commands: outcomes, dispatch latency, shares of sources with bans, clocks, limits, unread telemetry. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from postroad.client import CommandsRow, FairnessRow, LimitsRow, SkewRow, TelemetryRow
from postroad.report.charts import Axis, Frame, Series, bar_chart, line_chart
from postroad.report.formatting import clock, duration, duration_ticks, millis, number, percent, short, whole_ticks
from postroad.report.html import Cell, chip, details, empty, figure, grid, legend, section, table
from postroad.report.sections import Line, count_cell, share_bar, times_table

_ROUTES_DRAWN_MAX = 6
_SOURCES_DRAWN_MAX = 7
_SMALL = (500, 170)
_COUNTS = Axis(number, short, whole_ticks)
_MILLISECONDS = Axis(duration, duration, duration_ticks)
_SHARES = Axis(lambda value: f"{value:.0%}", lambda value: f"{value:.0%}", lambda _: [0.0, 0.5, 1.0])
_SECONDS = Axis(lambda value: f"{value:.1f} s", lambda value: f"{value:.0f} s")


def commands_section(anchor: str, frame: Frame, rows: Sequence[CommandsRow]) -> str:
    title = "Commands"
    if not rows:
        return section(anchor, title, "", empty("No commands were sent or received on this day."))
    received, sent = ([row for row in rows if row.role == role] for role in ("target", "source"))
    figures = [
        _outcomes(frame.sized(*_SMALL), "Commands received, by outcome", received),
        _outcomes(frame.sized(*_SMALL), "Commands sent, by outcome", sent),
        _dispatch_latency(frame.sized(*_SMALL), received or sent),
    ]
    failed = sum(row.count for row in sent if row.outcome != "delivered")
    lead = f"{sum(row.count for row in received):,} commands for routes of this tenant; its services sent "
    lead += f"{sum(row.count for row in sent):,}, of which {failed:,} were not delivered."
    return section(anchor, title, lead, grid(figures) + _refusals(rows))


def _outcomes(frame: Frame, title: str, rows: Sequence[CommandsRow]) -> str:
    values: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        values[row.reason or row.outcome][millis(row.time)] += row.count
    names = sorted(values, key=lambda name: (-sum(values[name].values()), name))
    series = [Series(name, dict(values[name])) for name in names[:_SOURCES_DRAWN_MAX]]
    if not series:
        return ""
    chart = bar_chart(frame, series, _COUNTS, title, f"{names[0]} is the most frequent.", is_stacked=True)
    return figure(
        title, chart, legend([one.name for one in series]), details("Numbers", times_table(series, number)), is_small=True
    )


def _dispatch_latency(frame: Frame, rows: Sequence[CommandsRow]) -> str:
    """The largest p95 of all routes at each time, by path."""
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.p95 is not None:
            at = millis(row.time)
            values[row.path][at] = max(values[row.path].get(at, 0.0), float(row.p95))
    series = [Series(path, values[path]) for path in sorted(values)]
    if not series:
        return ""
    title = "Dispatch latency by path: p95 of the slowest route"
    chart = line_chart(frame, series, _MILLISECONDS, title)
    fallback = details("Numbers", times_table(series, duration))
    return figure(title, chart, legend([one.name for one in series]), fallback, is_small=True)


def _refusals(rows: Sequence[CommandsRow]) -> str:
    counted: Counter[tuple[str, str, str, str, str]] = Counter()
    for row in rows:
        if row.outcome not in ("delivered", "duplicate"):
            counted[row.role, row.service, row.peer, row.command, row.reason] += row.count
    if not counted:
        return ""
    body: list[Line] = [[*key, count_cell(count)] for key, count in counted.most_common(20)]
    return table(("role", "service", "other side", "command", "reason", "commands"), body, "Most frequent refusals")


def fairness_section(anchor: str, frame: Frame, rows: Sequence[FairnessRow]) -> str:
    title = "Shares of sources"
    received = [row for row in rows if row.role == "target"]
    if not received:
        return section(anchor, title, "", empty("No source had commands delivered on a route of this tenant."))
    volume: Counter[tuple[str, str]] = Counter()
    for row in received:
        if row.command:
            volume[row.service, row.command] += row.dispatched
    drawn = [route for route, _ in volume.most_common(_ROUTES_DRAWN_MAX)]
    figures = [_shares(frame.sized(*_SMALL), route, received) for route in drawn]
    lead = "The share of each source in the commands of a route. A bar at the bottom marks the time of a ban."
    return section(anchor, title, lead, grid(figures) + _bans(received))


def _shares(frame: Frame, route: tuple[str, str], rows: Sequence[FairnessRow]) -> str:
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if (row.service, row.command) == route and row.share is not None:
            values[row.peer][millis(row.time)] = float(row.share)
    names = sorted(values, key=lambda name: (-sum(values[name].values()), name))[:_SOURCES_DRAWN_MAX]
    series = [Series(name, values[name]) for name in names]
    title = f"{route[0]} {route[1]}: share by source"
    banned = [(millis(row.time), millis(row.banned_until)) for row in rows if row.service == route[0] and row.banned_until]
    chart = bar_chart(frame, series, _SHARES, title, is_stacked=True, spans=banned)
    fallback = details("Numbers", times_table(series, _SHARES.value_format))
    return figure(title, chart, legend(names), fallback, is_small=True)


def _bans(rows: Iterable[FairnessRow]) -> str:
    body: list[Line] = [
        [
            clock(millis(row.time)),
            row.peer,
            row.service,
            row.command or "all",
            count_cell(row.bans),
            clock(millis(row.banned_until)),
        ]
        for row in rows
        if row.bans and row.banned_until
    ]
    return table(("time (UTC)", "source", "service", "command", "bans", "until (UTC)"), body, "Bans") if body else ""


def skew_section(anchor: str, frame: Frame, rows: Sequence[SkewRow]) -> str:
    title = "Clocks of senders"
    known = [row for row in rows if row.p50 is not None]
    if not known:
        return section(anchor, title, "", empty("No clock of a sender was measured on this day."))
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in known:
        values[row.service][millis(row.time)] = abs(float(row.p50 or 0))
    names = sorted(values, key=lambda name: (-max(values[name].values()), name))[:_SOURCES_DRAWN_MAX]
    window = float(known[-1].window_seconds)
    times = sorted({at for one in values.values() for at in one})
    series = [*(Series(name, values[name]) for name in names), Series("limit", dict.fromkeys(times, window), "sx")]
    name = "Difference from the engine's clock (median, absolute)"
    chart = line_chart(frame, series, _SECONDS, name, f"Commands beyond {window:.0f} s are refused.")
    classes = [one.css or f"s{index}" for index, one in enumerate(series)]
    drawn = figure(
        name, chart, legend([one.name for one in series], classes), details("Numbers", times_table(series, _SECONDS.value_format))
    )
    latest = {row.service: row for row in sorted(rows, key=lambda row: row.time)}
    body = [_skew_row(latest[service]) for service in sorted(latest)]
    head = ("service", "p1", "p50", "p99", "drift per hour", "near the limit", "refused", "leaves the window (UTC)")
    return section(anchor, title, "", drawn + table(head, body, "The last values of the day"))


def _skew_row(row: SkewRow) -> Line:
    seconds = [Cell("" if one is None else f"{one:.3f} s") for one in (row.p1, row.p50, row.p99, row.drift_per_hour)]
    leaves = row.leaves_window_at
    mark = chip("problem", "soon") if leaves else ""
    near = Cell(percent(row.near_limit, 1), mark=share_bar(float(row.near_limit)))
    text = "" if leaves is None else f"{leaves[:10]} {clock(millis(leaves))}"
    return [row.service, *seconds, near, count_cell(row.refused), Cell(text, is_number=False, mark=mark)]


def limits_section(anchor: str, rows: Sequence[LimitsRow]) -> str:
    """The fullest time of each limited route, and routes with refusals."""
    title = "Usage of limits"
    by_route: dict[tuple[str, str], list[LimitsRow]] = defaultdict(list)
    for row in rows:
        if row.max is not None or row.refused:
            by_route[row.service, row.command].append(row)
    if not by_route:
        return section(anchor, title, "", empty("No route of this tenant has a rate limit, or was used."))
    body = [_limit_row(route, each) for route, each in by_route.items()]
    body.sort(key=lambda one: one[0])
    head = ("route", "limit", "fullest time (UTC)", "used then", "used", "refused", "would be refused")
    return section(anchor, title, "The fullest time of each route.", table(head, [line for _, line in body]))


def _limit_row(route: tuple[str, str], rows: Sequence[LimitsRow]) -> tuple[float, Line]:
    fullest = max(rows, key=lambda row: row.usage or 0)
    usage = float(fullest.usage or 0)
    limit = "" if fullest.max is None else f"{fullest.max:,} in {fullest.interval_seconds:,} s"
    used = Cell(percent(usage, 1), mark=share_bar(usage))
    sums = [count_cell(sum(getattr(row, name) for row in rows)) for name in ("used", "refused", "shadow")]
    return -usage, [" ".join(route), limit, clock(millis(fullest.time)), used, *sums]


def telemetry_section(anchor: str, frame: Frame, rows: Sequence[TelemetryRow]) -> str:
    """Events of commands and dropped ones are added up; what waits and its age are states, which are not."""
    title = "Unread telemetry"
    emitted, dropped = sum(row.emitted for row in rows), sum(row.dropped for row in rows)
    sampled = [row for row in sorted(rows, key=lambda row: row.time) if row.waiting is not None]
    if not emitted and not dropped and not any(row.waiting_max for row in sampled):
        return section(anchor, title, "", empty("No commands on this day, and no unread telemetry."))
    lead = f"{emitted:,} events of commands; {dropped:,} were dropped unread."
    if sampled:
        last = sampled[-1]
        lead += f" In the last sample {number(last.waiting or 0)} messages were unread; in the hour before it"
        lead += f" {number(last.delivered or 0)} events were pulled and {number(last.acknowledged or 0)} messages acknowledged."
    small = frame.sized(*_SMALL)
    figures = [
        _events_of_commands(small, rows),
        _largest(small, "Unread messages, each with many events", "waiting_max", sampled, _COUNTS),
        _largest(small, "Age of the oldest unread message", "oldest_age_ms_max", sampled, _MILLISECONDS),
    ]
    return section(anchor, title, lead, grid([one for one in figures if one]))


def _events_of_commands(frame: Frame, rows: Sequence[TelemetryRow]) -> str:
    names = ("emitted", "dropped")
    series = [Series(name, {millis(row.time): float(getattr(row, name)) for row in rows}) for name in names]
    title = "Events of commands"
    chart = bar_chart(frame, series, _COUNTS, title)
    return figure(title, chart, legend(names), details("Numbers", times_table(series, number)), is_small=True)


def _largest(frame: Frame, title: str, field: str, rows: Sequence[TelemetryRow], axis: Axis) -> str:
    values = {millis(row.time): float(getattr(row, field)) for row in rows if getattr(row, field) is not None}
    if not any(values.values()):
        return ""
    series = [Series("largest sample", values)]
    chart = line_chart(frame, series, axis, title, f"The largest is {axis.value_format(max(values.values()))}.")
    return figure(title, chart, fallback=details("Numbers", times_table(series, axis.value_format)), is_small=True)
