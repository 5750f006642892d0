"""Rows of reports as messages to the service."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.api.insights import Grain
from postroad.api.reports.latency import REPORT as LATENCY
from postroad.insights.results import read_results
from postroad.pipeline.measures import measures
from postroad.pipeline.report_messages import report_messages
from postroad.pipeline.reports import computed_reports
from postroad.pipeline.rollups import TIME
from tests.pipeline.command_samples import delivered, limited, skewed, telemetry_sampled
from tests.pipeline.event_samples import NOON, moment, sample_events
from tests.pipeline.frames import events_table

COMPUTED_AT = datetime(2026, 11, 16, 13, 0, 1, 234_567, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("time", TIME),
        ("queue", pa.string()),
        ("phase", pa.string()),
        *((name, pa.int64()) for name in ("count", "p50", "p95", "p99", "max")),
        ("mean", pa.float64()),
    ]
)


def row(tenant: str, minutes: float, queue: str, count: int, p50: int | None = 5) -> tuple[Any, ...]:
    return tenant, NOON + timedelta(minutes=minutes), queue, "wait", count, p50, 6, 7, 8, 1.5


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in rows], schema=SCHEMA)


def read(rows: list[tuple[Any, ...]], grain: str, rows_max: int = 100) -> dict[str, tuple[str, dict[str, Any]]]:
    found = report_messages(table(rows), LATENCY, Grain(grain), 42, COMPUTED_AT, rows_max)
    return {one.subject: (one.message_id, json.loads(one.data)) for one in found}


def test_a_message_has_the_rows_of_a_tenant_and_a_day_in_order() -> None:
    rows = [
        row("acme", 60, "b", 1),
        row("acme", 60, "a", 2, None),
        row("acme", 0, "c", 3),
        row("globex", 0, "a", 4),
        row("acme", 720, "a", 5),
    ]
    found = read(rows, "hour")
    assert set(found) == {
        f"insight.{one}.hour" for one in ("acme.latency.20261116", "acme.latency.20261117", "globex.latency.20261116")
    }
    message_id, body = found["insight.acme.latency.20261116.hour"]
    assert message_id == "latency:42:acme:20261116:hour"
    same = {"phase": "wait", "p95": 6, "p99": 7, "max": 8, "mean": 1.5}
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


def test_the_minutes_of_each_hour_are_one_message() -> None:
    found = read(
        [row("acme", 1, "a", 1), row("acme", 59, "a", 2), row("acme", 60, "a", 3), row("acme", -12 * 60, "a", 4)], "minute"
    )
    counts = {subject: [one["count"] for one in body["rows"]] for subject, (_, body) in found.items()}
    assert counts == {
        "insight.acme.latency.20261116.minute-12": [1, 2],
        "insight.acme.latency.20261116.minute-13": [3],
        "insight.acme.latency.20261116.minute-00": [4],
    }


def test_the_largest_rows_are_published_and_the_others_are_counted() -> None:
    rows = [row("acme", minute, "a", count) for minute, count in enumerate((1, 9, 2, 8, 3))] + [row("globex", 0, "a", 1)]
    found = read(rows, "day", rows_max=2)
    _, acme = found["insight.acme.latency.20261116.day"]
    assert ([one["count"] for one in acme["rows"]], acme["dropped"]) == ([9, 8], 3)
    assert found["insight.globex.latency.20261116.day"][1]["dropped"] == 0


def test_columns_that_are_not_those_of_the_row_type_are_refused() -> None:
    rows = table([row("acme", 0, "a", 1)])
    for wrong in (rows.drop_columns(["p95"]), rows.rename_columns([*rows.column_names[:-1], "average"])):
        with pytest.raises(TypeError, match="latency has the columns"):
            report_messages(wrong, LATENCY, Grain.DAY, 1, COMPUTED_AT)


def test_the_service_can_read_every_report() -> None:
    samples = [telemetry_sampled(1, 7, 100, 5000)]
    commands = [delivered(1), delivered(2, target="acme/mailer"), skewed(3, 0.5), limited(4, "acme/mailer")]
    rollups = pa.concat_tables(
        [
            measures(events_table([*sample_events(), *samples])),
            measures(events_table(commands, "command_events"), "command_events"),
        ]
    )
    declared = {one.report.name: one.report for one in computed_reports()}
    grains: tuple[Grain | None, ...] = (Grain.DAY, Grain.MINUTE)
    messages = [
        message
        for one in computed_reports()
        for grain in ((None,) if one.report.is_snapshot else grains)
        for message in report_messages(one.rows(rollups, grain or moment(60)), one.report, grain, 1, COMPUTED_AT)
    ]
    subjects = set()
    for message in messages:
        subjects.add(message.subject)
        _, tenant, name, *_ = message.subject.split(".")
        results = read_results(message.data, declared[name], tenant)
        assert (results.unreadable, results.dropped, bool(results.rows)) == ([], 0, True)
    over_time = {name for name, report in declared.items() if not report.is_snapshot}
    assert subjects >= {f"insight.acme.{name}.20261116.day" for name in over_time}
    assert subjects >= {"insight.acme.health.now.all", "insight.acme.usage.20261116.minute-12"}
