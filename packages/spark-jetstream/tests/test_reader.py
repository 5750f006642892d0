"""Readers called as Spark calls them, without Spark: planning, filters, offsets and data loss."""

import logging
import pickle
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from nats_server import NatsServer
from spark_jetstream import reader as reader_module
from spark_jetstream.errors import DataLoss, JetStreamError, OptionError
from spark_jetstream.filesystem_sync import sync_filesystem
from spark_jetstream.publisher import Message
from spark_jetstream.reader import JetStreamReader, JetStreamStreamReader, RangePartition

ALL = ReadAllAvailable()


def ranges(partitions: Any) -> list[tuple[int, int]]:
    assert all(isinstance(one, RangePartition) for one in partitions)
    return [(one.sequences.first, one.sequences.last) for one in partitions]


def read(reader: JetStreamReader | JetStreamStreamReader, partitions: Any) -> list[int]:
    """Read as executors do, with pickled copies."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        sequence
        for partition in partitions
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
        for sequence in batch.column("sequence").to_pylist()
    ]


def batch(nats: NatsServer, stream: str, **options: str | int) -> JetStreamReader:
    return JetStreamReader(nats.reading(stream, is_streaming=False, **options))


def streaming(nats: NatsServer, stream: str, **options: str | int) -> JetStreamStreamReader:
    return JetStreamStreamReader(nats.reading(stream, is_streaming=True, **options))


def test_a_batch_ends_with_the_last_message_at_planning(nats: NatsServer, name: str) -> None:
    nats.create(name)
    assert ranges(batch(nats, name).partitions()) == []

    nats.fill(name, 10)
    assert ranges(batch(nats, name).partitions()) == [(1, 10)]
    assert ranges(batch(nats, name, partitions=3).partitions()) == [(1, 3), (4, 6), (7, 10)]
    assert ranges(batch(nats, name, messagesPerPartition=5).partitions()) == [(1, 5), (6, 10)]
    assert ranges(batch(nats, name, startingSequence=4, endingSequence=6).partitions()) == [(4, 6)]
    assert ranges(batch(nats, name, startingSequence=4, endingSequence=600).partitions()) == [(4, 10)]
    assert ranges(batch(nats, name, startingSequence=40).partitions()) == []


def test_a_batch_can_start_and_end_at_times(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 3)
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    nats.fill(name, 2)

    assert ranges(batch(nats, name, startingTime=between).partitions()) == [(4, 5)]
    assert ranges(batch(nats, name, endingTime=between).partitions()) == [(1, 3)]
    assert ranges(batch(nats, name, startingTime="2099-01-01T00:00:00Z").partitions()) == []
    assert ranges(batch(nats, name, endingTime="2099-01-01T00:00:00Z").partitions()) == [(1, 5)]


def test_a_missing_stream_is_an_error(nats: NatsServer) -> None:
    with pytest.raises(JetStreamError, match="stream 'missing': stream not found"):
        batch(nats, "missing").partitions()


def test_removed_messages_fail_a_batch_unless_loss_is_allowed(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    nats.purge(name, 6)

    with pytest.raises(DataLoss, match=f"'{name}' now begins at sequence 6, but sequence 3 is to be read"):
        batch(nats, name, startingSequence=3).partitions()
    assert ranges(batch(nats, name, startingSequence=3, failOnDataLoss="false").partitions()) == [(6, 10)]
    assert ranges(batch(nats, name).partitions()) == [(6, 10)]


SEQUENCE, SUBJECT = ("sequence",), ("subject",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(SEQUENCE, 7)], [7]),
        ([GreaterThan(SEQUENCE, 7)], [8, 9]),
        ([GreaterThanOrEqual(SEQUENCE, 7), IsNotNull(SEQUENCE)], [7, 8, 9]),
        ([LessThan(SEQUENCE, 3)], [1, 2]),
        ([LessThanOrEqual(SEQUENCE, 3), GreaterThan(SEQUENCE, 1)], [2, 3]),
        ([GreaterThan(SEQUENCE, 100)], []),
        ([EqualTo(SUBJECT, "{}.1")], [1, 4, 7]),
        ([In(SUBJECT, ("{}.1", "{}.2"))], [1, 2, 4, 5, 7, 8]),
        ([EqualTo(SUBJECT, "{}.1"), GreaterThan(SEQUENCE, 3)], [4, 7]),
        ([EqualTo(SUBJECT, "{}.1"), EqualTo(SUBJECT, "{}.2")], []),
        ([EqualTo(SUBJECT, "elsewhere")], []),
    ],
)
def test_filters_are_pushed_to_the_server(nats: NatsServer, name: str, filters: list[Filter], expected: list[int]) -> None:
    nats.create(name)
    nats.publish(Message(f"{name}.{number % 3}".encode(), b"", b"x") for number in range(1, 10))
    reader = batch(nats, name, subject=f"{name}.*")

    assert list(reader.pushFilters([_with_name(one, name) for one in filters])) == []

    assert read(reader, reader.partitions()) == expected


def _with_name(one: Filter, name: str) -> Filter:
    match one:
        case EqualTo(value=str(text)):
            return EqualTo(one.attribute, text.format(name))
        case In(value=values):
            return In(one.attribute, tuple(value.format(name) for value in values))
    return one


def test_filters_that_the_server_cannot_apply_are_returned_to_spark(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 9)
    reader = batch(nats, name)
    others: list[Filter] = [
        EqualTo(SUBJECT, "a.*"), EqualTo(SUBJECT, "a b"), IsNull(SUBJECT), Not(EqualTo(SEQUENCE, 1)), EqualTo(("data",), b"x"),
        GreaterThan(("timestamp",), datetime.now(UTC)), In(SEQUENCE, (3, 5)),
    ]  # fmt: skip

    assert list(reader.pushFilters(others)) == others

    assert ranges(reader.partitions()) == [(3, 5)]  # the range of the last filter, which Spark applies


def test_a_query_starts_at_the_configured_position(nats: NatsServer, name: str) -> None:
    nats.create(name)
    assert streaming(nats, name).initialOffset()["next"] == 1
    nats.fill(name, 10)
    time.sleep(0.01)
    later = datetime.now(UTC).isoformat()
    nats.purge(name, 4)

    assert streaming(nats, name).initialOffset()["next"] == 4
    assert streaming(nats, name, startingPosition="latest").initialOffset()["next"] == 11
    assert streaming(nats, name, startingSequence=7).initialOffset()["next"] == 7
    assert streaming(nats, name, startingTime=later).initialOffset()["next"] == 11
    assert streaming(nats, name, startingTime="2020-01-01T00:00:00Z").initialOffset()["next"] == 4
    with pytest.raises(OptionError, match="'startingSequence' is 12"):
        streaming(nats, name, startingSequence=12).initialOffset()


def test_the_store_is_synced_before_an_offset_is_used(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nats.create(name)
    nats.fill(name, 3)
    synced: list[str] = []

    def sync(directory: str) -> None:
        synced.append(directory)
        nats.fill(name, 1)

    monkeypatch.setattr(reader_module, "sync_filesystem", sync)
    reader = streaming(nats, name, syncDirectory=str(tmp_path))

    assert reader.latestOffset(reader.initialOffset(), ALL)["next"] == 4  # without the message that came after the sync
    assert synced[-1:] == [str(tmp_path)]


def test_a_real_filesystem_is_synced(tmp_path: Path) -> None:
    sync_filesystem(str(tmp_path))
    with pytest.raises(JetStreamError, match="cannot be opened"):
        sync_filesystem(str(tmp_path / "missing"))


def test_a_trigger_reads_at_most_the_limit(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    reader = streaming(nats, name, maxMessagesPerTrigger=4)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert streaming(nats, name).getDefaultReadLimit() == ALL

    first = reader.initialOffset()
    ends = [first]
    while (end := reader.latestOffset(ends[-1], ReadMaxRows(4))) != ends[-1]:
        ends.append(end)

    assert [end["next"] for end in ends] == [1, 5, 9, 11]
    assert reader.latestOffset(first, ALL)["next"] == 11
    assert read(reader, reader.partitions(ends[1], ends[2])) == [5, 6, 7, 8]
    assert reader.partitions(ends[-1], ends[-1]) == []
    assert (reader.reportLatestOffset() or {})["next"] == 11


def test_deleted_and_filtered_messages_at_the_start_do_not_count(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.publish(Message(f"{name}.{'b' if number == 40 else 'a'}".encode(), b"", b"x") for number in range(1, 51))
    nats.delete(name, *range(2, 20))

    gaps = streaming(nats, name)
    start = {**gaps.initialOffset(), "next": 2}
    assert gaps.latestOffset(start, ReadMaxRows(5))["next"] == 25
    filtered = streaming(nats, name, subject=f"{name}.b")
    assert filtered.latestOffset(filtered.initialOffset(), ReadMaxRows(5))["next"] == 45
    nats.put(f"{name}.c")
    both = streaming(nats, name, subject=f"{name}.b,{name}.c")
    assert both.latestOffset(both.initialOffset(), ReadMaxRows(5))["next"] == 45


def test_available_now_ends_with_the_last_message_at_the_start(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 5)
    reader = streaming(nats, name)
    reader.prepareForTriggerAvailableNow()
    nats.fill(name, 5)

    assert reader.latestOffset(reader.initialOffset(), ALL)["next"] == 6
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))["next"] == 4


def test_removed_messages_stop_a_query_unless_loss_is_allowed(
    nats: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats.create(name)
    nats.fill(name, 10)
    start = {**streaming(nats, name).initialOffset(), "next": 3}
    planned = streaming(nats, name).latestOffset(start, ALL)
    nats.purge(name, 6)

    strict = streaming(nats, name)
    for operation in (lambda: strict.latestOffset(start, ALL), lambda: strict.partitions(start, planned)):
        with pytest.raises(DataLoss, match=f"'{name}' now begins at sequence 6, but sequence 3 is to be read"):
            operation()
    lax = streaming(nats, name, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "spark_jetstream"):
        end = lax.latestOffset(start, ReadMaxRows(2))
        assert end["next"] == 8
        assert read(lax, lax.partitions(start, end)) == [6, 7]
    assert "begins at sequence 6" in caplog.text


def test_a_query_detects_a_recreated_stream(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    start = {**streaming(nats, name).initialOffset(), "next": 4}
    planned = streaming(nats, name).latestOffset(start, ALL)
    nats.recreate(name)
    nats.fill(name, 6)

    strict = streaming(nats, name)
    with pytest.raises(DataLoss, match=f"'{name}' was recreated"):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=f"'{name}' was recreated"):
        strict.partitions(start, planned)
    lax = streaming(nats, name, failOnDataLoss="false")
    assert lax.partitions(start, planned) == []
    assert lax.latestOffset(planned, ReadMaxRows(2))["next"] == 3
    end = lax.latestOffset(planned, ALL)
    assert (end["next"], end["created"] != planned["created"]) == (7, True)
    assert read(lax, lax.partitions(planned, end)) == [1, 2, 3, 4, 5, 6]


def test_a_removed_end_of_the_stream_is_detected(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 3)
    start = {**streaming(nats, name).initialOffset(), "next": 50}

    with pytest.raises(DataLoss, match="ends at sequence 3, but sequence 50 is to be read"):
        streaming(nats, name).latestOffset(start, ALL)
    lax = streaming(nats, name, failOnDataLoss="false")
    end = lax.latestOffset(start, ALL)
    assert end["next"] == 4
    assert lax.partitions(start, end) == []


def test_a_checkpoint_of_another_stream_is_rejected(nats: NatsServer, name: str) -> None:
    nats.create(name)
    start = {**streaming(nats, name).initialOffset(), "stream": "OTHER"}

    with pytest.raises(JetStreamError, match="belongs to stream 'OTHER'"):
        streaming(nats, name).latestOffset(start, ALL)


def test_a_repeated_micro_batch_has_the_same_partitions(nats: NatsServer, name: str) -> None:
    """The message ids of the streaming writer depend on it."""
    nats.create(name)
    nats.fill(name, 10)
    reader = streaming(nats, name, messagesPerPartition=3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    before = ranges(reader.partitions(start, end))
    nats.delete(name, 2, 3, 4, 5, 6, 7, 8)

    assert ranges(reader.partitions(start, end)) == before == [(1, 2), (3, 5), (6, 7), (8, 10)]


def test_the_repr_of_a_reader_contains_no_secrets(nats: NatsServer) -> None:
    reader = streaming(nats, "S", user="me", password="s3cret")

    assert "s3cret" not in repr(reader)
    assert "s3cret" not in repr(vars(reader))
