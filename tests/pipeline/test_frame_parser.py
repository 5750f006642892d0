"""Frames become columns without Spark."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.kernel.clock import rfc3339
from postroad.kernel.event import event_name
from postroad.pipeline.frame_parser import MESSAGE, Line, Message, lines_of, lines_schema, read
from postroad.registry import event_types
from tests.pipeline.traffic import Traffic, framed

STORED = datetime(2026, 11, 1, 13, 0, 0, tzinfo=UTC)
LATE = STORED - timedelta(hours=1)


def message(data: bytes, owner: str = "acme", frame: str | None = "1") -> Message:
    return Message("JOBS", 7, STORED, owner, frame, data, LATE)


def purged(**changes: Any) -> bytes:
    event = {
        "event": "queue.purged",
        "version": 1,
        "event_id": "e1",
        "timestamp": "2026-11-01T12:59:00.000Z",
        "tenant": "acme",
        "queue": "orders",
        "count": 3,
        "key_id": "k",
        **changes,
    }
    return json.dumps(event).encode()


def only(line: bytes) -> Line:
    [found] = lines_of(message(line))
    return found


def test_frames_of_traffic_become_batches_of_one_type_with_every_event_in_its_place() -> None:
    traffic = Traffic(3, start=int(STORED.timestamp() * 1000) - 600_000)
    frames = framed([*traffic.jobs(200), *traffic.samples(), *traffic.sessions(30)], size=64)
    rows = [("JOBS", number, STORED, frame.tenant, "1", frame.message.data) for number, frame in enumerate(frames)]
    given = pa.RecordBatch.from_pylist([dict(zip(MESSAGE.names, row, strict=True)) for row in rows], schema=MESSAGE)
    found = list(read([given]))
    assert all(batch.schema == lines_schema(table) for table, batch in found)
    assert all(len(set(batch["event"].to_pylist())) == 1 for _, batch in found)
    by_place = {(row["sequence"], row["line"]): row for _, batch in found for row in batch.to_pylist()}
    sent = {(number, line): json.loads(raw) for number, frame in enumerate(frames) for line, raw in enumerate(frame.lines)}
    assert by_place.keys() == sent.keys()
    for place, event in sent.items():
        row = by_place[place]
        assert rfc3339(int(row["time"].timestamp() * 1000)) == event.pop("timestamp")
        assert {name: row[name] for name in event} == event
        assert row["extra"] is None


@pytest.mark.parametrize("kind", event_types(), ids=event_name)
def test_a_plain_event_of_every_type_is_read(kind: type[msgspec.Struct]) -> None:
    values: dict[Any, Any] = {str: "x", int: 1, float: 1.5, bool: True, list[str]: ["x", "y"]}
    required = {one.name: values[one.type] for one in msgspec.structs.fields(kind) if one.required}
    made = kind(**{**required, "tenant": "acme", "timestamp": "2026-11-01T12:59:00.000Z"})
    line = only(msgspec.json.encode(made))
    assert (line.fault, line.extra) == (None, None)
    assert event_name(type(line.event)) == event_name(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"\xff\xfe", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b'"text"', "not-json"),
        (purged(event=7), "unknown-event"),
        (purged(event=None), "no-event"),
        (purged(version="1"), "unknown-version"),
        (purged(version=True), "unknown-version"),
        (purged(version=None), "unknown-version"),
        (purged(count=2**63), "bad-field"),
        (purged(count=1.5), "bad-field"),
        (purged(is_deleted="yes"), "bad-field"),
        (purged(queue=None), "missing-field"),
        (purged(tenant="other"), "wrong-tenant"),
        (purged(timestamp="2026-11-01T12:59:00"), "bad-time"),
        (purged(timestamp=1_793_534_400), "bad-time"),
        (purged(timestamp="2026-11-02T13:00:01Z"), "bad-time"),
        (purged(timestamp="2019-12-31T23:59:59Z"), "bad-time"),
    ],
)
def test_what_is_wrong_with_a_line(raw: bytes, fault: str) -> None:
    line = only(raw)
    assert (line.fault, line.event, line.raw) == (fault, None, raw)


def test_a_number_of_eight_bytes_is_one() -> None:
    assert only(purged(count=2**63 - 1)).event.count == 2**63 - 1


def test_what_the_catalogue_does_not_know_is_kept_with_the_event() -> None:
    line = only(purged(colour="red", nested={"a": [1, 2]}))
    assert (line.fault, line.event.queue) == (None, "orders")
    assert json.loads(line.extra or "") == {"colour": "red", "nested": {"a": [1, 2]}}


def test_texts_that_no_column_can_hold_do_not_stop_the_others() -> None:
    """Half of a surrogate pair is JSON, and no Unicode."""
    data = b"\n".join((purged(queue="\ud800"), purged(), purged(colour="\udfff")))
    row = dict(zip(MESSAGE.names, ("JOBS", 7, STORED, "acme", "1", data), strict=True))
    found = [row for _, batch in read([pa.RecordBatch.from_pylist([row], schema=MESSAGE)]) for row in batch.to_pylist()]
    assert sorted((row["line"], row.get("fault")) for row in found) == [(0, "not-json"), (1, None), (2, "not-json")]


@pytest.mark.parametrize(("data", "numbers"), [(b"", []), (b"\n\n", []), (purged() + b"\n", [0]), (b"\n" + purged(), [1])])
def test_empty_lines_count_and_are_nothing(data: bytes, numbers: list[int]) -> None:
    assert [line.number for line in lines_of(message(data))] == numbers


def test_a_message_that_is_no_frame_is_one_bad_line() -> None:
    [line] = lines_of(message(purged() + b"\n" + purged(), frame="2"))
    assert (line.number, line.fault, line.raw) == (0, "unknown-frame", purged() + b"\n" + purged())
