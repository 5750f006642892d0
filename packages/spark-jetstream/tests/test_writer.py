"""Rows as messages: ids, headers, and rows that cannot be sent."""

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_jetstream.errors import InvalidRow, OptionError
from spark_jetstream.protocol import header_block
from spark_jetstream.publisher import Message
from spark_jetstream.writer import check_columns, header_lines, messages

MAP = pa.map_(pa.string(), pa.string())


def rows(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def sent(batch: pa.RecordBatch, expected_stream: str | None = None) -> list[Message]:
    return list(messages(iter([batch]), expected_stream, lambda row: None))


def test_a_row_is_a_message() -> None:
    headers = pa.array([[("A", "b"), ("C", "d")], [], None], MAP)
    found = sent(rows(subject=["a.b", "c", "c"], data=[b"1", b"", b"3"], headers=headers, message_id=["x", None, "z"]))

    assert found == [
        Message(b"a.b", header_block(b"A: b\r\nC: d\r\nNats-Msg-Id: x\r\n"), b"1"),
        Message(b"c", b"", b""),
        Message(b"c", header_block(b"Nats-Msg-Id: z\r\n"), b"3"),
    ]


def test_text_is_sent_as_utf8() -> None:
    assert sent(rows(subject=["a"], data=["grüße"]))[0].data == "grüße".encode()


def test_the_stream_that_is_expected_is_told_to_the_server() -> None:
    assert sent(rows(subject=["a"], data=["x"]), "JOBS")[0].headers == header_block(b"Nats-Expected-Stream: JOBS\r\n")


def test_rows_are_counted_over_all_batches() -> None:
    batches = [rows(subject=["a", "a"], data=["x", "y"]), rows(subject=["a"], data=["z"])]

    found = list(messages(iter(batches), None, lambda row: f"id-{row}"))

    assert [one.headers for one in found] == [header_block(b"Nats-Msg-Id: id-%d\r\n" % row) for row in range(3)]


def test_the_rows_own_id_goes_first() -> None:
    headers: list[tuple[str, str | None]] = [("nats-msg-id", "of the headers"), ("A", "b")]

    assert header_lines(headers, "own", "made") == b"A: b\r\nNats-Msg-Id: own\r\n"
    assert header_lines(headers, None, "made") == b"A: b\r\nNats-Msg-Id: of the headers\r\n"
    assert header_lines([("A", "b"), ("N", None)], None, "made") == b"A: b\r\nNats-Msg-Id: made\r\n"
    assert header_lines(None, None, None) == b""


@pytest.mark.parametrize(
    "row",
    [
        {"subject": [None], "data": ["x"]},
        {"subject": ["a.*"], "data": ["x"]},
        {"subject": ["$JS.API.STREAM.DELETE.S"], "data": ["x"]},
        {"subject": ["a"], "data": pa.array([None], pa.string())},
        {"subject": ["a"], "data": ["x"], "message_id": ["x\r\ny"]},
        {"subject": ["a"], "data": ["x"], "headers": pa.array([[("A", "x\r\nB: y")]], MAP)},
        {"subject": ["a"], "data": ["x"], "headers": pa.array([[("A:", "x")]], MAP)},
    ],
)
def test_a_row_that_cannot_be_sent_is_refused(row: dict[str, object]) -> None:
    if row["subject"] == [None]:
        row = {**row, "subject": pa.array([None], pa.string())}
    with pytest.raises(InvalidRow):
        sent(rows(**row))


def schema(**types: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])  # type: ignore[arg-type]


def test_columns_that_fit() -> None:
    text = StringType()
    assert check_columns(schema(subject=text, data=BinaryType()), False) == ("subject", "data")
    check_columns(schema(data=text, headers=MapType(text, text), message_id=text, subject=text), False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (schema(data=StringType()), "'subject' is needed"),
        (schema(subject=StringType()), "'data' is needed"),
        (schema(subject=StringType(), data=IntegerType()), "'data' is binary or string, not int"),
        (schema(subject=StringType(), data=StringType(), sequence=LongType()), "no column 'sequence'"),
        (
            schema(subject=StringType(), data=StringType(), headers=MapType(StringType(), LongType())),
            "'headers' is map<string,string>",
        ),
        (schema(subject=StringType(), data=StringType(), message_id=LongType()), "'message_id' is string"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_named(given: StructType, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        check_columns(given, False)


def test_a_stream_is_not_overwritten() -> None:
    with pytest.raises(OptionError, match="append"):
        check_columns(schema(subject=StringType(), data=StringType()), True)
