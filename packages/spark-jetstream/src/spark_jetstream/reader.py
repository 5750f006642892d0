"""Spark's readers: which sequences belong to a batch, told by the driver; reading them, done by the executors."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_jetstream.api import Api, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import DataLoss, OptionError
from spark_jetstream.options import ReadOptions
from spark_jetstream.plan import (
    Offset,
    Span,
    Wanted,
    are_subjects,
    offset_of,
    parts_for,
    recreation_loss,
    retention_loss,
    split,
)
from spark_jetstream.range_reader import chosen_way, read_span
from spark_jetstream.record_batches import record_batch

log = logging.getLogger("spark_jetstream")
_T = TypeVar("_T")


class SpanPartition(InputPartition):
    """A span for one task, with the stream that it was planned for."""

    def __init__(self, span: Span, created: str) -> None:
        self.span = span
        self.created = created


def ask(options: ReadOptions, question: Callable[[Api], _T]) -> _T:
    """Ask JetStream something on a connection of its own: the driver asks seldom, and a reader must stay picklable."""
    with Client(options.connection) as client:
        return client.with_retries(lambda open_client: question(Api(open_client, options.connection.api_prefix)))


def complain(options: ReadOptions, loss: str | None) -> None:
    """Raise DataLoss, or log it where that is wanted."""
    if loss is None:
        return
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (failOnDataLoss=false reads what is there)")
    log.warning("%s; going on with what is there", loss)


def first_sequence(options: ReadOptions, info: StreamInfo, api: Api) -> int:
    """Where the options say that reading begins."""
    if options.starting_sequence is not None:
        return options.starting_sequence
    if options.starting_time is not None:
        found = api.sequence_at(info.name, options.starting_time)
        return info.last + 1 if found is None else found
    return info.first if options.starting_position == "earliest" else info.last + 1


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, SpanPartition):  # Spark makes an empty one of its own where there are none
        for columns in read_span(options, partition.span, partition.created):
            yield record_batch(options.stream, columns)


class _PushFilters:
    """Our `pushFilters`, which passes for the one that does nothing.

    Spark refuses to plan a reader that has its own where `spark.sql.python.filterPushdown.enabled` is false, the default. Ours is
    content to be given no filters then.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class JetStreamReader(DataSourceReader):
    """A stream, or a span of it, as it is when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = Wanted(options.subjects)

    @property
    def pushFilters(self) -> "_PushFilters":  # noqa: N802
        """Take what the server can do, give back the rest."""
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        left = [one for one in filters if not self._take(one)]
        # Set here and not when the partitions are planned: by then Spark has pickled the reader for the executors.
        self._options = replace(self._options, subjects=self._wanted.subjects)
        return left

    def _take(self, one: Filter) -> bool:
        wanted, column = self._wanted, ".".join(getattr(one, "attribute", ()))
        match one:
            case IsNotNull():
                return True  # no column is ever null
            case EqualTo(value=value) if column == "subject" and are_subjects([value]):
                self._wanted = wanted.only([value])
            case In(value=values) if column == "subject" and are_subjects(values):
                self._wanted = wanted.only(values)
            case EqualTo(value=value) if column == "sequence":
                self._wanted = wanted.at_least(value).at_most(value)
            case GreaterThan(value=value) if column == "sequence":
                self._wanted = wanted.at_least(value + 1)
            case GreaterThanOrEqual(value=value) if column == "sequence":
                self._wanted = wanted.at_least(value)
            case LessThan(value=value) if column == "sequence":
                self._wanted = wanted.at_most(value - 1)
            case LessThanOrEqual(value=value) if column == "sequence":
                self._wanted = wanted.at_most(value)
            case In(value=values) if column == "sequence" and values:
                self._wanted = wanted.at_least(min(values)).at_most(max(values))
                return False  # Spark picks out of the span
            case _:
                return False
        return True

    def partitions(self) -> Sequence[InputPartition]:
        if self._wanted.is_nothing:
            return []
        options = self._options
        info, span = ask(options, self._span)
        return [SpanPartition(part, info.created) for part in split(span, parts_for(span, options, info.messages))]

    def _span(self, api: Api) -> tuple[StreamInfo, Span]:
        options, wanted = self._options, self._wanted
        info = api.stream_info(options.stream)
        first = first_sequence(options, info, api)
        if first < info.first:
            complain(options, retention_loss(first, info))
        last = info.last
        if options.ending_sequence is not None:
            last = min(last, options.ending_sequence)
        if options.ending_time is not None:
            after = api.sequence_at(options.stream, options.ending_time)
            last = last if after is None else after - 1
        span = Span(max(first, info.first, wanted.first), min(last, wanted.last))
        chosen_way(info, options, span)
        return info, span

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream as it grows. An offset is the next sequence to be read; Spark's checkpoint keeps it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: StreamInfo | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return ask(self._options, self._beginning).to_json()

    def _beginning(self, api: Api) -> Offset:
        info = api.stream_info(self._options.stream)
        chosen_way(info, self._options, Span(1, 0))
        first = first_sequence(self._options, info, api)
        if first > info.last + 1:
            raise OptionError(f"the option 'startingSequence' is {first}, and the stream {info.name!r} ends at {info.last}")
        return Offset(info.name, info.created, first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is what the query will have read when it ends."""
        self._target = self._info()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where this batch ends. The limit counts sequences, so that a batch is never larger, with gaps perhaps smaller."""
        info = self._target or self._info()
        begin = offset_of(self._options.stream, start)
        complain(self._options, recreation_loss(begin.created, info) or retention_loss(begin.next, info))
        first = max(begin.next, info.first) if begin.created == info.created else info.first
        last = info.last
        if isinstance(limit, ReadMaxRows) and last - first + 1 > limit.max_rows:
            last = self._skipped(first) + limit.max_rows - 1
        return Offset(info.name, info.created, min(last, info.last) + 1).to_json()

    def _skipped(self, first: int) -> int:
        """The first message that will be read: what was deleted or filtered out before it need not fill a batch of its own."""
        options = self._options
        found = ask(options, lambda api: api.next_sequence(options.stream, first, options.subjects))
        return first if found is None else found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        info = self._info()
        return Offset(info.name, info.created, info.last + 1).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        begin, finish = offset_of(options.stream, start), offset_of(options.stream, end)
        first = begin.next if begin.created == finish.created else 1
        if finish.next <= first:
            return []
        info = self._info()
        if info.created != finish.created:
            complain(options, recreation_loss(finish.created, info))
            return []  # what this batch had to read is gone; the next begins with the new stream
        if begin.created == finish.created:
            complain(options, retention_loss(first, info) or retention_loss(finish.next, info))
        span = Span(max(first, info.first), min(finish.next - 1, info.last))
        return [SpanPartition(part, finish.created) for part in split(span, parts_for(span, options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _info(self) -> StreamInfo:
        return ask(self._options, lambda api: api.stream_info(self._options.stream))
