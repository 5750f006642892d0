"""Conversion of rows to messages: ids, headers, schemas and invalid rows."""

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
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message
from spark_jetstream.writer import check_schema, header_lines, to_messages

MAP = pa.map_(pa.string(), pa.string())


def rows(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def converted(batch: pa.RecordBatch, expected_stream: str | None = None) -> list[Message]:
    return list(to_messages(iter([batch]), expected_stream, lambda row: None))


def test_a_row_becomes_a_message() -> None:
    headers = pa.array([[("A", "b"), ("C", "d")], [], None], MAP)
    found = converted(rows(subject=["a.b", "c", "c"], data=[b"1", b"", b"3"], headers=headers, message_id=["x", None, "z"]))

    assert found == [
        Message(b"a.b", encode_headers(b"A: b\r\nC: d\r\nNats-Msg-Id: x\r\n"), b"1"),
        Message(b"c", b"", b""),
        Message(b"c", encode_headers(b"Nats-Msg-Id: z\r\n"), b"3"),
    ]


def test_text_is_encoded_as_utf8() -> None:
    assert converted(rows(subject=["a"], data=["grüße"]))[0].data == "grüße".encode()


def test_the_expected_stream_becomes_a_header() -> None:
    assert converted(rows(subject=["a"], data=["x"]), "JOBS")[0].headers == encode_headers(b"Nats-Expected-Stream: JOBS\r\n")


def test_row_numbers_continue_across_batches() -> None:
    batches = [rows(subject=["a", "a"], data=["x", "y"]), rows(subject=["a"], data=["z"])]

    found = list(to_messages(iter(batches), None, lambda row: f"id-{row}"))

    assert [one.headers for one in found] == [encode_headers(b"Nats-Msg-Id: id-%d\r\n" % row) for row in range(3)]


def test_the_id_column_has_precedence_over_the_header_and_the_default() -> None:
    headers: list[tuple[str, str | None]] = [("nats-msg-id", "header"), ("A", "b")]

    assert header_lines(headers, "row", "default") == b"A: b\r\nNats-Msg-Id: row\r\n"
    assert header_lines(headers, None, "default") == b"A: b\r\nNats-Msg-Id: header\r\n"
    assert header_lines([("A", "b"), ("N", None)], None, "default") == b"A: b\r\nNats-Msg-Id: default\r\n"
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
def test_an_invalid_row_is_rejected(row: dict[str, object]) -> None:
    if row["subject"] == [None]:
        row = {**row, "subject": pa.array([None], pa.string())}
    with pytest.raises(InvalidRow):
        converted(rows(**row))


def schema(**types: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])  # type: ignore[arg-type]


def test_a_valid_schema_is_accepted() -> None:
    text = StringType()
    check_schema(schema(subject=text, data=BinaryType()), False)
    check_schema(schema(data=text, headers=MapType(text, text), message_id=text, subject=text), False)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (schema(data=StringType()), "'subject' is required"),
        (schema(subject=StringType()), "'data' is required"),
        (schema(subject=StringType(), data=IntegerType()), "'data' must be binary or string, not int"),
        (schema(subject=StringType(), data=StringType(), sequence=LongType()), "unknown column 'sequence'"),
        (
            schema(subject=StringType(), data=StringType(), headers=MapType(StringType(), LongType())),
            "'headers' must be map<string,string>",
        ),
        (schema(subject=StringType(), data=StringType(), message_id=LongType()), "'message_id' must be string"),
    ],
)  # fmt: skip
def test_an_invalid_column_is_named(columns: StructType, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        check_schema(columns, False)


def test_overwriting_a_stream_is_rejected() -> None:
    with pytest.raises(OptionError, match="append"):
        check_schema(schema(subject=StringType(), data=StringType()), True)
