"""Rows as the messages that the service reads."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from postroad.insights.rows import Report, read_results
from postroad.pipeline.reports import REPORTS, health, messages
from postroad.pipeline.rollups import measures
from tests.pipeline.frames import events_frame
from tests.pipeline.happenings import NOON, moment, some_of_everything

COMPUTED_AT = datetime(2026, 11, 16, 13, 0, 1, 234_567, tzinfo=UTC)
SCHEMA = "tenant string, time timestamp, queue string, phase string, count long, p50 long, mean double"


def row(tenant: str, minutes: float, queue: str, count: int, p50: int | None = 5) -> tuple[Any, ...]:
    return tenant, NOON + timedelta(minutes=minutes), queue, "wait", count, p50, 1.5


def read(
    spark: SparkSession, rows: list[tuple[Any, ...]], grain: str, rows_max: int = 100
) -> dict[str, tuple[str, dict[str, Any]]]:
    found = messages(spark.createDataFrame(rows, SCHEMA), "latency", grain, 42, COMPUTED_AT, rows_max)
    assert found.dtypes == [("subject", "string"), ("message_id", "string"), ("data", "string")]
    return {one["subject"]: (one["message_id"], json.loads(one["data"])) for one in found.collect()}


def test_a_message_has_the_rows_of_a_tenant_and_a_day_in_order(spark: SparkSession) -> None:
    rows = [
        row("acme", 60, "b", 1),
        row("acme", 60, "a", 2, None),
        row("acme", 0, "c", 3),
        row("globex", 0, "a", 4),
        row("acme", 720, "a", 5),
    ]
    found = read(spark, rows, "hour")
    assert set(found) == {
        f"insight.{one}.hour" for one in ("acme.latency.20261116", "acme.latency.20261117", "globex.latency.20261116")
    }
    message_id, body = found["insight.acme.latency.20261116.hour"]
    assert message_id == "latency:42:acme:20261116:hour"
    same = {"phase": "wait", "mean": 1.5}
    assert body == {
        "v": 1,
        "report": "latency",
        "tenant": "acme",
        "day": "20261116",
        "part": "hour",
        "batch": 42,
        "computedAt": "2026-11-16T13:00:01.234Z",
        "rows": [
            {"time": "2026-11-16T12:00:00.000Z", "queue": "c", "count": 3, "p50": 5, **same},
            {"time": "2026-11-16T13:00:00.000Z", "queue": "a", "count": 2, **same},
            {"time": "2026-11-16T13:00:00.000Z", "queue": "b", "count": 1, "p50": 5, **same},
        ],
        "dropped": 0,
    }


def test_the_minutes_of_each_hour_are_a_message(spark: SparkSession) -> None:
    found = read(
        spark, [row("acme", 1, "a", 1), row("acme", 59, "a", 2), row("acme", 60, "a", 3), row("acme", -12 * 60, "a", 4)], "minute"
    )
    counts = {subject: [one["count"] for one in body["rows"]] for subject, (_, body) in found.items()}
    assert counts == {
        "insight.acme.latency.20261116.minute-12": [1, 2],
        "insight.acme.latency.20261116.minute-13": [3],
        "insight.acme.latency.20261116.minute-00": [4],
    }


def test_of_too_many_rows_the_largest_stay_and_the_others_are_counted(spark: SparkSession) -> None:
    rows = [row("acme", minute, "a", count) for minute, count in enumerate((1, 9, 2, 8, 3))] + [row("globex", 0, "a", 1)]
    found = read(spark, rows, "day", rows_max=2)
    _, acme = found["insight.acme.latency.20261116.day"]
    assert ([one["count"] for one in acme["rows"]], acme["dropped"]) == ([9, 8], 3)
    assert found["insight.globex.latency.20261116.day"][1]["dropped"] == 0


def test_the_service_can_read_every_report(spark: SparkSession) -> None:
    rollups = measures(events_frame(spark, some_of_everything())).localCheckpoint()
    told = [
        (name, messages(report.rows(rollups, grain), name, grain, 1, COMPUTED_AT))
        for name, report in REPORTS.items()
        for grain in ("day", "minute")
    ]
    told.append((health.NAME, messages(health.rows(rollups, moment(60)), health.NAME, "all", 1, COMPUTED_AT)))
    whole = told[0][1]
    for _, one in told[1:]:
        whole = whole.unionByName(one)
    subjects = set()
    for message in whole.collect():
        subjects.add(message["subject"])
        _, tenant, report, *_ = message["subject"].split(".")
        results = read_results(message["data"].encode(), Report(report), tenant)
        assert (results.unreadable, results.dropped, bool(results.rows)) == ([], 0, True)
    assert subjects >= {f"insight.acme.{name}.20261116.day" for name in REPORTS}
    assert subjects >= {"insight.acme.health.now.all", "insight.acme.usage.20261116.minute-12"}
