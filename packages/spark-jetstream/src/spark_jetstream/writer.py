"""Spark's writers: rows become messages, with ids by which the server knows a retried batch again."""

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
_NEEDED = ("subject", "data")
_ID = "Nats-Msg-Id"
IdOf = Callable[[int], str | None]


@dataclass
class Written(WriterCommitMessage):
    """What a task has done: messages stored, and how many of them were there already."""

    stored: int
    duplicates: int


def check_columns(schema: StructType, overwrite: bool) -> tuple[str, ...]:
    """The columns of the rows. Raises OptionError when they cannot become messages."""
    if overwrite:
        raise OptionError("a stream can only be appended to: mode('append'), outputMode('append')")
    types = {column.name: column.dataType for column in schema.fields}
    for name in _NEEDED:
        if name not in types:
            raise OptionError(f"the column {name!r} is needed; there are {', '.join(types)}")
    for name, given in types.items():
        if name not in _COLUMNS:
            raise OptionError(f"there is no column {name!r} in a message: select {', '.join(_COLUMNS)}")
        if not any(_is_like(given, wanted) for wanted in _COLUMNS[name]):
            wanted_names = " or ".join(wanted.simpleString() for wanted in _COLUMNS[name])
            raise OptionError(f"the column {name!r} is {wanted_names}, not {given.simpleString()}")
    return tuple(types)


def _is_like(given: DataType, wanted: DataType) -> bool:
    if isinstance(wanted, MapType):
        return (
            isinstance(given, MapType) and _is_like(given.keyType, wanted.keyType) and _is_like(given.valueType, wanted.valueType)
        )
    return isinstance(given, type(wanted))


class JetStreamWriter(DataSourceArrowWriter):
    """Writes a batch. Without `message_id` and `messageIdPrefix`, a task that Spark runs again publishes again."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        prefix = self._options.message_id_prefix
        partition = _task().partitionId()
        return _publish(self._options, iterator, lambda row: None if prefix is None else f"{prefix}:{partition}:{row}")


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. A row's id is its place in the query, so a batch that is done again is the same messages."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise JetStreamError("Spark does not tell which batch this is: give the rows a message_id")
        prefix = self._options.message_id_prefix or query
        place = f"{prefix}:{batch}:{task.partitionId()}"
        return _publish(self._options, iterator, lambda row: f"{place}:{row}")


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise JetStreamError("rows are written by Spark's tasks only")
    return task


def _publish(options: WriteOptions, batches: Iterator[pa.RecordBatch], id_of: IdOf) -> Written:
    with Client(options.connection) as client:
        publisher = Publisher(client, options.max_pending)
        publisher.publish(messages(batches, options.expected_stream, id_of))
        return Written(publisher.stored, publisher.duplicates)


def messages(batches: Iterator[pa.RecordBatch], expected_stream: str | None, id_of: IdOf) -> Iterator[Message]:
    """Rows as messages, in order. Raises InvalidRow for one that cannot be sent as it is."""
    row = 0
    known: dict[str, bytes] = {}
    always = b"" if expected_stream is None else f"Nats-Expected-Stream: {expected_stream}\r\n".encode()
    for batch in batches:
        count = batch.num_rows
        nothing = [None] * count
        names = batch.schema.names
        headers = batch.column("headers").to_pylist() if "headers" in names else nothing
        ids = batch.column("message_id").to_pylist() if "message_id" in names else nothing
        data = batch.column("data").cast(pa.binary()).to_pylist()
        for subject, body, own, given in zip(batch.column("subject").to_pylist(), data, headers, ids, strict=True):
            encoded = known.get(subject)
            if encoded is None:
                encoded = known[subject] = check_subject(subject).encode()
            if body is None:
                raise InvalidRow(f"a row for {subject!r} has no data")
            lines = always + header_lines(own, given, id_of(row))
            yield Message(encoded, protocol.header_block(lines), body)
            row += 1


def header_lines(own: list[tuple[str, str | None]] | None, given_id: str | None, derived_id: str | None) -> bytes:
    """The lines of a row's headers. An id of the row goes before one among its headers, and that before one made here."""
    lines = []
    message_id = given_id
    for name, value in own or ():
        if name.lower() == _ID.lower():
            message_id = message_id if message_id is not None else value
        elif value is not None:
            check_header(name, value)
            lines.append(f"{name}: {value}\r\n")
    message_id = message_id if message_id is not None else derived_id
    if message_id is not None:
        check_header(_ID, message_id)
        lines.append(f"{_ID}: {message_id}\r\n")
    return "".join(lines).encode()
