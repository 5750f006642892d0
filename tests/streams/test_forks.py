"""Forks: streams that start with the data of a source and keep it when the source is deleted."""

import asyncio
from typing import Any

import pytest

from postroad.api.streams import ContentTypeMismatch, ProducerGap, StreamExists, StreamGone, StreamNotFound
from postroad.kernel.errors import InvalidParameter, PostroadError, PreconditionFailed
from postroad.streams import lifecycle, reading
from postroad.streams.store import StreamName
from tests.streams.workers import JSON, TEXT, Worker

any_size = pytest.mark.parametrize("at_a_time", [1, 2, 3, 1000])


async def filled(worker: Worker, stream: StreamName, *data: bytes, content_type: str = TEXT) -> list[int]:
    """Create a stream with this data; returns its offsets, beginning with 0. Appends to other streams are in between."""
    await worker.create(stream, content_type=content_type)
    pad = StreamName(stream.tenant, "pad")
    await worker.create(pad)
    offsets = [0]
    for one in data:
        offsets.append((await worker.append(stream, one, content_type=content_type)).next_offset)
        await worker.append(pad, b"pad")
    return offsets


def names(tenant: str, *paths: str) -> list[StreamName]:
    return [StreamName(tenant, path) for path in paths]


async def test_a_fork_has_the_source_data_and_both_continue_independently(worker: Worker, other: Worker, name: str) -> None:
    source, fork = names(name, "source", "fork")
    offsets = await filled(worker, source, b"1", b"2", b"3")
    made = await other.fork(fork, source, offsets[2])
    assert (made.is_new, made.tail, made.record.content_type) == (True, offsets[2], TEXT)
    await worker.append(source, b"4")
    await worker.append(fork, b"own", ("p", 0, 0), seq="a")
    assert await other.read_all(source) == [b"1", b"2", b"3", b"4"]
    assert await worker.read_all(fork) == [b"1", b"2", b"own"]
    assert await worker.read_all(fork, offsets[1]) == [b"2", b"own"]
    assert await worker.read_all(fork, offsets[2]) == [b"own"]


async def test_a_fork_without_an_offset_is_made_at_the_end(worker: Worker, name: str) -> None:
    source, fork = names(name, "source", "fork")
    offsets = await filled(worker, source, b"1", b"2")
    assert (await worker.fork(fork, source)).tail == offsets[-1]
    await worker.append(source, b"3")
    assert not (await worker.fork(fork, source)).is_new, "the existing fork matches a request without an offset"
    assert await worker.read_all(fork) == [b"1", b"2"]


async def test_a_fork_at_zero_has_no_data_of_its_source(worker: Worker, name: str) -> None:
    source, fork = names(name, "source", "fork")
    await filled(worker, source, b"1", b"2")
    assert (await worker.fork(fork, source, 0)).tail == 0
    assert await worker.read_all(fork) == []
    await worker.append(fork, b"own")
    assert await worker.read_all(fork) == [b"own"]


async def test_the_body_of_a_fork_follows_the_source_data(worker: Worker, name: str) -> None:
    source, fork, empty = names(name, "source", "fork", "empty")
    offsets = await filled(worker, source, b"1", b"[2,3]", content_type=JSON)
    await worker.fork(fork, source, offsets[1], body=b"[4,5]")
    assert await worker.read_all(fork) == [b"1", b"4,5"]
    await worker.fork(empty, source, offsets[1], body=b"[]")
    assert await worker.read_all(empty) == [b"1"]


async def test_a_fork_of_a_closed_stream_is_open_unless_requested_closed(worker: Worker, name: str) -> None:
    source, fork, closed = names(name, "source", "fork", "closed")
    await worker.create(source, b"1", is_closed=True)
    await worker.fork(fork, source)
    assert not (await worker.streams.read(fork, 0)).is_closed
    await worker.append(fork, b"2", closes=True)
    await worker.fork(closed, source, is_closed=True)
    for stream, content in ((fork, [b"1", b"2"]), (closed, [b"1"])):
        chunk = await worker.streams.read(stream, 0)
        assert (chunk.payloads, chunk.is_end, chunk.is_closed) == (content, True, True)


async def test_a_fork_does_not_inherit_producers_and_seq(worker: Worker, name: str) -> None:
    source, fork = names(name, "source", "fork")
    await worker.create(source)
    await worker.append(source, b"1", ("p", 3, 0), seq="z")
    await worker.fork(fork, source)
    with pytest.raises(ProducerGap):
        await worker.append(fork, b"2", ("p", 3, 1))
    assert not (await worker.append(fork, b"2", ("p", 0, 0), seq="a")).is_duplicate


# Chains and chunks


@any_size
async def test_a_fork_of_a_fork_is_read_across_all_segments(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", at_a_time)
    chain = names(name, *[f"f{number}" for number in range(6)])
    await filled(worker, chain[0], b"0a", b"0b")
    content = [b"0a", b"0b"]
    for number in range(1, 6):
        await worker.fork(chain[number], chain[number - 1])
        await worker.append(chain[number - 1], b"unseen")
        for letter in "ab"[: number % 3]:
            content.append(f"{number}{letter}".encode())
            await worker.append(chain[number], content[-1])
    assert await worker.read_all(chain[-1]) == content
    offset = 0
    for position in range(len(content) + 1):
        assert await worker.read_all(chain[-1], offset) == content[position:]
        monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", 1)
        offset = (await worker.streams.read(chain[-1], offset)).next_offset
        monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", at_a_time)


@any_size
async def test_a_fork_can_start_within_an_inherited_segment(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", at_a_time)
    source, first, second = names(name, "source", "first", "second")
    offsets = await filled(worker, source, b"1", b"2", b"3")
    await worker.fork(first, source, offsets[3])
    await worker.append(first, b"4")
    made = await worker.fork(second, first, offsets[1])
    assert made.tail == offsets[1]
    assert await worker.read_all(second) == [b"1"]
    await worker.append(second, b"5")
    await worker.append(first, b"6")
    assert await worker.read_all(second) == [b"1", b"5"]
    assert await worker.read_all(second, offsets[1]) == [b"5"]


async def test_a_fork_between_two_messages_reaches_its_end(worker: Worker, name: str) -> None:
    """The offset is that of a message of another stream."""
    source, fork, closed = names(name, "source", "fork", "closed")
    offsets = await filled(worker, source, b"1", b"2")
    between = offsets[1] + 1
    assert between < offsets[2]
    for stream, is_closed in ((fork, False), (closed, True)):
        await worker.fork(stream, source, between, is_closed=is_closed)
        chunk = await worker.streams.read(stream, 0)
        assert (chunk.payloads, chunk.next_offset, chunk.is_end, chunk.is_closed) == ([b"1"], between, True, is_closed)
        for offset in (offsets[1], between):
            chunk = await worker.streams.read(stream, offset)
            assert (chunk.payloads, chunk.next_offset, chunk.is_end, chunk.is_closed) == ([], between, True, is_closed)
    await worker.append(fork, b"3")
    assert await worker.read_all(fork) == [b"1", b"3"]


async def test_the_number_of_ancestors_is_limited(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_SEGMENTS_MAX", 3)
    chain = names(name, *"abcde")
    await filled(worker, chain[0], b"1")
    for number in range(1, 4):
        await worker.fork(chain[number], chain[number - 1])
    with pytest.raises(InvalidParameter, match="at most 3"):
        await worker.fork(chain[4], chain[3])
    await worker.streams.delete(None, chain[3])
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(chain[3])


# Sub-offsets


@pytest.mark.parametrize(
    ("content_type", "data", "count", "content"),
    [
        (TEXT, [b"abc", b"defg"], 2, [b"abc", b"de"]),
        (TEXT, [b"abc", b"defg"], 4, [b"abc", b"defg"]),
        (JSON, [b"1", b'{"a": 2},[3,4],5'], 1, [b"1", b'{"a": 2}']),
        (JSON, [b"1", b'{"a": 2},[3,4],5'], 2, [b"1", b'{"a": 2},[3,4]']),
        (JSON, [b"1", b'{"a": 2},[3,4],5'], 3, [b"1", b'{"a": 2},[3,4],5']),
    ],
)
async def test_a_sub_offset_includes_a_part_of_the_next_append(
    worker: Worker, name: str, content_type: str, data: list[bytes], count: int, content: list[bytes]
) -> None:
    source, fork, again = names(name, "source", "fork", "again")
    offsets = await filled(worker, source, *data, content_type=content_type)
    await worker.append(source, b"8", content_type=content_type)
    await worker.fork(fork, source, offsets[1], count)
    assert await worker.read_all(fork) == content
    assert not (await worker.fork(fork, source, offsets[1], count)).is_new
    await worker.append(fork, b"9", content_type=content_type)
    await worker.fork(again, fork)
    assert await worker.read_all(again) == [*content, b"9"]
    with pytest.raises(StreamExists):
        await worker.fork(fork, source, offsets[1], count - 1)


async def test_sub_offsets_add_up_along_a_chain(worker: Worker, name: str) -> None:
    source, first, second = names(name, "source", "first", "second")
    offsets = await filled(worker, source, b"abcdef")
    await worker.fork(first, source, 0, 4)
    await worker.fork(second, first, 0, 2)
    assert await worker.read_all(first) == [b"abcd"]
    assert await worker.read_all(second) == [b"ab"]
    with pytest.raises(InvalidParameter):
        await worker.fork(StreamName(name, "third"), first, 0, 5)
    with pytest.raises(InvalidParameter):
        await worker.fork(StreamName(name, "third"), source, offsets[1], 1)


async def test_a_sub_offset_can_be_within_an_inherited_segment(worker: Worker, name: str) -> None:
    source, first, second = names(name, "source", "first", "second")
    offsets = await filled(worker, source, b"abc", b"def")
    await worker.fork(first, source)
    await worker.fork(second, first, offsets[1], 2)
    assert await worker.read_all(second) == [b"abc", b"de"]


async def test_a_sub_offset_beyond_the_next_append_is_refused(worker: Worker, name: str) -> None:
    source, empty = names(name, "source", "empty")
    await filled(worker, source, b"1,2", b"3", content_type=JSON)
    await worker.create(empty)
    for of, count in ((source, 3), (empty, 1)):
        with pytest.raises(InvalidParameter):
            await worker.fork(StreamName(name, "fork"), of, 0, count)
        await worker.streams.delete(None, of)
        with pytest.raises(StreamNotFound):
            await worker.streams.snapshot(of)


# Refused and repeated forks


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ({"source": "none"}, StreamNotFound),
        ({"source": "hidden"}, PreconditionFailed),
        ({"source": "fork"}, InvalidParameter),
        ({"offset": 9_999_999_999_999_999}, InvalidParameter),
        ({"content_type": JSON}, ContentTypeMismatch),
    ],
)
async def test_a_refused_fork_is_not_created_and_not_counted(
    worker: Worker, name: str, wanted: dict[str, Any], refusal: type[PostroadError]
) -> None:
    source, hidden, holder = names(name, "source", "hidden", "holder")
    await filled(worker, source, b"1")
    await filled(worker, hidden, b"1")
    await worker.fork(holder, hidden)
    await worker.streams.delete(None, hidden)
    given = StreamName(name, wanted.pop("source", "source"))
    with pytest.raises(refusal):
        await worker.fork(StreamName(name, "fork"), given, **wanted)
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(StreamName(name, "fork"))
    await worker.streams.delete(None, source)
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(source)


async def test_a_repeated_fork_is_accepted_and_a_different_one_refused(worker: Worker, name: str) -> None:
    source, other, fork = names(name, "source", "other", "fork")
    offsets = await filled(worker, source, b"1", b"2")
    await filled(worker, other, b"1", b"2")
    await worker.fork(fork, source, offsets[1], 1)
    assert not (await worker.fork(fork, source, offsets[1], 1)).is_new
    for of, offset, count in ((source, offsets[2], 0), (source, offsets[1], 0), (other, offsets[1], 1), (source, 0, 1)):
        with pytest.raises(StreamExists):
            await worker.fork(fork, of, offset, count)
    with pytest.raises(StreamExists):
        await worker.create(fork)
    with pytest.raises(StreamExists):
        await worker.fork(source, other)
    await worker.streams.delete(None, source)
    assert not (await worker.fork(fork, source, offsets[1], 1)).is_new, "the fork exists"


async def test_a_fork_has_its_own_lifetime_or_that_of_its_source(worker: Worker, name: str) -> None:
    source, heir, longer, fixed = names(name, "source", "heir", "longer", "fixed")
    await worker.create(source, b"1", ttl_seconds=10)
    assert (await worker.fork(heir, source)).record.ttl_seconds == 10
    assert (await worker.fork(longer, source, ttl_seconds=100)).record.ttl_seconds == 100
    made = await worker.fork(fixed, source, expires_at_ms=4_000_000_000_000, expires_at="then")
    assert (made.record.ttl_seconds, made.record.expires_at) == (None, "then")
    worker.clock.ahead_ms = 10_500
    for expired in (source, heir):
        with pytest.raises(StreamNotFound):
            await worker.streams.snapshot(expired)
    for stream in (longer, fixed):
        assert await worker.read_all(stream) == [b"1"]
    with pytest.raises(StreamExists):
        await worker.create(source, ttl_seconds=10)


# Delete and expire


async def test_a_source_is_soft_deleted_and_removed_with_its_last_fork(worker: Worker, other: Worker, name: str) -> None:
    source, first, second = names(name, "source", "first", "second")
    await filled(worker, source, b"1", b"2")
    await worker.fork(first, source)
    await other.fork(second, source)
    await worker.append(source, b"3", ("p", 0, 0))
    await other.streams.delete(None, source)
    for gone in (worker.streams.snapshot(source), worker.streams.read(source, 0), worker.streams.delete(None, source)):
        with pytest.raises(StreamGone):
            await gone
    with pytest.raises(StreamGone):
        await worker.append(source, b"late")
    with pytest.raises(StreamExists):
        await worker.create(source)
    await worker.streams.delete(None, first)
    assert await other.read_all(second) == [b"1", b"2"]
    with pytest.raises(StreamGone):
        await worker.streams.snapshot(source)
    await other.streams.delete(None, second)
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(source)
    await worker.streams.delete(None, StreamName(name, "pad"))
    assert await worker.subjects(name) == []


async def test_the_last_fork_removes_a_chain_of_soft_deleted_sources(worker: Worker, name: str) -> None:
    chain = names(name, *[f"f{number}" for number in range(5)])
    await worker.create(chain[0], b"0")
    for number in range(1, 5):
        await worker.fork(chain[number], chain[number - 1], body=b"%d" % number)
    for number in (1, 0, 2, 3):
        await worker.streams.delete(None, chain[number])
    assert await worker.read_all(chain[4]) == [b"0", b"1", b"2", b"3", b"4"]
    await worker.streams.delete(None, chain[4])
    assert await worker.subjects(name) == []


async def test_a_live_source_stays_when_its_forks_are_deleted(worker: Worker, name: str) -> None:
    source, middle, fork = names(name, "source", "middle", "fork")
    await worker.create(source, b"1")
    await worker.fork(middle, source)
    await worker.fork(fork, middle)
    await worker.streams.delete(None, middle)
    await worker.streams.delete(None, fork)
    assert await worker.read_all(source) == [b"1"]
    assert {one.split(".")[1] for one in await worker.subjects(name)} == {"source"}
    await worker.streams.delete(None, source)
    assert await worker.subjects(name) == []


async def test_an_expired_fork_releases_its_source(worker: Worker, name: str) -> None:
    source, fork = names(name, "source", "fork")
    await worker.create(source, b"1")
    await worker.fork(fork, source, ttl_seconds=10)
    await worker.streams.delete(None, source)
    worker.clock.ahead_ms = 10_500
    assert await worker.streams.delete_expired(name) == 1
    assert await worker.subjects(name) == []


@pytest.mark.parametrize("forks", [1, 2])
async def test_an_expired_source_stays_expired_when_a_fork_is_deleted(worker: Worker, name: str, forks: int) -> None:
    """The fork count is in its record; writing that must not count as use."""
    source = StreamName(name, "source")
    others = names(name, "first", "second")[:forks]
    await worker.create(source, b"1", ttl_seconds=10)
    for fork in others:
        await worker.fork(fork, source, ttl_seconds=1000)
    worker.clock.ahead_ms = 10_500
    assert await worker.streams.delete_expired(name) == 0, "forks still read from it"
    await worker.streams.delete(None, others[0])
    for ahead_ms in (10_500, 100):  # also by a clock that is behind the new timestamps
        worker.clock.ahead_ms = ahead_ms
        with pytest.raises(StreamNotFound if forks == 1 else StreamGone):
            await worker.streams.snapshot(source)
    if forks == 2:
        assert await worker.read_all(others[1]) == [b"1"]
        await worker.streams.delete(None, others[1])
    assert await worker.subjects(name) == []


async def test_concurrent_forks_are_counted_correctly(worker: Worker, other: Worker, name: str) -> None:
    source = StreamName(name, "source")
    await worker.create(source, b"1")

    async def create_and_delete(one: Worker, number: int) -> None:
        fork = StreamName(name, f"fork{number}")
        await one.fork(fork, source)
        await one.append(fork, b"%d" % number)
        if number % 3:
            await one.streams.delete(None, fork)

    await asyncio.gather(*[create_and_delete(one, number) for number, one in enumerate([worker, other] * 4)])
    assert (await worker.streams.snapshot(source)).record.forks == 3  # type: ignore[union-attr]
    await worker.streams.delete(None, source)
    for number in (0, 3, 6):
        assert await other.read_all(StreamName(name, f"fork{number}")) == [b"1", b"%d" % number]
        await other.streams.delete(None, StreamName(name, f"fork{number}"))
    assert await worker.subjects(name) == []
