"""Ranges, partitions, offsets, pushed filters and descriptions of data loss."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.api import StreamInfo
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import ConnectionOptions, ReadOptions, Server
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

OPTIONS = ReadOptions(ConnectionOptions((Server("one", 1),)), "S")


def info(first: int = 1, last: int = 100, created: str = "then") -> StreamInfo:
    return StreamInfo("S", created, first, last, last - first + 1, True, "limits")


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(1, 200))
def test_the_parts_of_a_range_cover_it_evenly(first: int, count: int, parts: int) -> None:
    ranges = SequenceRange(first, first + count - 1).split(parts)

    assert sum(map(len, ranges)) == count
    assert len(ranges) == min(parts, count)
    assert all(len(one) > 0 for one in ranges)
    if ranges:
        assert (ranges[0].first, ranges[-1].last) == (first, first + count - 1)
        assert all(one.last + 1 == other.first for one, other in pairwise(ranges))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_partitions_are_set_by_number_or_by_size() -> None:
    sequences = SequenceRange(1, 100_001)

    assert partition_count(sequences, OPTIONS) == 3
    assert partition_count(sequences, ReadOptions(OPTIONS.connection, "S", messages_per_partition=10_000)) == 11
    assert partition_count(sequences, ReadOptions(OPTIONS.connection, "S", partitions=7)) == 7
    assert partition_count(SequenceRange(1, 10**9), OPTIONS) == 1000


def test_deleted_messages_do_not_add_partitions() -> None:
    assert partition_count(SequenceRange(1, 10**9), OPTIONS, messages=60_000) == 2


def test_an_offset_can_be_read_from_a_checkpoint() -> None:
    offset = Offset("S", "then", 42)

    assert parse_offset("S", offset.to_json()) == offset


def test_a_checkpoint_of_another_stream_or_version_is_rejected() -> None:
    with pytest.raises(JetStreamError, match="belongs to stream 'T'"):
        parse_offset("S", Offset("T", "then", 1).to_json())
    with pytest.raises(JetStreamError, match="cannot read"):
        parse_offset("S", {"v": 2})


def test_a_loss_description_names_the_stream_and_both_sequences() -> None:
    assert retention_loss(50, info(first=50)) is None
    assert retention_loss(101, info()) is None
    removed = retention_loss(3, info(first=50))
    assert removed is not None
    assert all(part in removed for part in ("'S'", "50", "sequence 3 is to be read"))
    ended = retention_loss(102, info())
    assert ended is not None
    assert "ends at sequence 100" in ended


def test_a_recreated_stream_is_a_loss() -> None:
    assert recreation_loss("then", info()) is None
    assert "recreated at now" in (recreation_loss("then", info(created="now")) or "")


def test_pushed_filters_are_combined() -> None:
    filters = PushedFilters(("a.*",)).at_least(5).at_least(3).at_most(9).at_most(20)
    assert (filters.first, filters.last) == (5, 9)
    assert filters.one_of(["a.b", "b.c", "a.b"]).subjects == ("a.b",)
    assert filters.one_of(["b.c"]).is_empty
    assert filters.one_of(["a.b"]).one_of(["a.c"]).is_empty
    assert not PushedFilters().one_of(["x"]).is_empty


def test_subjects_with_wildcards_or_spaces_are_not_pushed() -> None:
    assert are_literal_subjects(["a.b", "c"])
    assert not are_literal_subjects(["a.*"])
    assert not are_literal_subjects(["a b"])
    assert not are_literal_subjects([None])
