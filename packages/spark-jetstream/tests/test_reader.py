"""Spark's readers as Spark calls them, without Spark: which sequences a batch has, and what when they are gone."""

import logging
import pickle
import time
from datetime import UTC, datetime
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
from spark_jetstream.errors import DataLoss, JetStreamError, OptionError
from spark_jetstream.publisher import Message
from spark_jetstream.reader import JetStreamReader, JetStreamStreamReader, SpanPartition

ALL = ReadAllAvailable()


def spans(partitions: Any) -> list[tuple[int, int]]:
    assert all(isinstance(one, SpanPartition) for one in partitions)
    return [(one.span.first, one.span.last) for one in partitions]


def read(reader: JetStreamReader | JetStreamStreamReader, partitions: Any) -> list[int]:
    """As executors would: with what survives pickling."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        sequence
        for partition in partitions
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
        for sequence in batch.column("sequence").to_pylist()
    ]


def batch(nats: NatsServer, stream: str, **options: str | int) -> JetStreamReader:
    return JetStreamReader(nats.reading(stream, is_streaming=False, **options))


def following(nats: NatsServer, stream: str, **options: str | int) -> JetStreamStreamReader:
    return JetStreamStreamReader(nats.reading(stream, is_streaming=True, **options))


def test_a_batch_is_what_is_there_when_it_is_planned(nats: NatsServer, name: str) -> None:
    nats.create(name)
    assert spans(batch(nats, name).partitions()) == []

    nats.fill(name, 10)
    assert spans(batch(nats, name).partitions()) == [(1, 10)]
    assert spans(batch(nats, name, partitions=3).partitions()) == [(1, 3), (4, 6), (7, 10)]
    assert spans(batch(nats, name, messagesPerPartition=5).partitions()) == [(1, 5), (6, 10)]
    assert spans(batch(nats, name, startingSequence=4, endingSequence=6).partitions()) == [(4, 6)]
    assert spans(batch(nats, name, startingSequence=4, endingSequence=600).partitions()) == [(4, 10)]
    assert spans(batch(nats, name, startingSequence=40).partitions()) == []


def test_a_batch_may_begin_and_end_with_a_time(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 3)
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    nats.fill(name, 2)

    assert spans(batch(nats, name, startingTime=between).partitions()) == [(4, 5)]
    assert spans(batch(nats, name, endingTime=between).partitions()) == [(1, 3)]
    assert spans(batch(nats, name, startingTime="2099-01-01T00:00:00Z").partitions()) == []
    assert spans(batch(nats, name, endingTime="2099-01-01T00:00:00Z").partitions()) == [(1, 5)]


def test_a_stream_that_is_not_there_is_told(nats: NatsServer) -> None:
    with pytest.raises(JetStreamError, match="the stream 'missing': stream not found"):
        batch(nats, "missing").partitions()


def test_a_batch_that_was_removed_is_an_error_or_what_is_left(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    nats.purge(name, 6)

    with pytest.raises(DataLoss, match=f"'{name}' begins at sequence 6 now, and 3 was to be read"):
        batch(nats, name, startingSequence=3).partitions()
    assert spans(batch(nats, name, startingSequence=3, failOnDataLoss="false").partitions()) == [(6, 10)]
    assert spans(batch(nats, name).partitions()) == [(6, 10)]


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
    nats.publish(Message(f"{name}.{place % 3}".encode(), b"", b"x") for place in range(1, 10))
    reader = batch(nats, name, subject=f"{name}.*")

    assert list(reader.pushFilters([_named(one, name) for one in filters])) == []

    assert read(reader, reader.partitions()) == expected


def _named(one: Filter, name: str) -> Filter:
    match one:
        case EqualTo(value=str(text)):
            return EqualTo(one.attribute, text.format(name))
        case In(value=values):
            return In(one.attribute, tuple(value.format(name) for value in values))
    return one


def test_filters_that_the_server_does_not_know_are_sparks_work(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 9)
    reader = batch(nats, name)
    others: list[Filter] = [
        EqualTo(SUBJECT, "a.*"), EqualTo(SUBJECT, "a b"), IsNull(SUBJECT), Not(EqualTo(SEQUENCE, 1)), EqualTo(("data",), b"x"),
        GreaterThan(("timestamp",), datetime.now(UTC)), In(SEQUENCE, (3, 5)),
    ]  # fmt: skip

    assert list(reader.pushFilters(others)) == others

    assert spans(reader.partitions()) == [(3, 5)]  # the span of the last one, from which Spark picks


def test_a_query_begins_where_it_is_told(nats: NatsServer, name: str) -> None:
    nats.create(name)
    assert following(nats, name).initialOffset()["next"] == 1
    nats.fill(name, 10)
    time.sleep(0.01)
    later = datetime.now(UTC).isoformat()
    nats.purge(name, 4)

    assert following(nats, name).initialOffset()["next"] == 4
    assert following(nats, name, startingPosition="latest").initialOffset()["next"] == 11
    assert following(nats, name, startingSequence=7).initialOffset()["next"] == 7
    assert following(nats, name, startingTime=later).initialOffset()["next"] == 11
    assert following(nats, name, startingTime="2020-01-01T00:00:00Z").initialOffset()["next"] == 4
    with pytest.raises(OptionError, match="'startingSequence' is 12"):
        following(nats, name, startingSequence=12).initialOffset()


def test_a_trigger_takes_all_or_as_many_as_allowed(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    reader = following(nats, name, maxMessagesPerTrigger=4)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert following(nats, name).getDefaultReadLimit() == ALL

    first = reader.initialOffset()
    ends = [first]
    while (end := reader.latestOffset(ends[-1], ReadMaxRows(4))) != ends[-1]:
        ends.append(end)

    assert [end["next"] for end in ends] == [1, 5, 9, 11]
    assert reader.latestOffset(first, ALL)["next"] == 11
    assert read(reader, reader.partitions(ends[1], ends[2])) == [5, 6, 7, 8]
    assert reader.partitions(ends[-1], ends[-1]) == []
    assert (reader.reportLatestOffset() or {})["next"] == 11


def test_what_is_not_to_be_read_fills_no_triggers(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.publish(Message(f"{name}.{'b' if place == 40 else 'a'}".encode(), b"", b"x") for place in range(1, 51))
    nats.delete(name, *range(2, 20))

    gaps = following(nats, name)
    start = {**gaps.initialOffset(), "next": 2}
    assert gaps.latestOffset(start, ReadMaxRows(5))["next"] == 25
    filtered = following(nats, name, subject=f"{name}.b")
    assert filtered.latestOffset(filtered.initialOffset(), ReadMaxRows(5))["next"] == 45
    nats.put(f"{name}.c")
    both = following(nats, name, subject=f"{name}.b,{name}.c")
    assert both.latestOffset(both.initialOffset(), ReadMaxRows(5))["next"] == 45


def test_available_now_ends_with_what_was_there(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 5)
    reader = following(nats, name)
    reader.prepareForTriggerAvailableNow()
    nats.fill(name, 5)

    assert reader.latestOffset(reader.initialOffset(), ALL)["next"] == 6
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))["next"] == 4


def test_a_query_whose_next_messages_were_removed_stops_or_goes_on(
    nats: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats.create(name)
    nats.fill(name, 10)
    start = {**following(nats, name).initialOffset(), "next": 3}
    planned = following(nats, name).latestOffset(start, ALL)
    nats.purge(name, 6)

    strict = following(nats, name)
    for question in (lambda: strict.latestOffset(start, ALL), lambda: strict.partitions(start, planned)):
        with pytest.raises(DataLoss, match=f"'{name}' begins at sequence 6 now, and 3 was to be read"):
            question()
    lax = following(nats, name, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "spark_jetstream"):
        end = lax.latestOffset(start, ReadMaxRows(2))
        assert end["next"] == 8
        assert read(lax, lax.partitions(start, end)) == [6, 7]
    assert "begins at sequence 6" in caplog.text


def test_a_query_notices_a_stream_made_anew(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 10)
    start = {**following(nats, name).initialOffset(), "next": 4}
    planned = following(nats, name).latestOffset(start, ALL)
    nats.recreate(name)
    nats.fill(name, 6)

    strict = following(nats, name)
    with pytest.raises(DataLoss, match=f"'{name}' was made anew"):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=f"'{name}' was made anew"):
        strict.partitions(start, planned)
    lax = following(nats, name, failOnDataLoss="false")
    assert lax.partitions(start, planned) == []
    assert lax.latestOffset(planned, ReadMaxRows(2))["next"] == 3
    end = lax.latestOffset(planned, ALL)
    assert (end["next"], end["created"] != planned["created"]) == (7, True)
    assert read(lax, lax.partitions(planned, end)) == [1, 2, 3, 4, 5, 6]


def test_a_stream_whose_end_is_gone_is_noticed(nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 3)
    start = {**following(nats, name).initialOffset(), "next": 50}

    with pytest.raises(DataLoss, match="ends at sequence 3, and 50 was to be read"):
        following(nats, name).latestOffset(start, ALL)
    lax = following(nats, name, failOnDataLoss="false")
    end = lax.latestOffset(start, ALL)
    assert end["next"] == 4
    assert lax.partitions(start, end) == []


def test_a_checkpoint_of_another_stream_is_refused(nats: NatsServer, name: str) -> None:
    nats.create(name)
    start = {**following(nats, name).initialOffset(), "stream": "OTHER"}

    with pytest.raises(JetStreamError, match="belongs to the stream 'OTHER'"):
        following(nats, name).latestOffset(start, ALL)


def test_a_batch_that_is_done_again_has_the_same_partitions(nats: NatsServer, name: str) -> None:
    """The ids that the sink gives depend on it."""
    nats.create(name)
    nats.fill(name, 10)
    reader = following(nats, name, messagesPerPartition=3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    before = spans(reader.partitions(start, end))
    nats.delete(name, 2, 3, 4, 5, 6, 7, 8)

    assert spans(reader.partitions(start, end)) == before == [(1, 2), (3, 5), (6, 7), (8, 10)]


def test_nothing_of_a_reader_tells_its_secrets(nats: NatsServer) -> None:
    reader = following(nats, "S", user="me", password="s3cret")

    assert "s3cret" not in repr(reader)
    assert "s3cret" not in repr(vars(reader))
