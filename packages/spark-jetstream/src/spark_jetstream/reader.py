"""Spark readers: the driver plans sequence ranges, the executors read them."""

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

from spark_jetstream.api import JetStreamApi, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import OptionError
from spark_jetstream.fetchers import select_fetch_mode
from spark_jetstream.filesystem_sync import sync_filesystem
from spark_jetstream.options import ReadOptions
from spark_jetstream.plan import (
    Offset,
    PushedFilters,
    SequenceRange,
    are_literal_subjects,
    parse_offset,
    partition_count,
    recreation_loss,
    retention_loss,
)
from spark_jetstream.range_reader import read_range, report_loss
from spark_jetstream.record_batches import record_batch

_T = TypeVar("_T")


class RangePartition(InputPartition):
    """A sequence range for one task, and the creation time of the stream it was planned for."""

    def __init__(self, sequences: SequenceRange, created: str) -> None:
        self.sequences = sequences
        self.created = created


def _call_api(options: ReadOptions, operation: Callable[[JetStreamApi], _T]) -> _T:
    """Run an operation on a new connection: the driver needs few of them, and a reader must stay picklable."""
    with Client(options.connection) as client:
        return client.with_retries(lambda opened: operation(JetStreamApi(opened, options.connection.api_prefix)))


def _report(options: ReadOptions, loss: str | None) -> None:
    if loss is not None:
        report_loss(options, loss)


def _starting_sequence(options: ReadOptions, info: StreamInfo, api: JetStreamApi) -> int:
    """Resolve `startingSequence`, `startingTime` or `startingPosition`."""
    if options.starting_sequence is not None:
        return options.starting_sequence
    if options.starting_time is not None:
        found = api.sequence_at(info.name, options.starting_time)
        return info.last + 1 if found is None else found
    return info.first if options.starting_position == "earliest" else info.last + 1


def _read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, RangePartition):  # Spark adds an empty partition of its own if there are none
        for columns in read_range(options, partition.sequences, partition.created):
            yield record_batch(options.stream, columns)


class _PushFilters:
    """A `pushFilters` that Spark takes for the inherited one.

    With `spark.sql.python.filterPushdown.enabled` false, the default, Spark refuses readers that override `pushFilters`, which
    it detects by `__func__`. It then passes no filters, and Spark filters by itself.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class JetStreamReader(DataSourceReader):
    """Batch reader: a stream, or a range of it, as it is when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._filters = PushedFilters(options.subjects)

    @property
    def pushFilters(self) -> "_PushFilters":  # noqa: N802
        """Accept the filters that the server can apply, return the others."""
        return _PushFilters(self._push_all)

    def _push_all(self, filters: list[Filter]) -> Iterable[Filter]:
        rest = [one for one in filters if not self._push(one)]
        # Not in `partitions`: by then Spark has pickled the reader for the executors.
        self._options = replace(self._options, subjects=self._filters.subjects)
        return rest

    def _push(self, one: Filter) -> bool:
        """Add a filter to those of the server. Returns false if Spark still has to apply it."""
        filters, column = self._filters, ".".join(getattr(one, "attribute", ()))
        match one:
            case IsNotNull():
                return True  # no column is ever null
            case EqualTo(value=value) if column == "subject" and are_literal_subjects([value]):
                self._filters = filters.one_of([value])
            case In(value=values) if column == "subject" and are_literal_subjects(values):
                self._filters = filters.one_of(values)
            case EqualTo(value=value) if column == "sequence":
                self._filters = filters.at_least(value).at_most(value)
            case GreaterThan(value=value) if column == "sequence":
                self._filters = filters.at_least(value + 1)
            case GreaterThanOrEqual(value=value) if column == "sequence":
                self._filters = filters.at_least(value)
            case LessThan(value=value) if column == "sequence":
                self._filters = filters.at_most(value - 1)
            case LessThanOrEqual(value=value) if column == "sequence":
                self._filters = filters.at_most(value)
            case In(value=values) if column == "sequence" and values:
                self._filters = filters.at_least(min(values)).at_most(max(values))
                return False  # the server applies the range only
            case _:
                return False
        return True

    def partitions(self) -> Sequence[InputPartition]:
        if self._filters.is_empty:
            return []
        info, sequences = _call_api(self._options, self._plan)
        count = partition_count(sequences, self._options, info.messages)
        return [RangePartition(part, info.created) for part in sequences.split(count)]

    def _plan(self, api: JetStreamApi) -> tuple[StreamInfo, SequenceRange]:
        options, filters = self._options, self._filters
        info = api.stream_info(options.stream)
        first = _starting_sequence(options, info, api)
        if first < info.first:
            _report(options, retention_loss(first, info))
        last = info.last
        if options.ending_sequence is not None:
            last = min(last, options.ending_sequence)
        if options.ending_time is not None:
            after = api.sequence_at(options.stream, options.ending_time)
            last = last if after is None else after - 1
        sequences = SequenceRange(max(first, info.first, filters.first), min(last, filters.last))
        select_fetch_mode(info, options, sequences)  # fails here rather than in every task
        return info, sequences

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_partition(self._options, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader. An offset is the next sequence to read; Spark stores it in the checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: StreamInfo | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _call_api(self._options, self._initial_offset).to_json()

    def _initial_offset(self, api: JetStreamApi) -> Offset:
        info = api.stream_info(self._options.stream)
        select_fetch_mode(info, self._options, SequenceRange(1, 0))  # fails here rather than in every task
        first = _starting_sequence(self._options, info, api)
        if first > info.last + 1:
            raise OptionError(f"option 'startingSequence' is {first}, but stream {info.name!r} ends at {info.last}")
        return Offset(info.name, info.created, first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current end of the stream."""
        self._target = self._stream_info()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. The limit counts sequences, so gaps make a batch smaller, never larger."""
        info = self._target or self._stream_info()
        begin = parse_offset(self._options.stream, start)
        _report(self._options, recreation_loss(begin.created, info) or retention_loss(begin.next, info))
        first = max(begin.next, info.first) if begin.created == info.created else info.first
        last = info.last
        if isinstance(limit, ReadMaxRows) and last - first + 1 > limit.max_rows:
            last = self._first_match(first) + limit.max_rows - 1
        return Offset(info.name, info.created, min(last, info.last) + 1).to_json()

    def _first_match(self, first: int) -> int:
        """Skip deleted and filtered messages at the start, which would otherwise fill micro-batches without rows."""
        options = self._options
        found = _call_api(options, lambda api: api.next_sequence(options.stream, first, options.subjects))
        return first if found is None else found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        info = self._stream_info()
        return Offset(info.name, info.created, info.last + 1).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        begin, finish = parse_offset(options.stream, start), parse_offset(options.stream, end)
        first = begin.next if begin.created == finish.created else 1
        if finish.next <= first:
            return []
        info = self._stream_info()
        if info.created != finish.created:
            _report(options, recreation_loss(finish.created, info))
            return []  # the messages of this micro-batch are gone; the next one begins with the new stream
        if begin.created == finish.created:
            _report(options, retention_loss(first, info) or retention_loss(finish.next, info))
        sequences = SequenceRange(max(first, info.first), min(finish.next - 1, info.last))
        return [RangePartition(part, finish.created) for part in sequences.split(partition_count(sequences, options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_partition(self._options, partition)

    def _stream_info(self) -> StreamInfo:
        """The state of the stream; none of it can be lost any more, if the store is synced here: Spark keeps offsets for good."""
        info = _call_api(self._options, lambda api: api.stream_info(self._options.stream))
        if self._options.sync_directory is not None:
            sync_filesystem(self._options.sync_directory)
        return info
