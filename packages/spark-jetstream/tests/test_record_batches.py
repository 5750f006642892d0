"""Arrow record batches: schema, timestamps, headers and invalid UTF-8."""

from datetime import UTC, datetime

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from spark_jetstream import protocol
from spark_jetstream.protocol import MessageColumns
from spark_jetstream.record_batches import ARROW_SCHEMA, record_batch


def columns(**more: object) -> MessageColumns:
    return MessageColumns(**{"subjects": [b"a"], "sequences": [b"1"], "times": [b"0"], "headers": [None], "data": [b""], **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "microsecond"),
    [
        (b"1794809433694360999", 694360),
        (b"2026-11-16T06:10:33.694360999Z", 694360),
        (b"2026-11-16T06:10:33.5Z", 500000),
        (b"2026-11-16T06:10:33Z", 0),
        (b"2026-11-16T06:10:33.000000001Z", 0),
    ],
)
def test_a_time_is_truncated_to_microseconds(sent: bytes, microsecond: int) -> None:
    batch = record_batch("S", columns(times=[sent]))

    assert batch.schema.equals(ARROW_SCHEMA)
    assert batch.column("timestamp").to_pylist() == [datetime(2026, 11, 16, 6, 10, 33, microsecond, tzinfo=UTC)]


def test_repeated_headers_are_joined() -> None:
    sections = [
        None,
        protocol.encode_headers(b"A: 1\r\nB:2\r\nA: 3\r\n"),
        None,
        protocol.encode_headers(b"Empty:\r\nC: x: y \r\n"),
    ]
    batch = record_batch(
        "S", columns(subjects=[b"a"] * 4, sequences=[b"1"] * 4, times=[b"0"] * 4, headers=sections, data=[b""] * 4)
    )

    assert batch.column("headers").to_pylist() == [[], [("A", "1,3"), ("B", "2")], [], [("Empty", ""), ("C", "x: y ")]]
    assert batch.column("headers").null_count == 0


def test_invalid_utf8_is_replaced_in_subjects_and_headers() -> None:
    batch = record_batch(
        "S", columns(subjects=[b"a.\xff"], headers=[protocol.encode_headers(b"A: \xfe\r\n")], data=[b"\xff\x00"])
    )

    assert batch.column("subject").to_pylist() == ["a.\ufffd"]
    assert batch.column("headers").to_pylist() == [[("A", "\ufffd")]]
    assert batch.column("data").to_pylist() == [b"\xff\x00"]


def test_messages_without_headers_have_empty_maps() -> None:
    batch = record_batch("S", columns())

    assert batch.num_rows == 1
    assert batch.column("headers").to_pylist() == [[]]
    assert isinstance(batch, pa.RecordBatch)
