"""Lines of frames become events, or go to the quarantine with a reason."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from postroad.pipeline.events import PARSED, audit_entries, parsed_lines, without_duplicates
from postroad.pipeline.schemas import AUDIT, MESSAGES, QUARANTINE, event_columns, events_schema, spark_type
from postroad.registry import event_types

STORED = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


def queued(**changes: Any) -> dict[str, Any]:
    return {
        "event": "job.queued",
        "version": 1,
        "event_id": "e1",
        "timestamp": "2026-11-16T11:59:59.250Z",
        "tenant": "acme",
        "job_id": "j1",
        "message_id": "m1",
        "queue": "orders",
        "audit": "full",
        "payload_bytes": 12,
        "delay_ms": 0,
        "expires_at": None,
        "correlation_id": None,
        "key_id": "k1",
        "request_id": "r1",
        **changes,
    }


def without(name: str) -> dict[str, Any]:
    event = queued()
    del event[name]
    return event


def message(
    *lines: str, sequence: int = 7, frame: str | None = "1", stream: str = "JOBS", subject: str = "job.acme"
) -> tuple[object, ...]:
    headers = {} if frame is None else {"Postroad-Frame": frame, "Postroad-Events": str(len(lines))}
    return (stream, subject, sequence, STORED, headers, bytearray("\n".join(lines).encode()))


def parsed(spark: SparkSession, *messages: tuple[object, ...]) -> DataFrame:
    return parsed_lines(spark.createDataFrame(list(messages), MESSAGES))


def rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("stream", "sequence", "line").collect()


def test_every_event_of_the_catalogue_has_its_columns() -> None:
    assert {"job_id", "queue", "payload_bytes", "wait_ms", "oldest_age_ms", "session_id", "is_expired"} <= set(event_columns())
    assert events_schema()["in_per_second"].dataType.simpleString() == "double"
    assert events_schema()["ready"].dataType.simpleString() == "bigint"
    assert events_schema()["is_expired"].dataType.simpleString() == "boolean"
    assert len(events_schema().names) == len(set(events_schema().names))
    assert len(event_types()) > 20


def test_a_field_of_a_kind_that_has_no_column_is_refused() -> None:
    with pytest.raises(TypeError, match="no column type"):
        spark_type(list[str])


def test_a_line_becomes_an_event_with_its_place_and_time(spark: SparkSession) -> None:
    leased = queued(event="job.leased", event_id="e2", attempt=2, lease_until="2026-11-16T12:10:00.000Z", wait_ms=41)
    frame = parsed(spark, message(json.dumps(queued()), json.dumps(leased)))
    assert frame.schema.simpleString() == PARSED.simpleString()
    first, second = rows(frame)
    assert (first.event, first.version, first.event_id, first.tenant) == ("job.queued", 1, "e1", "acme")
    assert (first.stream, first.sequence, first.line) == ("JOBS", 7, 0)
    assert (second.stream, second.sequence, second.line, second.event_id) == ("JOBS", 7, 1, "e2")
    assert first.time.astimezone(UTC) == datetime(2026, 11, 16, 11, 59, 59, 250_000, tzinfo=UTC)
    assert (first.queue, first.payload_bytes, first.attempt) == ("orders", 12, None)
    assert (second.attempt, second.wait_ms, second.lease_until) == (2, 41, "2026-11-16T12:10:00.000Z")
    assert [row.state for row in (first, second)] == ["event", "event"]
    assert first.day == "2026-11-16"
    assert (first.fault, first.raw, first.extra, first.is_late) == (None, None, None, False)


def test_what_is_no_event_goes_to_the_quarantine_with_its_reason(spark: SparkSession) -> None:
    lines = [
        ("not-json", "{oops"),
        ("not-json", "[1, 2]"),
        ("no-event", json.dumps({"a": 1})),
        ("unknown-event", json.dumps(queued(event="job.flown"))),
        ("unknown-version", json.dumps(queued(version=2))),
        ("unknown-version", json.dumps(queued(version=0))),
        ("bad-field", json.dumps(queued(payload_bytes="many"))),
        ("missing-field", json.dumps(without("job_id"))),
        ("missing-field", json.dumps(queued(event_id=None))),
        ("wrong-tenant", json.dumps(queued(tenant="other"))),
        ("bad-time", json.dumps(queued(timestamp="yesterday"))),
        ("bad-time", json.dumps(queued(timestamp="2026-11-18T00:00:00.000Z"))),
        ("bad-time", json.dumps(queued(timestamp="1999-01-01T00:00:00.000Z"))),
    ]
    messages = [message(line, sequence=number) for number, (_, line) in enumerate(lines)]
    messages.append(message(json.dumps(queued()), sequence=98, frame=None))
    messages.append(message(json.dumps(queued()), sequence=99, frame="2"))
    frame = parsed(spark, *messages).cache()
    found = rows(frame)
    assert [row.fault for row in found] == [*(fault for fault, _ in lines), "unknown-frame", "unknown-frame"]
    assert [row.raw for row in found[: len(lines)]] == [line for _, line in lines]
    assert {row.state for row in found} == {"bad"}
    assert {row.day for row in found} == {"2026-11-16"}
    kept = frame.select(*QUARANTINE.names)  # as the lake keeps them
    assert kept.schema.simpleString() == QUARANTINE.simpleString()
    assert kept.count() == len(found)
    frame.unpersist()


def test_one_bad_line_does_not_cost_the_frames_other_lines(spark: SparkSession) -> None:
    found = rows(parsed(spark, message("{oops", json.dumps(queued()), "", json.dumps(queued(event_id="e2")))))
    assert [(row.line, row.state) for row in found] == [(0, "bad"), (1, "event"), (3, "event")]


def test_an_unknown_field_is_kept(spark: SparkSession) -> None:
    more = queued(colour="red", nested={"a": [1, 2]})
    swapped = {**without("request_id"), "colour": "blue"}  # as many fields as usual, and not the usual ones
    short = without("request_id")
    found = rows(parsed(spark, message(json.dumps(more), json.dumps(short), json.dumps(swapped))))
    assert [row.state for row in found] == ["event"] * 3
    assert json.loads(found[0].extra) == {"colour": "red", "nested": {"a": [1, 2]}}
    assert found[1].extra is None
    assert json.loads(found[2].extra) == {"colour": "blue"}


def test_late_is_what_happened_more_than_an_hour_before_it_was_stored(spark: SparkSession) -> None:
    late = queued(timestamp="2026-11-16T10:59:59.000Z")
    in_time = queued(timestamp="2026-11-16T11:00:01.000Z")
    old = queued(timestamp="2026-11-15T23:00:00.000Z")
    found = rows(parsed(spark, message(json.dumps(late), json.dumps(in_time), json.dumps(old))))
    assert [(row.is_late, row.day) for row in found] == [(True, "2026-11-16"), (False, "2026-11-16"), (True, "2026-11-15")]


def test_each_event_once_the_first_that_was_stored(spark: SparkSession) -> None:
    def event(event_id: str, sequence: int, line: int) -> Sequence[object]:
        return [
            {"event_id": event_id, "stream": "JOBS", "sequence": sequence, "line": line}.get(name)
            for name in events_schema().names
        ]

    events = spark.createDataFrame(
        [event("a", 9, 0), event("a", 2, 5), event("a", 2, 7), event("b", 3, 0), event("c", 4, 0)], events_schema()
    )
    seen = spark.createDataFrame([event("c", 1, 0), event("z", 1, 1)], events_schema())
    left = without_duplicates(events, seen)
    assert left.schema == events_schema()
    assert [(row.event_id, row.sequence, row.line) for row in left.orderBy("event_id").collect()] == [("a", 2, 5), ("b", 3, 0)]


def test_entries_of_the_audit_log(spark: SparkSession) -> None:
    entry = {"v": 1, "id": "a1", "tenant": "acme", "action": "key.create", "target": "k2"}
    ours = message(json.dumps(entry), stream="AUDIT", subject="audit.acme", frame=None)
    frame = audit_entries(spark.createDataFrame([ours, message(json.dumps(queued()))], MESSAGES))
    assert frame.drop("day").schema.simpleString() == AUDIT.simpleString()
    [row] = frame.collect()
    assert (row.tenant, row.action, row.sequence, row.day) == ("acme", "key.create", 7, "2026-11-16")
    assert json.loads(row.entry) == entry
    assert parsed(spark, ours).count() == 0
