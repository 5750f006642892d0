"""Rows and columns of the reports, computed from small frames."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.api.insights import Grain, columns_of
from postroad.kernel.event import Event
from postroad.pipeline.measures import measures
from postroad.pipeline.reports import backlog, computed_reports
from postroad.pipeline.rollups import TIME
from tests.pipeline.event_samples import dead, leased, moment, queued, redriven, sample_events, sampled, stored
from tests.pipeline.frames import events_table

Rows = list[dict[str, Any]]
_KINDS = {pa.string(): "string", pa.int64(): "bigint", pa.float64(): "double", TIME: "timestamp"}


@pytest.fixture(scope="module")
def rollups() -> pa.Table:
    """Rollups of two sets of events, not merged."""
    more: list[Event] = [
        *(leased(1800, ms, tenant="globex") for ms in range(1, 101)),
        *(leased(3600, ms, tenant="globex") for ms in (1000, 2000)),
        dead(1800, 1, "bad address"),
        redriven(1801, "mail"),
        queued(3600, 9),
        stored(3600, 7000),
        sampled(1800, ready=30, oldest_age_ms=50),
    ]
    return pa.concat_tables([measures(events_table(sample_events())), measures(events_table(more))])


def read(report: str, grain: str, rollups: pa.Table, types: str) -> Rows:
    [declared] = [one for one in computed_reports() if one.report.name == report]
    rows = declared.rows(rollups, Grain(grain))
    assert [f"{field.name}:{_KINDS[field.type]}" for field in rows.schema] == types.split()
    assert rows.column_names == ["tenant", *(one.name for one in columns_of(declared.report.row))]
    found: Rows = rows.to_pylist()
    for row in found:
        row["time"] = round(row["time"].timestamp() - moment(0).timestamp())
    return sorted(found, key=repr)


LATENCY = (
    "tenant:string time:timestamp queue:string phase:string count:bigint p50:bigint p95:bigint p99:bigint max:bigint mean:double"
)


def test_latency_by_the_hour(rollups: pa.Table) -> None:
    found = [tuple(row.values()) for row in read("latency", "hour", rollups, LATENCY)]
    assert found == [
        ("acme", 0, "mail", "processing", 2, 131, 131, 131, 131, 130.5),
        ("acme", 0, "mail", "wait", 2, 40, 1000, 1000, 1000, 520.0),
        ("acme", 3600, "mail", "wait", 1, 40, 40, 40, 40, 40.0),
        ("globex", 0, "mail", "wait", 100, 50, 95, 99, 100, 50.5),
        ("globex", 3600, "mail", "wait", 2, 1004, 2000, 2000, 2000, 1500.0),
    ]


def test_latency_by_the_day_covers_all_its_minutes(rollups: pa.Table) -> None:
    found = [tuple(row.values()) for row in read("latency", "day", rollups, LATENCY) if row["tenant"] == "globex"]
    assert found == [("globex", -12 * 3600, "mail", "wait", 102, 51, 97, 1004, 2000, 78.922)]


def test_latency_by_the_minute(rollups: pa.Table) -> None:
    found = [(row["time"], row["count"]) for row in read("latency", "minute", rollups, LATENCY) if row["phase"] == "wait"]
    assert found == [(0, 2), (3660, 1), (1800, 100), (3600, 2)]


USAGE = (
    "tenant:string time:timestamp published:bigint publishedBytes:bigint deliveries:bigint done:bigint dead:bigint "
    "cancelled:bigint expired:bigint "
    "requests:bigint bytesIn:bigint bytesOut:bigint appends:bigint appendBytes:bigint fanoutMessages:bigint "
    "storageByteHours:double storedBytes:bigint"
)


def test_usage_by_the_day(rollups: pa.Table) -> None:
    acme, globex = read("usage", "day", rollups, USAGE)
    assert tuple(acme.values()) == ("acme", -12 * 3600, 3, 159, 4, 2, 4, 0, 0, 7, 500, 0, 0, 0, 0, round(109_700 / 3600, 3), 7000)
    assert (globex["published"], globex["deliveries"], globex["storedBytes"]) == (1, 102, 0)


def test_usage_by_the_hour_has_the_storage_at_its_end(rollups: pa.Table) -> None:
    found = read("usage", "hour", rollups, USAGE)
    assert [(row["tenant"], row["time"], row["published"], row["storedBytes"]) for row in found] == [
        ("acme", 0, 2, 3000),
        ("acme", 3600, 1, 7000),
        ("globex", 0, 1, 0),
        ("globex", 3600, 0, 0),
    ]


def test_dead_letters_by_the_hour(rollups: pa.Table) -> None:
    types = "tenant:string time:timestamp queue:string reason:string count:bigint firstAttempt:bigint lastAt:timestamp"
    found = read("dead-letters", "hour", rollups, types)
    assert [(row["queue"], row["reason"], row["count"], row["firstAttempt"], row["lastAt"].timestamp()) for row in found] == [
        ("bill", "x" * 200, 1, 1, moment(9).timestamp()),
        ("mail", "bad address", 3, 2, moment(1800).timestamp()),
        ("mail", "redriven", 2, 0, moment(1801).timestamp()),
    ]


def test_sessions_by_the_hour(rollups: pa.Table) -> None:
    types = "tenant:string time:timestamp subscribed:bigint unsubscribed:bigint touched:bigint deleted:bigint expired:bigint"
    assert [tuple(row.values()) for row in read("sessions", "hour", rollups, types)] == [("acme", 0, 2, 1, 1, 1, 2)]


def test_backlog_has_means_and_maxima(rollups: pa.Table) -> None:
    """Requirement 192: the oldest age and delayed messages of each queue."""
    types = (
        "tenant:string time:timestamp queue:string ready:double readyMax:bigint leased:double "
        "retrying:double delayed:double dead:double oldestAgeMsMax:bigint"
    )
    assert [tuple(row.values()) for row in read("backlog", "hour", rollups, types)] == [
        ("acme", 0, "mail", 14.0, 30, 0.333, 2.0, 2.0, 3.0, 900)
    ]
    assert [row["ready"] for row in read("backlog", "minute", rollups, types)] == [6.0, 30.0]


def test_an_empty_queue_has_no_oldest_message() -> None:
    samples = [sampled(5, ready=0), sampled(70, ready=1, oldest_age_ms=3), sampled(75, ready=0)]
    minutes = backlog.rows(measures(events_table(samples)), Grain.MINUTE).sort_by("time").to_pylist()
    assert [(row["readyMax"], row["oldestAgeMsMax"]) for row in minutes] == [(0, None), (1, 3)]
