"""Spans, partitions and offsets, from nothing but numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.api import StreamInfo
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import Connection, ReadOptions, Server
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

OPTIONS = ReadOptions(Connection((Server("one", 1),)), "S")


def info(first: int = 1, last: int = 100, created: str = "then") -> StreamInfo:
    return StreamInfo("S", created, first, last, last - first + 1, 100, True, "limits")


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(1, 200))
def test_the_parts_of_a_span_are_the_span(first: int, count: int, parts: int) -> None:
    pieces = split(Span(first, first + count - 1), parts)

    assert sum(map(len, pieces)) == count
    assert len(pieces) == min(parts, count)
    assert all(len(piece) > 0 for piece in pieces)
    if pieces:
        assert (pieces[0].first, pieces[-1].last) == (first, first + count - 1)
        assert all(one.last + 1 == other.first for one, other in pairwise(pieces))
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_partitions_are_counted_or_sized() -> None:
    span = Span(1, 100_001)

    assert parts_for(span, OPTIONS) == 3
    assert parts_for(span, ReadOptions(OPTIONS.connection, "S", messages_per_partition=10_000)) == 11
    assert parts_for(span, ReadOptions(OPTIONS.connection, "S", partitions=7)) == 7
    assert parts_for(Span(1, 10**9), OPTIONS) == 1000


def test_what_was_deleted_makes_no_partitions() -> None:
    assert parts_for(Span(1, 10**9), OPTIONS, messages=60_000) == 2


def test_an_offset_survives_a_checkpoint() -> None:
    offset = Offset("S", "then", 42)

    assert offset_of("S", offset.to_json()) == offset


def test_a_checkpoint_of_another_stream_is_refused() -> None:
    with pytest.raises(JetStreamError, match="belongs to the stream 'T'"):
        offset_of("S", Offset("T", "then", 1).to_json())
    with pytest.raises(JetStreamError, match="cannot read"):
        offset_of("S", {"v": 2})


def test_loss_names_the_stream_and_both_sequences() -> None:
    assert retention_loss(50, info(first=50)) is None
    assert retention_loss(101, info()) is None
    removed = retention_loss(3, info(first=50))
    assert removed is not None
    assert all(part in removed for part in ("'S'", "50", "3 was to be read"))
    ended = retention_loss(102, info())
    assert ended is not None
    assert "ends at sequence 100" in ended


def test_a_stream_made_anew_is_another_stream() -> None:
    assert recreation_loss("then", info()) is None
    assert "made anew at now" in (recreation_loss("then", info(created="now")) or "")


def test_filters_narrow_what_is_wanted() -> None:
    wanted = Wanted(("a.*",)).at_least(5).at_least(3).at_most(9).at_most(20)
    assert (wanted.first, wanted.last) == (5, 9)
    assert wanted.only(["a.b", "b.c", "a.b"]).subjects == ("a.b",)
    assert wanted.only(["b.c"]).is_nothing
    assert wanted.only(["a.b"]).only(["a.c"]).is_nothing
    assert not Wanted().only(["x"]).is_nothing


def test_only_real_subjects_are_asked_of_the_server() -> None:
    assert are_subjects(["a.b", "c"])
    assert not are_subjects(["a.*"])
    assert not are_subjects(["a b"])
    assert not are_subjects([None])
