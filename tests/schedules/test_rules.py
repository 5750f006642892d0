"""Which ticks are due, and the validation of settings."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.schedules import CatchUp, ScheduleSettings
from postroad.kernel.errors import BodyInvalid
from postroad.schedules.rules import CatchUpLimits, Due, checked_timing, due_tick, is_superseded, message_of, timing_of

LIMITS = CatchUpLimits(grace_ms=60_000, window_ms=3_600_000)
HOURLY = timing_of(ScheduleSettings(queue="q", every_ms=3_600_000), 0)
MINUTELY = timing_of(ScheduleSettings(queue="q", every_ms=60_000), 0)
HOUR = 3_600_000


def settings(**values: Any) -> ScheduleSettings:
    return msgspec.convert({"queue": "q", **values}, ScheduleSettings)


@pytest.mark.parametrize("policy", CatchUp)
def test_ticks_on_time_fire_one_after_the_other(policy: CatchUp) -> None:
    assert due_tick(MINUTELY, 60_000, 119_999, policy, LIMITS) == Due(None, 60_000)
    assert due_tick(MINUTELY, 60_000, 180_000, policy, LIMITS) == Due(120_000, 120_000)


def test_missed_ticks_are_skipped_with_none() -> None:
    now = 5 * HOUR + 120_000
    assert due_tick(HOURLY, 0, now, CatchUp.NONE, LIMITS) == Due(None, 5 * HOUR, 5)
    assert due_tick(MINUTELY, 0, now, CatchUp.NONE, LIMITS) == Due(now - 60_000, now - 60_000, 300)


def test_the_newest_missed_tick_fires_with_last() -> None:
    now = 5 * HOUR + 120_000
    assert due_tick(HOURLY, 0, now, CatchUp.LAST, LIMITS) == Due(5 * HOUR, 5 * HOUR, 4)
    assert due_tick(MINUTELY, 0, now, CatchUp.LAST, LIMITS) == Due(now - 60_000, now - 60_000, 300)


def test_missed_ticks_of_the_window_fire_with_all() -> None:
    now = 5 * HOUR + 120_000
    assert due_tick(MINUTELY, 0, now, CatchUp.ALL, LIMITS) == Due(now - HOUR, now - HOUR, 241)
    assert due_tick(MINUTELY, now - HOUR, now, CatchUp.ALL, LIMITS) == Due(now - HOUR + 60_000, now - HOUR + 60_000)
    daily = timing_of(settings(everyMs=24 * HOUR), 0)
    assert due_tick(daily, 0, 50 * HOUR, CatchUp.ALL, LIMITS) == Due(48 * HOUR, 48 * HOUR, 1)


def test_a_long_downtime_is_counted_up_to_a_limit() -> None:
    years = 3 * 365 * 24 * HOUR
    due = due_tick(timing_of(settings(cron="* * * * *"), 0), 0, years + 90_000, CatchUp.LAST, LIMITS)
    assert due == Due(years + 60_000, years + 60_000, 1000)


@given(st.sampled_from(CatchUp), st.integers(0, 50), st.lists(st.integers(0, 400_000), min_size=1, max_size=30))
def test_every_tick_is_fired_or_skipped_once(policy: CatchUp, start: int, steps: list[int]) -> None:
    position = now = start * 30_000
    fired: list[int] = []
    missed = 0
    for step in steps:
        now += step
        while (due := due_tick(MINUTELY, position, now, policy, LIMITS)).position_ms != position:
            position, missed = due.position_ms, missed + due.missed
            fired += [due.tick_ms] if due.tick_ms is not None else []
    assert fired == sorted(set(fired))
    assert len(fired) + missed == now // 60_000 - start * 30_000 // 60_000
    assert missed == 0 or policy is not CatchUp.ALL


def test_a_tick_that_failed_is_tried_until_its_policy_skips_it() -> None:
    assert not is_superseded(MINUTELY, 60_000, 120_000, CatchUp.NONE, LIMITS)
    assert is_superseded(MINUTELY, 60_000, 120_001, CatchUp.NONE, LIMITS)
    assert not is_superseded(HOURLY, HOUR, 2 * HOUR - 1, CatchUp.LAST, LIMITS)
    assert is_superseded(HOURLY, HOUR, 2 * HOUR, CatchUp.LAST, LIMITS)
    assert not is_superseded(MINUTELY, HOUR, 2 * HOUR, CatchUp.ALL, LIMITS)


def test_an_interval_starts_at_its_start_or_one_interval_after_its_creation() -> None:
    assert timing_of(settings(everyMs=5000), 1000).next_tick(1000) == 6000
    from_start = timing_of(settings(everyMs=5000, startAt="1970-01-01T00:00:07Z", endAt="1970-01-01T00:00:12Z"), 1000)
    assert list(from_start.ticks(1000)) == [7000, 12_000]


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({}, "$"),
        ({"cron": "@daily", "everyMs": 5000}, "$"),
        ({"everyMs": 999}, "$.everyMs"),
        ({"cron": "61 * * * *"}, "$.cron"),
        ({"cron": "0 0 30 2 *"}, "$.cron"),
        ({"cron": "@daily", "timeZone": "Europe"}, "$.timeZone"),
        ({"cron": "@daily", "timeZone": "../etc/passwd"}, "$.timeZone"),
        ({"cron": "@daily", "endAt": "1970-01-01T00:00:01Z"}, "$.endAt"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(BodyInvalid) as refusal:
        checked_timing(settings(**values), 0, interval_ms_min=1000)
    assert refusal.value.extra["errors"][0]["path"] == path  # type: ignore[index]


def test_a_message_names_its_schedule_and_tick() -> None:
    message = message_of(settings(headers={"x": "y"}), "nightly", 60_000)
    assert message.headers == {
        "x": "y",
        "postroad-schedule": "nightly",
        "postroad-scheduled-at": "1970-01-01T00:01:00.000Z",
    }


def test_the_message_of_a_tick_has_the_priority_of_its_schedule() -> None:
    settings = ScheduleSettings(queue="q", every_ms=1000, priority="low")
    assert message_of(settings, "s", 0).priority == "low"
