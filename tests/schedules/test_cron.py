"""Cron expressions, and their ticks compared with a search of every minute."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.schedules.cron import CronInvalid, next_tick, parse

MINUTE_MS = 60_000
BERLIN = "Europe/Berlin"
# Usual changes of an hour, one of 30 minutes, changes at midnight, a skipped day, offsets of 45 minutes, no changes.
CHANGES = {
    BERLIN: ["2026-03-29", "2026-10-25"],
    "America/New_York": ["2026-03-08", "2026-11-01"],
    "Australia/Lord_Howe": ["2026-04-05", "2026-10-04"],
    "America/Sao_Paulo": ["2018-11-04", "2019-02-17"],
    "Africa/Cairo": ["2026-04-24", "2026-10-30"],
    "Pacific/Apia": ["2011-12-30", "2011-12-31"],
    "America/Scoresbysund": ["2024-03-31", "2024-10-27"],
    "Asia/Kathmandu": ["2026-06-01"],
    "UTC": ["2026-06-01"],
}


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(expression: str, zone: str, after: str, count: int) -> list[str]:
    found, moment = [], ms(after)
    for _ in range(count):
        tick = next_tick(parse(expression), ZoneInfo(zone), moment)
        assert tick is not None
        moment = tick
        found.append(datetime.fromtimestamp(tick / 1000, ZoneInfo(zone)).isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 4 * * *", ["2026-01-01T04:30+00:00", "2026-01-02T04:30+00:00"]),
        ("*/25 * * * *", ["2026-01-01T00:25+00:00", "2026-01-01T00:50+00:00", "2026-01-01T01:00+00:00"]),
        ("5/20 3 * * *", ["2026-01-01T03:05+00:00", "2026-01-01T03:25+00:00", "2026-01-01T03:45+00:00"]),
        ("0 9-17/4 * * MON-FRI", ["2026-01-01T09:00+00:00", "2026-01-01T13:00+00:00", "2026-01-01T17:00+00:00"]),
        ("0 0 1,15 feb,AUG *", ["2026-02-01T00:00+00:00", "2026-02-15T00:00+00:00", "2026-08-01T00:00+00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00+00:00", "2026-01-11T00:00+00:00"]),
        ("0 0 13 * 5", ["2026-01-02T00:00+00:00", "2026-01-09T00:00+00:00", "2026-01-13T00:00+00:00"]),  # either matches
        ("0 0 13 * */5", ["2026-02-13T00:00+00:00", "2026-03-13T00:00+00:00"]),  # `*/5` does not restrict: both must match
        ("0 0 29 2 *", ["2028-02-29T00:00+00:00"]),
        ("@hourly", ["2026-01-01T01:00+00:00", "2026-01-01T02:00+00:00"]),
        (" @Weekly ", ["2026-01-04T00:00+00:00"]),
    ],
)
def test_an_expression_ticks_as_cron_does(expression: str, expected: list[str]) -> None:
    assert ticks(expression, "UTC", "2026-01-01T00:00:00Z", len(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "*-5 * * * *",
        "1,,2 * * * *",
        "a * * * *",
        "* * * mon *",
        "@reboot",
        "1/99 * * * *",
        "-1 * * * *",
        "+1 * * * *",
        "* " * 200,
        "٣ * * * *",
        "1" * 99 + " * * * *",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CronInvalid):
        parse(text)


def test_a_day_that_does_not_exist_has_no_tick() -> None:
    assert next_tick(parse("0 0 30 2 *"), ZoneInfo("UTC"), ms("2026-01-01T00:00:00Z")) is None


def test_a_time_of_day_that_is_skipped_ticks_once_after_the_gap() -> None:
    assert ticks("30 2 * * *", BERLIN, "2026-03-28T12:00:00Z", 2) == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert ticks("*/20 2 * * *", BERLIN, "2026-03-28T12:00:00Z", 2) == ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]


def test_a_time_of_day_that_is_repeated_ticks_the_first_time() -> None:
    assert ticks("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_an_interval_ticks_at_every_real_moment() -> None:
    expected = ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"]
    assert ticks("*/30 * * * *", BERLIN, "2026-10-24T23:59:00Z", 4) == expected
    assert ticks("*/30 * * * *", BERLIN, "2026-03-29T00:29:00Z", 2) == ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]


def test_a_skipped_day_ticks_once_after_it() -> None:
    assert ticks("0 12 30 12 *", "Pacific/Apia", "2011-12-29T00:00:00Z", 1) == ["2011-12-31T00:00+14:00"]


expressions = st.builds(
    lambda *fields: " ".join(fields),
    st.sampled_from(["*", "0", "30", "1-3", "*/7", "0,59"]),
    st.sampled_from(["*", "0", "2", "1-3", "*/2", "0,23", "12"]),
    st.sampled_from(["*", "1", "*/2", "25", "29-31", "4,5"]),
    st.just("*"),
    st.sampled_from(["*", "0", "1-5", "*/3", "sat,sun"]),
)


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    zone = draw(st.sampled_from(sorted(CHANGES)))
    day = datetime.fromisoformat(draw(st.sampled_from(CHANGES[zone]))).replace(tzinfo=UTC)
    return zone, int((day + timedelta(minutes=draw(st.integers(-1500, 1500)))).timestamp() * 1000)


@given(expressions, moments())
@example("30 0 * * *", ("America/Sao_Paulo", ms("2018-11-04T00:00:00Z")))
@example("*/2 * * * *", ("America/Scoresbysund", ms("2024-10-26T23:50:00Z")))
def test_the_next_tick_is_the_first_matching_minute(expression: str, start: tuple[str, int]) -> None:
    zone, after_ms = start
    limit_ms = after_ms + 2 * 1440 * MINUTE_MS
    found = next_tick(parse(expression), ZoneInfo(zone), after_ms)

    expected = next((at for at in range(after_ms + MINUTE_MS, limit_ms, MINUTE_MS) if is_tick(expression, zone, at)), None)

    assert (found if found is not None and found < limit_ms else None) == expected


def is_tick(expression: str, zone: str, at_ms: int) -> bool:
    """By definition: whether the local time matches, or a local time that the change at this moment skips."""
    cron = parse(expression)
    now, before = (datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)) for moment in (at_ms, at_ms - MINUTE_MS))
    if matches(expression, now):
        return cron.is_interval or now.fold == 0
    if cron.is_interval:
        return False
    local, end = before.replace(tzinfo=None) + timedelta(minutes=1), now.replace(tzinfo=None)
    skipped = [local + timedelta(minutes=minute) for minute in range(int((end - local).total_seconds() // 60))]
    return any(matches(expression, one) for one in skipped)


def matches(expression: str, local: datetime) -> bool:
    cron = parse(expression)
    return local.minute in cron.minutes and local.hour in cron.hours and cron.matches_day(local.date())
