"""Spark writers: rows become messages, whose ids let the server discard those of a repeated batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from spark_jetstream import protocol
from spark_jetstream.client import Client
from spark_jetstream.errors import InvalidRow, JetStreamError, OptionError
from spark_jetstream.options import WriteOptions
from spark_jetstream.publisher import Message, Publisher
from spark_jetstream.subjects import check_header, check_subject

_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "subject": (StringType(),),
    "data": (BinaryType(), StringType()),
    "headers": (MapType(StringType(), StringType()),),
    "message_id": (StringType(),),
}
_REQUIRED = ("subject", "data")
_MESSAGE_ID = "Nats-Msg-Id"
MakeId = Callable[[int], str | None]


@dataclass
class WriteSummary(WriterCommitMessage):
    """Result of a task: messages stored, and how many of them were duplicates."""

    stored: int
    duplicates: int


def check_schema(schema: StructType, overwrite: bool) -> None:
    """Raise OptionError if rows of this schema cannot become messages."""
    if overwrite:
        raise OptionError("messages can only be appended to a stream: use mode('append') or outputMode('append')")
    types = {column.name: column.dataType for column in schema.fields}
    for name in _REQUIRED:
        if name not in types:
            raise OptionError(f"column {name!r} is required; the columns are {', '.join(types)}")
    for name, actual in types.items():
        if name not in _COLUMNS:
            raise OptionError(f"unknown column {name!r}; select from {', '.join(_COLUMNS)}")
        if not any(_is_type(actual, expected) for expected in _COLUMNS[name]):
            names = " or ".join(expected.simpleString() for expected in _COLUMNS[name])
            raise OptionError(f"column {name!r} must be {names}, not {actual.simpleString()}")


def _is_type(actual: DataType, expected: DataType) -> bool:
    """Compare types without the nullability of map values."""
    if isinstance(expected, MapType):
        return (
            isinstance(actual, MapType)
            and _is_type(actual.keyType, expected.keyType)
            and _is_type(actual.valueType, expected.valueType)
        )
    return isinstance(actual, type(expected))


class JetStreamWriter(DataSourceArrowWriter):
    """Batch writer. Without `message_id` and `messageIdPrefix`, a task that Spark retries publishes its messages again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        prefix = self._options.message_id_prefix
        partition = _task_context().partitionId()
        return _publish(self._options, iterator, lambda row: None if prefix is None else f"{prefix}:{partition}:{row}")


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Streaming writer. Query, batch, partition and row number form the message id, so a repeated batch has the same ids."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task_context()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise JetStreamError("Spark does not provide the ids of query and batch; add a column message_id to the rows")
        prefix = f"{self._options.message_id_prefix or query}:{batch}:{task.partitionId()}"
        return _publish(self._options, iterator, lambda row: f"{prefix}:{row}")


def _task_context() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise JetStreamError("rows can only be written in a Spark task")
    return task


def _publish(options: WriteOptions, batches: Iterator[pa.RecordBatch], make_id: MakeId) -> WriteSummary:
    with Client(options.connection) as client:
        publisher = Publisher(client, options.max_pending)
        publisher.publish(to_messages(batches, options.expected_stream, make_id))
        return WriteSummary(publisher.stored, publisher.duplicates)


def to_messages(batches: Iterator[pa.RecordBatch], expected_stream: str | None, make_id: MakeId) -> Iterator[Message]:
    """Convert rows to messages, in order. `make_id` gets the row number. Raises InvalidRow."""
    row_number = 0
    subjects: dict[str, bytes] = {}  # checked and encoded
    common = b"" if expected_stream is None else f"Nats-Expected-Stream: {expected_stream}\r\n".encode()
    for batch in batches:
        nulls = [None] * batch.num_rows
        names = batch.schema.names
        headers = batch.column("headers").to_pylist() if "headers" in names else nulls
        ids = batch.column("message_id").to_pylist() if "message_id" in names else nulls
        data = batch.column("data").cast(pa.binary()).to_pylist()
        for subject, body, row_headers, row_id in zip(batch.column("subject").to_pylist(), data, headers, ids, strict=True):
            encoded = subjects.get(subject)
            if encoded is None:
                encoded = subjects[subject] = check_subject(subject).encode()
            if body is None:
                raise InvalidRow(f"a row for {subject!r} has no data")
            lines = common + header_lines(row_headers, row_id, make_id(row_number))
            yield Message(encoded, protocol.encode_headers(lines), body)
            row_number += 1


def header_lines(headers: list[tuple[str, str | None]] | None, row_id: str | None, default_id: str | None) -> bytes:
    """Encode the header lines of a message. Its id is `row_id`, else the one among its headers, else `default_id`."""
    lines = []
    message_id = row_id
    for name, value in headers or ():
        if name.lower() == _MESSAGE_ID.lower():
            message_id = message_id if message_id is not None else value
        elif value is not None:
            check_header(name, value)
            lines.append(f"{name}: {value}\r\n")
    message_id = message_id if message_id is not None else default_id
    if message_id is not None:
        check_header(_MESSAGE_ID, message_id)
        lines.append(f"{_MESSAGE_ID}: {message_id}\r\n")
    return "".join(lines).encode()
