"""How queues are, by their samples of the last minutes."""

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest

from postroad.api.insights import Grain, columns_of
from postroad.api.reports.health import REPORT
from postroad.kernel.event import Event
from postroad.pipeline.measures import measures
from postroad.pipeline.reports import backlog, health
from tests.pipeline.event_samples import moment, sampled
from tests.pipeline.frames import events_table

NOW = 10 * 60 + 30  # half a minute into the tenth minute after noon


def every_minute(queue: str, ready: Any = 5, first: int = 3, last: int = 10, **fields: Any) -> Iterator[Event]:
    """A sample in each of these minutes; what is ready may depend on the minute."""
    for minute in range(first, last + 1):
        yield sampled(minute * 60 + 1, ready(minute) if callable(ready) else ready, queue=queue, **fields)


SAMPLES: list[Event] = [
    *every_minute("fine", waiting=1),
    *every_minute("old", waiting=1, oldest_age_ms=120_001),
    *every_minute("just-not-old", waiting=1, oldest_age_ms=120_000),
    *every_minute("was-old", waiting=1, last=9, oldest_age_ms=120_001),
    sampled(601, 0, waiting=1, queue="was-old"),
    *every_minute("growing", lambda minute: minute * 3, waiting=1),
    *every_minute("grew-until-now", lambda minute: 0 if minute == 10 else minute, waiting=1),
    *every_minute("stood-still-once", lambda minute: minute if minute != 7 else 6, waiting=1),
    *every_minute("grew-a-short-time", lambda minute: minute, first=5, waiting=1),
    *every_minute("unpolled"),
    *every_minute("leased-once", last=7),
    sampled(8 * 60, 5, leased=1, queue="leased-once"),
    *every_minute("leased-once", first=8),
    *every_minute("only-retries", 0, retrying=4, oldest_age_ms=70_000),
    *every_minute("nacked-once", last=7),
    sampled(8 * 60, 5, retrying=1, queue="nacked-once"),
    *every_minute("nacked-once", first=8),
    *every_minute("settled-a-little", out_per_second=0.01),
    *every_minute("waited-for-now", last=9),
    sampled(601, 5, waiting=1, queue="waited-for-now"),
    *every_minute("leased-long-ago", first=5),
    sampled(4 * 60 + 2, 5, leased=1, queue="leased-long-ago"),
    *every_minute("emptied", last=9),
    sampled(601, 0, queue="emptied"),
    *every_minute("empty", 0),
    *every_minute("seen-once", first=10),
    *every_minute("silent", first=1, last=4, oldest_age_ms=10**9),
    sampled(5 * 60 + 29.999, 5, queue="silent-just-now"),
    sampled(5 * 60 + 30, 5, queue="heard-just-now"),
    sampled(29, 5, queue="gone"),
    sampled(11 * 60, 5, queue="from-the-future"),
    sampled(10 * 60, 5, queue="fine", tenant="globex"),
]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    rows = health.rows(measures(events_table(SAMPLES)), moment(NOW))
    assert rows.column_names == ["tenant", *(one.name for one in columns_of(REPORT.row))]
    told = rows.to_pylist()
    assert [row["queue"] for row in told if row["tenant"] == "globex"] == ["fine"]
    return {row["queue"]: row for row in told if row["tenant"] == "acme"}


def test_the_problems_of_each_queue(found: dict[str, dict[str, Any]]) -> None:
    problems = {queue: row["problems"] for queue, row in found.items() if row["status"] == "unhealthy"}
    assert problems == {
        "old": ["old"],
        "growing": ["growing"],
        "unpolled": ["unpolled"],
        "leased-long-ago": ["unpolled"],
    }


def test_what_was_not_sampled_for_five_minutes_is_unknown(found: dict[str, dict[str, Any]]) -> None:
    unknown = {queue: row["problems"] for queue, row in found.items() if row["status"] == "unknown"}
    assert unknown == {"silent": [], "silent-just-now": []}


def test_the_other_queues_are_healthy(found: dict[str, dict[str, Any]]) -> None:
    healthy = {queue for queue, row in found.items() if row["status"] == "healthy"}
    assert healthy == {
        "fine",
        "just-not-old",
        "was-old",
        "grew-until-now",
        "stood-still-once",
        "grew-a-short-time",
        "leased-once",
        "nacked-once",
        "only-retries",
        "settled-a-little",
        "waited-for-now",
        "emptied",
        "empty",
        "seen-once",
        "heard-just-now",
    }


def test_a_row_has_the_last_sample_and_the_growth(found: dict[str, dict[str, Any]]) -> None:
    row = found["grew-until-now"]
    assert row.pop("sampledAt").timestamp() == moment(601).timestamp()
    assert row == {
        "tenant": "acme",
        "queue": "grew-until-now",
        "status": "healthy",
        "problems": [],
        "ready": 0,
        "leased": 0,
        "retrying": 0,
        "delayed": 2,
        "dead": 3,
        "waiting": 1,
        "oldestAgeMs": None,
        "expectedDrainSeconds": 60,
        "growthPerMinute": 0.0,  # it is empty now
    }
    assert (found["growing"]["growthPerMinute"], found["fine"]["growthPerMinute"], found["seen-once"]["growthPerMinute"]) == (
        3.0,
        0.0,
        None,
    )


def test_messages_that_wait_for_a_retry_are_in_the_row(found: dict[str, dict[str, Any]]) -> None:
    row = found["only-retries"]
    assert (row["ready"], row["leased"], row["retrying"], row["oldestAgeMs"]) == (0, 0, 4, 70_000)


def test_minutes_without_that_sample_have_no_retries() -> None:
    """Rollups of earlier versions: their `leased` contains the retries."""
    rollups = measures(events_table(SAMPLES))
    earlier = rollups.filter(pc.not_equal(rollups.column("label"), "retrying"))
    rows = {row["queue"]: row for row in health.rows(earlier, moment(NOW)).to_pylist() if row["tenant"] == "acme"}
    assert (rows["only-retries"]["retrying"], rows["unpolled"]["problems"]) == (0, ["unpolled"])
    assert {row["retrying"] for row in backlog.rows(earlier, Grain.HOUR).to_pylist()} == {0.0}
