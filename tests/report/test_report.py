"""`postroad report`: axes, charts and sections from a few rows, and the whole page from stored results."""

import re
from base64 import b64encode
from datetime import UTC, date, datetime
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from tests.cli.shell import Shell
from tests.insights import results
from tests.insights.results import HOUR, MINUTE, publish
from tests.installation import Installation
from tests.servers import OpenConnection

from postroad.api.reports.sessions import REPORT as SESSIONS
from postroad.cli.report import parse_day
from postroad.client import (
    BacklogRow,
    CommandsRow,
    DeadLettersRow,
    FairnessRow,
    HealthRow,
    LatencyRow,
    LimitsRow,
    SessionsRow,
    SkewRow,
    TelemetryRow,
    UsageRow,
)
from postroad.report import command_sections, fetch, formatting, sections
from postroad.report.charts import Axis, Frame, Series, bar_chart, line_chart
from postroad.report.fetch import Computed, DayData, TenantData
from postroad.report.html import Cell, chip, escaped, legend, table, tiles
from postroad.report.page import frame_of, render_page
from postroad.report.style import STYLE

MIDNIGHT = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)
HOURLY = Frame(MIDNIGHT, MIDNIGHT + 24 * HOUR, HOUR, 1066, 136)  # a plot of 1000 by 100
EVIL = """<script>alert("1")</script> & 'q'"""
EVIL_SHOWN = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#x27;q&#x27;"


def at(hour: int, minute: int = 0) -> int:
    return MIDNIGHT + hour * HOUR + minute * MINUTE


def when(hour: int, minute: int = 0) -> str:
    return f"2026-11-16T{hour:02}:{minute:02}:00Z"


def shapes(svg: str, tag: str, css: str) -> list[ElementTree.Element]:
    """Elements of this tag in groups of this class. Fails if the SVG is not well-formed."""
    return [
        shape
        for group in ElementTree.fromstring(svg).iter("g")
        if css in (group.get("class") or "").split()
        for shape in group.iter(tag)
    ]


def bars(markup: str, css: str) -> list[ElementTree.Element]:
    """Bars of the first chart."""
    found = re.search("<svg viewBox.*?</svg>", markup)
    assert found is not None
    return shapes(found[0], "rect", css)


def tips(svg: str) -> list[str]:
    return [shape.get("data-tip", "") for shape in shapes(svg, "rect", "hits")]


# Axes and numbers


@pytest.mark.parametrize(
    ("top", "marks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100]), (4321, [0, 2000, 4000, 6000])],
)
def test_ticks_are_round_and_reach_the_top(top: float, marks: list[float]) -> None:
    assert formatting.ticks(top) == pytest.approx(marks)


@pytest.mark.parametrize("top", [0.003, 1, 3, 9.99, 17, 250, 99_999, 1e9])
def test_the_number_of_ticks_is_moderate(top: float) -> None:
    marks = formatting.ticks(top)
    assert marks[0] == 0 and marks[-1] >= top * 0.999 and 2 <= len(marks) <= 6


def test_counts_have_whole_ticks() -> None:
    assert formatting.whole_ticks(1) == [0, 1]
    assert formatting.whole_ticks(3) == [0, 1, 2, 3]
    assert formatting.whole_ticks(10) == [0, 5, 10]


def test_durations_have_ticks_of_whole_seconds_minutes_or_hours() -> None:
    for top, marks in ((0, "0 ms,1 ms"), (80, "0 ms,20 ms,40 ms,60 ms,80 ms"), (1400, "0 ms,500 ms,1 s,1.5 s")):
        assert ",".join(map(formatting.duration, formatting.duration_ticks(top))) == marks
    assert [formatting.duration(one) for one in formatting.duration_ticks(100_000)] == [
        "0 ms",
        "30 s",
        "1 min",
        "1.5 min",
        "2 min",
    ]
    assert [formatting.duration(one) for one in formatting.duration_ticks(7 * HOUR)] == ["0 ms", "2 h", "4 h", "6 h", "8 h"]
    assert len(formatting.duration_ticks(40 * 24 * HOUR)) <= 6


def test_time_ticks_are_round_times() -> None:
    assert [formatting.clock(one) for one in formatting.time_ticks(at(13, 58), at(14, 21))] == [
        "14:00",
        "14:05",
        "14:10",
        "14:15",
        "14:20",
    ]
    assert len(formatting.time_ticks(at(0), at(24))) == 9


@pytest.mark.parametrize(
    ("write", "value", "message"),
    [
        (formatting.duration, 0.4, "0.4 ms"),
        (formatting.duration, 12, "12 ms"),
        (formatting.duration, 1500, "1.5 s"),
        (formatting.duration, 180_000, "3 min"),
        (formatting.duration, 5_400_000, "1.5 h"),
        (formatting.duration, 4 * 86_400_000, "4 d"),
        (formatting.size, 512, "512 B"),
        (formatting.size, 1_230_000, "1.2 MB"),
        (formatting.size, 999_999, "1 MB"),
        (formatting.short, 950, "950"),
        (formatting.short, 12_345, "12.3k"),
        (formatting.number, 12.345, "12.3"),
        (formatting.number, 12, "12"),
        (formatting.number, 1234.5, "1,234"),
    ],
)
def test_numbers_are_formatted(write: formatting.NumberFormat, value: float, message: str) -> None:
    assert write(value) == message


# Charts


def test_a_line_is_drawn_to_scale() -> None:
    svg = line_chart(HOURLY, [Series("a", {at(0): 0.0, at(1): 50.0, at(2): 100.0})], Axis(), "t")
    [path] = shapes(svg, "path", "line")
    points = [tuple(map(float, point.split())) for point in path.get("d", "")[1:].split("L")]
    assert points == [(72.8, 112), (114.5, 62), (156.2, 12)]  # the middle of each hour; from the floor to the top
    assert tips(svg)[1] == "01:00 to 02:00 UTC\na: 50"


def test_a_line_is_broken_where_there_is_no_value() -> None:
    svg = line_chart(HOURLY, [Series("a", {at(0): 1.0, at(1): 1.0, at(5): 2.0, at(6): 2.0, at(9): 3.0})], Axis(), "t")
    assert len(shapes(svg, "path", "line")) == 2
    assert len(shapes(svg, "circle", "line")) == 5


def test_an_isolated_point_is_drawn_as_a_dot() -> None:
    minutes = Frame(at(0), at(3), MINUTE)
    values = {at(0, minute): 1.0 for minute in range(59)} | {at(2): 1.0} | {at(2, minute): 1.0 for minute in range(30, 59)}
    assert len(shapes(line_chart(minutes, [Series("a", values)], Axis(), "t"), "circle", "line")) == 1


def test_bars_are_side_by_side_or_stacked() -> None:
    series = [Series("a", {at(0): 60.0}), Series("b", {at(0): 40.0, at(23): 0.0})]
    a, b = shapes(bar_chart(HOURLY, series, Axis(), "t"), "rect", "bar")
    assert (a.get("height"), a.get("y")) == ("100.0", "12.0")
    assert float(b.get("x", "0")) > float(a.get("x", "0")) and b.get("y") != a.get("y")
    a, b = shapes(bar_chart(HOURLY, series, Axis(), "t", is_stacked=True), "rect", "bar")
    assert a.get("x") == b.get("x")
    assert [float(one.get("height", "0")) for one in (a, b)] == [60, 40]
    assert float(b.get("y", "0")) + 40 == float(a.get("y", "0"))


def test_a_chart_has_a_title_and_escapes_names() -> None:
    for svg in (
        line_chart(HOURLY, [Series(EVIL, {at(1): 1.0})], Axis(), EVIL, EVIL),
        bar_chart(HOURLY, [Series(EVIL, {at(1): 1.0})], Axis(), EVIL, EVIL),
    ):
        assert "<script" not in svg
        root = ElementTree.fromstring(svg)
        assert [root.findtext("title"), root.findtext("desc"), root.get("role")] == [EVIL, EVIL, "img"]
        assert tips(svg) == [f"01:00 to 02:00 UTC\n{EVIL}: 1"]


def test_a_chart_without_values_is_drawn() -> None:
    for svg in (line_chart(HOURLY, [], Axis(), "t"), bar_chart(HOURLY, [Series("a", {})], Axis(), "t")):
        assert tips(svg) == []
    assert "24:00" in line_chart(HOURLY, [], Axis(), "t")


def test_text_is_escaped_and_has_no_control_characters() -> None:
    assert escaped(EVIL) == EVIL_SHOWN
    assert escaped("a\x00b\x1bc\u202ed") == "abcd"
    assert EVIL_SHOWN in table([EVIL], [[EVIL], [Cell(EVIL)]]) and "<script" not in table([EVIL], [[EVIL], [Cell(EVIL)]])
    assert "<script" not in legend([EVIL, EVIL]) + tiles([(EVIL, EVIL, EVIL)]) + chip(EVIL, EVIL)


# Sections


def latency(hour: int, queue: str = "orders", phase: str = "wait", **some: Any) -> LatencyRow:
    numbers = {"count": 10, "p50": 10, "p95": 20, "p99": 30, "max": 40, "mean": 12}
    return LatencyRow(time=when(hour), queue=queue, phase=phase, **{**numbers, **some})


def dead(hour: int, reason: str, count: int, first: int = 0, queue: str = "orders") -> DeadLettersRow:
    return DeadLettersRow(time=when(hour), queue=queue, reason=reason, count=count, first_attempt=first, last_at=when(hour, 30))


def usage(hour: int, **some: Any) -> UsageRow:
    row = results.usage(at(hour), **some)
    names = {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in row.items()}
    return UsageRow(**names)


def cells(markup: str) -> list[list[str]]:
    """Rows of the tables, without those below charts."""
    rows = re.findall(r"<tr>(.*?)</tr>", re.sub(r"<details>.*?</details>", "", markup))
    return [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows if "<td" in row]


def test_latency_has_a_chart_for_each_queue_and_phase() -> None:
    rows = [latency(1), latency(2, p99=1500), latency(1, phase="processing"), latency(1, "mails")]
    made = sections.latency_section("a", HOURLY, rows, [latency(0, count=99, p99=1500)])
    assert made.count("<svg") == 3
    assert re.findall("<figcaption>(.*?)</figcaption>", made)[:2] == [
        "orders: waiting for its first delivery",
        "orders: from lease to acknowledgement",
    ]
    assert cells(made) == [["orders", "wait", "99", "10 ms", "20 ms", "1.5 s", "40 ms", "12 ms"]]
    assert "the highest p99 is 1.5 s" in made


def test_the_busiest_queues_are_drawn() -> None:
    rows = [latency(1, f"q{number}", count=number) for number in range(1, 12)]
    made = sections.latency_section("a", HOURLY, rows, [])
    captions = re.findall("<figcaption>(.*?):", made)
    assert captions == [f"q{number}" for number in range(11, 3, -1)]
    assert "3 more are in the table" in made
    assert len(cells(made)) == 11


def test_backlog_is_a_line_for_each_queue_the_deepest_first() -> None:
    def row(hour: int, queue: str, ready: float) -> BacklogRow:
        return BacklogRow(
            time=when(hour),
            queue=queue,
            ready=ready,
            ready_max=ready * 2,
            leased=1,
            retrying=37,
            delayed=0,
            dead=hour,
            oldest_age_ms_max=1000,
        )

    made = sections.backlog_section("a", HOURLY, [row(1, "a", 1), row(2, "a", 3), row(2, "deep", 50)])
    assert cells(made) == [["deep", "50", "100", "1", "37", "0", "2", "1 s"], ["a", "2", "6", "1", "37", "0", "2", "1 s"]]
    assert made.count('class="line ') == 2
    assert "The deepest was deep with 100" in made


def test_dead_letters_are_shown_by_reason_with_the_share_of_first_attempts() -> None:
    rows = [dead(1, "no route", 3), dead(2, "no route", 1), dead(1, "bad key", 2, 2), dead(3, "redriven", 5, 5)]
    made = sections.dead_section("a", HOURLY, rows)
    assert "6 messages became dead letters, 33 % at their first attempt; 5 were redriven." in made
    assert cells(made) == [
        ["orders", "no route", "4", "0 %", "02:30"],
        ["orders", "misconfigured?bad key", "2", "100 %", "01:30"],
    ]
    assert made.count('class="bar ') == 2
    many = sections.dead_section("a", HOURLY, [dead(1, f"reason {number}", 20 - number) for number in range(10)])
    assert "3 other reasons" in many
    assert many.count('class="bar ') == 8


def test_health_lists_the_worst_queues_first_with_their_problems() -> None:
    def row(queue: str, status: str, *problems: str, **some: Any) -> HealthRow:
        return HealthRow(queue=queue, status=status, problems=list(problems), **some)

    well = row("a", "healthy", ready=99, growth_per_minute=-0.01)
    sick = row("sick", "unhealthy", "old", "news", ready=7, oldest_age_ms=90_000, expected_drain_seconds=5, growth_per_minute=2.5)
    made = sections.health_section("a", [well, row("gone", "unknown"), sick], when(12))
    assert [line[0] for line in cells(made)] == ["sick", "gone", "a"]
    assert cells(made)[0][1:4] == ["unhealthy", "the oldest message is older than the expected drain time; news", "7"]
    assert cells(made)[0][-3:] == ["1.5 min", "5 s", "+2.5"]
    assert cells(made)[2][-1] == "0"
    assert "1 of 3 queues are unhealthy. The status of 1 is unknown" in made and "2026-11-16 12:00:00 UTC" in made


def test_usage_is_summed() -> None:
    rows = [usage(1, published=5, bytesIn=1000, storedBytes=10), usage(2, published=7, bytesIn=500, storedBytes=2000)]
    made = sections.usage_section("a", HOURLY, rows, "hour")
    [totals] = cells(made)
    assert (totals[1], totals[9], totals[-2], totals[-1]) == ("12", "1.5 kB", "2 kB", "1 B")
    assert re.findall("<figcaption>(.*?)</figcaption>", made) == [
        "Messages per hour",
        "Bytes per hour",
    ]  # the others have no values


def test_sessions_are_drawn_over_time() -> None:
    rows = [SessionsRow(time=when(hour), subscribed=hour, unsubscribed=0, touched=2, deleted=1, expired=0) for hour in (1, 2)]
    made = sections.report_section("a", HOURLY, SESSIONS, rows)
    assert "3 subscribed, 0 unsubscribed, 4 touched, 2 deleted, 0 expired." in made
    assert made.count('class="line ') == 5


def test_commands_are_shown_by_outcome_and_path() -> None:
    common: dict[str, Any] = {"role": "target", "service": "bot", "command": "send"}
    rows = [
        CommandsRow(time=when(1), outcome="delivered", path="fast", count=5, p50=2, p95=3, p99=4, max=9, **common),
        CommandsRow(time=when(2), outcome="failed", reason="rate-limit-exceeded", count=2, **common),
        CommandsRow(time=when(2), role="source", service="shop", peer="x/y", outcome="invalid", reason="hmac-invalid", count=1),
    ]
    made = command_sections.commands_section("a", HOURLY, rows)
    assert "7 commands for routes of this tenant; its services sent 1, of which 1 were not delivered." in made
    assert made.count("<svg") == 3
    assert cells(made) == [
        ["target", "bot", "", "send", "rate-limit-exceeded", "2"],
        ["source", "shop", "x/y", "", "hmac-invalid", "1"],
    ]


def test_shares_are_stacked_with_the_times_of_bans() -> None:
    def row(hour: int, source: str, count: int, share: float | None, **more: Any) -> FairnessRow:
        numbers: dict[str, Any] = {"dispatched": count, "warm": count, "cold": 0, "refused": 0, "share": share}
        return FairnessRow(time=when(hour), role="target", service="bot", peer=source, **{"command": "send", **numbers, **more})

    rows = [
        row(1, "a/noisy", 9, 0.9),
        row(1, "b/calm", 1, 0.1),
        row(1, "a/noisy", 0, None, command="", bans=1, banned_until=when(3)),
    ]
    made = command_sections.fairness_section("a", HOURLY, rows)
    assert len(bars(made, "s0")) == len(bars(made, "s1")) == 1
    [span] = bars(made, "span")
    assert float(span.get("width") or 0) == pytest.approx(
        2 * (HOURLY.sized(500, 170).x(at(1)) - HOURLY.sized(500, 170).x(at(0))), 0.01
    )
    assert cells(made)[-1][1:5] == ["a/noisy", "bot", "all", "1"]


def test_a_clock_that_will_leave_the_window_is_marked() -> None:
    clocks: dict[str, Any] = {"p1": -1.0, "p99": 2.0, "near_limit": 0.1, "refused": 0, "samples": 3, "window_seconds": 60}
    rows = [
        SkewRow(time=when(1), service="shop", p50=1.0, **clocks),
        SkewRow(time=when(2), service="shop", p50=9.0, drift_per_hour=8.0, leaves_window_at=when(9), **clocks),
    ]
    made = command_sections.skew_section("a", HOURLY, rows)
    assert made.count('class="line ') == 2, "the sender and the limit"
    [[service, *_, leaves]] = cells(made)
    assert service == "shop" and "soon" in leaves and "2026-11-16 09:00" in leaves
    assert "Commands beyond 60 s are refused." in made


def test_limits_show_the_fullest_time_of_each_route() -> None:
    def row(hour: int, used: int, usage: float | None, most: int | None = 100) -> LimitsRow:
        names: dict[str, Any] = {"service": "bot", "command": "send", "max": most, "interval_seconds": 60 if most else None}
        return LimitsRow(time=when(hour), used=used, usage=usage, refused=1, shadow=0, **names)

    made = command_sections.limits_section("a", [row(1, 10, 0.1), row(2, 90, 0.9)])
    [[route, limit, time, usage, used, refused, shadow]] = cells(made)
    assert (route, limit, time, used, refused, shadow) == ("bot send", "100 in 60 s", "02:00", "100", "2", "0")
    assert "90" in usage


def test_unread_telemetry_shows_states_and_adds_up_only_events() -> None:
    def row(hour: int, emitted: int, dropped: int = 0, **sample: Any) -> TelemetryRow:
        return TelemetryRow(time=when(hour), emitted=emitted, dropped=dropped, **sample)

    first = {"delivered": 100, "acknowledged": 9, "waiting": 30, "waiting_max": 40, "oldest_age_ms_max": 7_200_000}
    last = {"delivered": 20, "acknowledged": 2, "waiting": 3, "waiting_max": 35, "oldest_age_ms_max": 60_000}
    made = command_sections.telemetry_section("a", HOURLY, [row(3, 5), row(2, 200, 40, **last), row(1, 1000, **first)])
    assert "1,205 events of commands; 40 were dropped unread." in made
    assert "In the last sample 3 messages were unread; in the hour before it 20 events were pulled and 2 messages" in made
    assert re.findall("<figcaption>(.*?)</figcaption>", made) == [
        "Events of commands",
        "Unread messages, each with many events",
        "Age of the oldest unread message",
    ]
    assert "The largest is 40." in made and "The largest is 2 h." in made
    unsampled = command_sections.telemetry_section("a", HOURLY, [row(1, 7)])
    assert unsampled.count("<svg") == 1 and "sample" not in unsampled


def test_every_section_without_rows_has_a_message() -> None:
    nothing = SessionsRow(time=when(1), subscribed=0, unsubscribed=0, touched=0, deleted=0, expired=0)
    for made, message in (
        (sections.latency_section("a", HOURLY, [], []), "No message was delivered on this day."),
        (sections.backlog_section("a", HOURLY, []), "No queue had messages on this day"),
        (sections.dead_section("a", HOURLY, []), "No dead letters on this day."),
        (sections.dead_section("a", HOURLY, [dead(1, "redriven", 4)]), "No dead letters on this day. 4 messages were redriven."),
        (sections.usage_section("a", HOURLY, [], "hour"), "No usage on this day."),
        (sections.report_section("a", HOURLY, SESSIONS, [nothing]), "No sessions on this day."),
        (sections.health_section("a", [], None), "No queue health has been computed yet."),
        (command_sections.commands_section("a", HOURLY, []), "No commands were sent or received on this day."),
        (command_sections.fairness_section("a", HOURLY, []), "No source had commands delivered"),
        (command_sections.skew_section("a", HOURLY, []), "No clock of a sender was measured"),
        (command_sections.limits_section("a", []), "No route of this tenant has a rate limit"),
        (command_sections.telemetry_section("a", HOURLY, []), "No commands on this day, and no unread telemetry."),
    ):
        assert message in made
        assert "<svg" not in made


# The page


def of_day(*tenants: TenantData, grain: Any = "hour") -> DayData:
    return DayData(date(2026, 11, 16), grain, tenants, "http://127.0.0.1:8080", datetime(2026, 11, 16, 13, tzinfo=UTC))


class Outline(HTMLParser):
    """Records unclosed tags, ids, and attributes that a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in ("meta", "path", "rect", "line", "circle"):
            self.open.append(tag)
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        href = attributes.get("href") or "#"
        if (
            any(name in attributes for name in ("src", "srcset", "style"))
            or not href.startswith("#")
            or any(n.startswith("on") for n in attributes)
        ):
            self.faults.append(f"{tag} {attrs}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            self.faults.append(f"</{tag}>")


def check(written: str) -> None:
    outline = Outline()
    outline.feed(written)
    assert (outline.faults, outline.open) == ([], [])
    assert len(outline.ids) == len(set(outline.ids))
    assert not re.search(r"https?://(?!127\.0\.0\.1)|url\(|@import", written)


def full(tenant: str) -> TenantData:
    return TenantData(
        tenant=tenant,
        rows={
            "usage": [usage(1, published=5)],
            "latency": [latency(1, EVIL)],
            "dead-letters": [dead(1, EVIL, 2, queue=EVIL)],
            "health": [HealthRow(queue=EVIL, status=EVIL, problems=[EVIL])],
            "sessions": [SessionsRow(time=when(1), subscribed=1, unsubscribed=0, touched=0, deleted=0, expired=0)],
        },
        computed={"usage": Computed(when(12, 5), "41", 0), "latency": Computed(when(12, 6), "42", 3)},
    )


def test_the_page_is_self_contained_and_states_its_source() -> None:
    written = render_page(of_day(full("acme"), full(EVIL), TenantData("idle")))
    check(written)
    assert "alert(" in written and "<script>alert" not in written
    assert "Monday, 16 November 2026" in written
    assert "Computed by the pipeline at 2026-11-16 12:06:00 UTC, batch 42." in written
    assert "the pipeline dropped 3 rows" in written
    assert "There are no results for this day" in written
    assert '<a href="#t1">' in written and "All tenants" in written


def test_the_policy_allows_only_the_inlined_style_and_script() -> None:
    written = render_page(of_day(full("acme")))
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', written)
    assert policy is not None and policy[1].startswith("default-src 'none'; ")
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", written, re.DOTALL)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy[1]
    assert "All tenants" not in written


def test_reports_that_the_key_cannot_read_are_marked() -> None:
    written = render_page(of_day(TenantData("acme", {"latency": [latency(1)]}, forbidden=frozenset({"usage", "sessions"}))))
    assert written.count("this key is restricted") == 2


def test_the_time_range_is_the_day_or_the_minutes_with_data() -> None:
    assert frame_of(of_day(full("acme"))) == Frame(at(0), at(24), HOUR)
    rows = [
        usage(13),
        UsageRow(**{**{name: getattr(usage(13), name) for name in UsageRow.__struct_fields__}, "time": when(13, 40)}),
    ]
    assert frame_of(of_day(TenantData("a", {"usage": rows}), grain="minute")) == Frame(at(13), at(13, 41), MINUTE)
    assert frame_of(of_day(TenantData("a", {"usage": rows[:1]}), grain="minute")) == Frame(at(12, 51), at(13, 1), MINUTE)


def test_a_day_is_a_word_or_a_date() -> None:
    now = datetime(2026, 11, 16, 0, 30, tzinfo=UTC)
    assert [parse_day(text, now).isoformat() for text in ("today", "yesterday", "2026-01-31")] == [
        "2026-11-16",
        "2026-11-15",
        "2026-01-31",
    ]
    with pytest.raises(typer.BadParameter, match="tomorrow"):
        parse_day("tomorrow", now)


# With a server


async def stored(running: Installation, open_connection: OpenConnection, tenant: str, hours: tuple[int, ...]) -> None:
    """Store a day's results as the pipeline does, with rows in each of these hours."""
    link = await open_connection(running.engine)

    async def put(report: str, part: str, rows: list[dict[str, Any]]) -> None:
        await publish(link, tenant, report, "20261116", part, rows, batch=17)

    by_hour = {
        "latency": [results.latency(at(hour), "mails", p99=1234) for hour in hours],
        "backlog": [results.backlog(at(hour), "mails") for hour in hours],
        "usage": [results.usage(at(hour), published=1111) for hour in hours],
        "dead-letters": [results.dead_letters(at(hour), "mails", EVIL) for hour in hours],
        "sessions": [results.sessions(at(hour), subscribed=3) for hour in hours],
    }
    for report, rows in by_hour.items():
        await put(report, "hour", rows)
        for row, hour in zip(rows, hours, strict=True):
            await put(report, f"minute-{hour:02}", [{**row, "time": when(hour, minute)} for minute in (5, 6)])
    await put("latency", "day", [results.latency(at(0), "mails", count=4321)])
    await publish(link, tenant, "health", "now", "all", [results.health("mails", "unhealthy", problems=["unpolled"])], batch=17)


@pytest.mark.parametrize(("hours", "grain"), [((13, 14), "minute"), ((1, 2, 3, 22), "hour")])
async def test_a_report_is_one_file(
    operator: Shell,
    running: Installation,
    open_connection: OpenConnection,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    hours: tuple[int, ...],
    grain: str,
) -> None:
    monkeypatch.setattr(fetch, "_PAGE_SIZE", 3)  # so that rows come in several pages
    operator.run("tenants", "create", name)
    await stored(running, open_connection, name, hours)
    finished = operator.run("--tenant", name, "report", "--day", "2026-11-16")
    path = Path(finished.stdout.strip())
    assert path == Path(f"postroad-report-{name}-2026-11-16.html")
    written = path.read_text()  # noqa: ASYNC240
    check(written)
    assert f"Traffic of {name} per {grain}." in written
    assert "at 2026-11-16 12:00:04 UTC, batch 17." in written
    assert "<dd>4,444" in written
    assert EVIL_SHOWN in written and "no consumer has polled it" in written and "4,321" in written
    assert "mails: waiting for its first delivery" in written
    empty = operator.run("--tenant", name, "report", "--day", "2026-11-14", "--out", "-").stdout
    assert "No dead letters on this day." in empty and "No message was delivered on this day." in empty


async def test_a_platform_key_reports_all_tenants(
    operator: Shell, running: Installation, open_connection: OpenConnection, name: str, tmp_path: Path
) -> None:
    for tenant in (f"{name}a", f"{name}b"):
        operator.run("tenants", "create", tenant)
        await stored(running, open_connection, tenant, (5,))
    out = tmp_path / "all.html"
    assert operator.run("report", "--day", "2026-11-16", "--grain", "hour", "--out", str(out)).stdout.strip() == str(out)
    written = out.read_text()
    check(written)
    assert "All tenants" in written
    assert all(f">{tenant}</h2>" in written for tenant in (f"{name}a", f"{name}b", "default"))


async def test_a_restricted_key_gets_the_report_of_its_queues(
    shell: Shell, operator: Shell, running: Installation, open_connection: OpenConnection, name: str
) -> None:
    operator.run("tenants", "create", name)
    await stored(running, open_connection, name, (5,))
    key = operator.run("--tenant", name, "keys", "create", "k", "--scope", "read", "--queue", "mails").stdout.strip()
    written = shell.with_environment(POSTROAD_KEY=key).run("report", "--day", "2026-11-16", "--out", "-").stdout
    assert written.count("this key is restricted") == 3
    assert "mails: waiting" in written


def test_errors_have_exit_codes(shell: Shell) -> None:
    assert shell.invoke("report", "--day", "someday").code == 2
    refused = shell.invoke("report", "--out", "no/such/folder/r.html")
    assert (refused.code, "No such file or directory" in refused.stderr) == (1, True)


# Colours


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), [("good", "good-bg"), ("bad", "bad-bg"), ("dim", "dim-bg"), ("soft", "page")])
def test_texts_have_enough_contrast(scheme: int, text: str, ground: str) -> None:
    """WCAG 2.1, level AA, for small texts."""
    colours = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in STYLE.split("@media (prefers-color-scheme", 1)]
    light, dark = sorted((_luminance(colours[scheme][name]) for name in (text, ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
