"""Lines of frames become events, or go to the quarantine with a reason."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.kernel.event import event_name
from postroad.pipeline.frame_parser import FAULTS, lines_schema
from postroad.pipeline.ingest import duplicates
from postroad.pipeline.ingest_task import audit_entries, by_day, parsed_lines
from postroad.pipeline.schemas import AUDIT, arrow_schema, event_columns, events_schema, spark_type
from postroad.registry import event_types
from spark_jetstream.record_batches import ARROW_SCHEMA

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
) -> dict[str, Any]:
    headers = {} if frame is None else {"Postroad-Frame": frame, "Postroad-Events": str(len(lines))}
    values = (stream, subject, sequence, STORED, list(headers.items()), "\n".join(lines).encode())
    return dict(zip(ARROW_SCHEMA.names, values, strict=True))


def messages(*given: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(given), schema=ARROW_SCHEMA)


def parsed(*given: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of all tables in their order; a valid one has no `fault` and no `raw`."""
    tables = parsed_lines(messages(*given))
    assert all(lines.schema == lines_schema(name) for name, lines in tables.items())
    found = [{"fault": None, "raw": None, **row} for lines in tables.values() for row in lines.to_pylist()]
    return sorted(found, key=lambda row: (row["stream"], row["sequence"], row["line"]))


def test_every_event_of_the_catalogue_has_its_columns() -> None:
    assert {"job_id", "queue", "payload_bytes", "wait_ms", "oldest_age_ms", "session_id", "is_expired"} <= set(event_columns())
    assert events_schema()["in_per_second"].dataType.simpleString() == "double"
    assert events_schema()["ready"].dataType.simpleString() == "bigint"
    assert events_schema()["is_expired"].dataType.simpleString() == "boolean"
    assert len(events_schema().names) == len(set(events_schema().names))
    assert len(event_types()) > 20


def test_events_of_commands_are_in_their_own_tables() -> None:
    """`events` keeps its columns, and the pipeline finds requests for replays in `command_events`."""
    on_stream = {event_name(kind): kind.table for kind in event_types() if kind.stream == "COMMANDS"}
    assert {table for name, table in on_stream.items() if name.startswith(("snavio.", "replay."))} == {"command_events"}
    assert on_stream["command.archived"] == "commands"
    assert "selection" in event_columns("command_events")


def test_a_field_of_a_kind_that_has_no_column_is_refused() -> None:
    with pytest.raises(TypeError, match="no column type"):
        spark_type(dict[str, str])
    assert spark_type(list[str] | None).simpleString() == "array<string>"


def test_a_line_becomes_an_event_with_its_place_and_time() -> None:
    leased = queued(event="job.leased", event_id="e2", attempt=2, lease_until="2026-11-16T12:10:00.000Z", wait_ms=41)
    first, second = parsed(message(json.dumps(queued()), json.dumps(leased)))
    assert {name: first[name] for name in ("event", "version", "event_id", "tenant", "stream", "sequence", "line")} == {
        "event": "job.queued",
        "version": 1,
        "event_id": "e1",
        "tenant": "acme",
        "stream": "JOBS",
        "sequence": 7,
        "line": 0,
    }
    assert (second["stream"], second["sequence"], second["line"], second["event_id"]) == ("JOBS", 7, 1, "e2")
    assert first["time"] == datetime(2026, 11, 16, 11, 59, 59, 250_000, tzinfo=UTC)
    assert (first["queue"], first["payload_bytes"], first["attempt"]) == ("orders", 12, None)
    assert (second["attempt"], second["wait_ms"], second["lease_until"]) == (2, 41, "2026-11-16T12:10:00.000Z")
    assert (first["fault"], first["raw"], first["extra"], first["is_late"]) == (None, None, None, False)


def test_what_is_no_event_has_a_fault() -> None:
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
    given = [message(line, sequence=number) for number, (_, line) in enumerate(lines)]
    given.append(message(json.dumps(queued()), sequence=98, frame=None))
    given.append(message(json.dumps(queued()), sequence=99, frame="2"))
    found = parsed(*given)
    assert [row["fault"] for row in found] == [*(fault for fault, _ in lines), "unknown-frame", "unknown-frame"]
    assert [row["raw"] for row in found[: len(lines)]] == [line for _, line in lines]
    assert {row["time"] for row in found} == {STORED}
    assert {row["fault"] for row in found} == set(FAULTS), "the lake counts each of them"


def test_one_bad_line_does_not_cost_the_frames_other_lines() -> None:
    found = parsed(message("{oops", json.dumps(queued()), "", json.dumps(queued(event_id="e2"))))
    assert [(row["line"], row["fault"]) for row in found] == [(0, "not-json"), (1, None), (3, None)]


def test_an_unknown_field_is_kept() -> None:
    more = queued(colour="red", nested={"a": [1, 2]})
    swapped = {**without("request_id"), "colour": "blue"}  # as many fields as usual, and not the usual ones
    short = without("request_id")
    found = parsed(message(json.dumps(more), json.dumps(short), json.dumps(swapped)))
    assert [row["fault"] for row in found] == [None] * 3
    assert json.loads(found[0]["extra"]) == {"colour": "red", "nested": {"a": [1, 2]}}
    assert found[1]["extra"] is None
    assert json.loads(found[2]["extra"]) == {"colour": "blue"}


def test_late_is_what_happened_more_than_an_hour_before_it_was_stored() -> None:
    late = queued(timestamp="2026-11-16T10:59:59.000Z")
    in_time = queued(timestamp="2026-11-16T11:00:01.000Z")
    old = queued(timestamp="2026-11-15T23:00:00.000Z")
    given = messages(message(json.dumps(late), json.dumps(in_time), json.dumps(old)))
    days = {day: sorted(rows.column("is_late").to_pylist()) for day, rows in by_day(parsed_lines(given)["events"], "time")}
    assert days == {"2026-11-16": [False, True], "2026-11-15": [True]}


def test_each_event_once_the_first_that_was_stored() -> None:
    found = [
        ("a", ("JOBS", 9, 0), "new-2"),
        ("a", ("JOBS", 2, 5), "new-1"),
        ("a", ("JOBS", 2, 7), "new-1"),
        ("b", ("JOBS", 3, 0), "new-1"),
        ("c", ("JOBS", 4, 0), "new-1"),
        ("c", ("JOBS", 1, 0), "old"),
    ]
    assert duplicates(found, {"old"}) == {"new-1": [("JOBS", 2, 7), ("JOBS", 4, 0)], "new-2": [("JOBS", 9, 0)]}


def test_entries_of_the_audit_log() -> None:
    entry = {"v": 1, "id": "a1", "tenant": "acme", "action": "key.create", "target": "k2"}
    ours = message(json.dumps(entry), stream="AUDIT", subject="audit.acme", frame=None)
    odd = message("[1]", stream="AUDIT", subject="audit.acme", frame=None, sequence=8)
    table = audit_entries(messages(ours, message(json.dumps(queued())), odd))
    assert table.schema == arrow_schema(AUDIT)
    row, other = table.to_pylist()
    assert (row["tenant"], row["action"], row["sequence"], row["time"]) == ("acme", "key.create", 7, STORED)
    assert json.loads(row["entry"]) == entry
    assert (other["action"], other["entry"]) == (None, "[1]")
    assert parsed(ours) == []
