"""Storage of streams, and the state read from it."""

from dataclasses import replace
from typing import Any

import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.connection import Connection
from postroad.kernel.errors import Conflict
from postroad.streams import store as stores
from postroad.streams.records import Producer
from postroad.streams.rules import ProducerClaim, StreamSnapshot
from postroad.streams.store import StreamName, data_message, precondition, record_message
from tests.streams.workers import Worker


async def test_the_snapshot_of_a_stream_that_never_existed_is_empty(worker: Worker, name: str) -> None:
    assert not await worker.store.exists(name)
    assert await worker.store.snapshot(StreamName(name, "a"), with_producers=True) == StreamSnapshot(
        None, producers={}, stream="a"
    )
    assert await worker.store.record(StreamName(name, "a")) is None
    assert await worker.store.exists(name)


async def test_a_snapshot_has_the_written_state(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    made = await worker.create(stream, b"one")
    outcome = await worker.append(stream, b"two")
    for one in (worker, other):
        known = await one.store.snapshot(stream)
        assert (known.record, known.record_at) == (made.record, made.record.incarnation)
        assert known.tail == known.last == outcome.next_offset > made.tail
        assert abs(known.used_at_ms - one.clock()) < 5000
        assert await one.store.record(stream) == made.record


@pytest.mark.parametrize(
    "others", [["a.b", "a", "b"], ["a/b", "a", "b/a"], ["a.d", "a.m", "a"], ["A", "a"], ["a:b~@+=-", "a:b~@+="]]
)
async def test_streams_with_similar_names_are_separate(worker: Worker, name: str, others: list[str]) -> None:
    for one in others:
        await worker.create(StreamName(name, one), one.encode())
    for one in others:
        assert await worker.read_all(StreamName(name, one)) == [one.encode()]
    await worker.streams.delete(None, StreamName(name, others[0]))
    for one in others[1:]:
        assert await worker.read_all(StreamName(name, one)) == [one.encode()]


async def test_a_precondition_fails_after_a_write_of_another_worker(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    known = await worker.store.snapshot(stream)
    await other.append(stream, b"x")

    async def write(condition: str) -> None:
        await worker.store.committer(stream).append(data_message(stream, b"y", None, None, condition))

    with pytest.raises(Conflict):
        await write(precondition(stream.data_and_record, known.last))
    await write(precondition(stream.record, known.record_at))
    await other.append(stream, None, closes=True)
    with pytest.raises(Conflict):
        await write(precondition(stream.record, known.record_at))
    assert await worker.read_all(stream) == [b"x", b"y"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("record", "data"),
        ("record", "record"),
        ("record", "pattern"),
        ("pattern", "pattern"),
    ],
)
async def test_a_precondition_holds_inside_one_batch(worker: Worker, name: str, first: str, second: str) -> None:
    """Writes of one process share a batch, and earlier ones count for the preconditions of later ones."""
    stream = StreamName(name, "a")
    made = await worker.create(stream, b"kept")
    known = await worker.store.snapshot(stream)

    def message(kind: str) -> PendingMessage:
        condition = precondition(stream.record, known.record_at)
        if kind == "record":
            return record_message(stream, made.record, condition)
        return data_message(
            stream, b"x", None, None, condition if kind == "data" else precondition(stream.data_and_record, known.last)
        )

    others = [[data_message(StreamName(name, f"o{number}"), b"x", None, None)] for number in range(40)]
    outcomes = await worker.store.committer(stream).append_each([[message(first)], [message(second)], *others])
    assert [isinstance(one, Conflict) for one in outcomes] == [False, True, *[False] * 40]


# Producers

ODD_NAMES = ["p", "a b", "a\nb: c", "%20", "ü€😀", "a" * 256, " ", "\x00"]


async def test_producers_and_stream_seq_are_read_from_the_data(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"plain")
    for number, producer in enumerate(ODD_NAMES):
        await worker.append(stream, b"x", (producer, number, 0), seq=f"{number} {producer[:200]}")
        await worker.append(stream, b"x", (producer, number, 1))
        await other.append(stream, b"plain")
    known = await other.store.snapshot(stream, with_producers=True)
    assert known.producers == {producer: Producer(number, 1) for number, producer in enumerate(ODD_NAMES)}
    assert known.last_seq == f"{len(ODD_NAMES) - 1} \x00"


async def test_only_data_after_a_checkpoint_is_read(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    for number in range(20):
        await worker.append(stream, b"x", ("p", 0, number), seq=f"{number:02d}")
    await worker.store.save_checkpoint(stream, await worker.store.snapshot(stream, with_producers=True))
    await worker.append(stream, b"x", ("q", 3, 0))
    await worker.append(stream, b"plain")
    read = spy_on_reading(stream, monkeypatch)
    known = await other.store.snapshot(stream, with_producers=True)
    assert known.producers == {"p": Producer(0, 19), "q": Producer(3, 0)}
    assert known.last_seq == "19"
    assert len(read) == 2


async def test_a_long_scan_saves_a_checkpoint(worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PRODUCERS_PAGE", 4)
    stream = StreamName(name, "a")
    await worker.create(stream)
    for number in range(13):
        await worker.append(stream, b"x", ("p", 0, number))
    read = spy_on_reading(stream, monkeypatch)
    first = await other.store.snapshot(stream, with_producers=True)
    assert len(read) == 13
    read.clear()
    assert await other.store.snapshot(stream, with_producers=True) == first
    assert read == []


async def test_a_checkpoint_of_an_earlier_incarnation_is_ignored(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"x", ("p", 5, 0), seq="z")
    old = await worker.store.snapshot(stream, with_producers=True)
    await worker.streams.delete(None, stream)
    await worker.create(stream)
    await worker.append(stream, b"x", ("q", 0, 0), seq="a")
    await worker.store.save_checkpoint(stream, old)  # by a slow worker
    known = await other.store.snapshot(stream, with_producers=True)
    assert known.producers == {"q": Producer(0, 0)}
    assert known.last_seq == "a"


def lag(monkeypatch: pytest.MonkeyPatch, worker: Worker, reads: int) -> None:
    """Simulate a cluster whose replica lacks the newest entry in the first reads."""
    monkeypatch.setattr(worker.connection, "settings", replace(worker.connection.settings, has_replicas=True))
    really, left = stream_reader.read, [reads]

    async def behind(*arguments: Any, **more: Any) -> stream_reader.Page:
        page = await really(*arguments, **more)
        left[0] -= 1
        if left[0] < 0 or not page.entries:
            return page
        return stream_reader.Page(page.entries[:-1], page.entries[-1].sequence, 0)

    monkeypatch.setattr(stream_reader, "read", behind)


async def test_a_lagging_replica_does_not_hide_a_duplicate(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    for number in range(3):
        await worker.append(stream, b"x", ("p", 0, number))
    lag(monkeypatch, other, 2)
    assert (await other.append(stream, b"x", ("p", 0, 2))).is_duplicate
    assert await worker.read_all(stream) == [b"x", b"x", b"x"]


async def test_a_reader_of_a_lagging_replica_gets_all_data_or_is_not_up_to_date(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"one")
    await worker.append(stream, b"two")
    lag(monkeypatch, worker, 2)
    chunk = await worker.streams.read(stream, 0)
    assert (list(chunk.payloads), chunk.is_end) == ([b"one", b"two"], True)
    lag(monkeypatch, worker, 1000)
    chunk = await worker.streams.read(stream, 0)
    assert (list(chunk.payloads), chunk.is_end) == ([b"one"], False)


def spy_on_reading(stream: StreamName, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences of the data read from now on."""
    read: list[int] = []
    really = stream_reader.read

    async def spy(connection: Connection, store: str, *arguments: Any, **more: Any) -> stream_reader.Page:
        page = await really(connection, store, *arguments, **more)
        read.extend(entry.sequence for entry in page.entries if store == stream.store)
        return page

    monkeypatch.setattr(stream_reader, "read", spy)
    return read


# Purge and roll-up


async def test_a_purge_removes_earlier_messages_only(worker: Worker, name: str) -> None:
    stream, bystander = StreamName(name, "a"), StreamName(name, "b")
    await worker.create(stream, b"old", ttl_seconds=100)
    await worker.create(bystander, b"mine", ttl_seconds=100)
    await worker.store.save_read_time(stream)
    await worker.store.save_read_time(bystander)
    await worker.append(stream, b"x", ("p", 0, 0))
    await worker.store.save_checkpoint(stream, await worker.store.snapshot(stream, with_producers=True))
    before = await worker.append(stream, b"new")
    await worker.store.purge(stream, before.next_offset)
    assert [one for one in await worker.subjects(name) if one in ("s.a.d", "s.a.m", "a.a", "p.a")] == ["s.a.d"]
    assert await worker.read_all(bystander) == [b"mine"]
    assert "a.b" in await worker.subjects(name)


async def test_read_times_and_checkpoints_replace_their_predecessors(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, ttl_seconds=100)
    for number in range(5):
        await worker.store.save_read_time(stream)
        await worker.append(stream, b"x", ("p", 0, number))
        await worker.store.save_checkpoint(stream, await worker.store.snapshot(stream, with_producers=True))
    subjects = await worker.subjects(name)
    assert (subjects.count("a.a"), subjects.count("p.a")) == (1, 1)


def test_a_guarded_append_has_its_producer_in_the_headers() -> None:
    draft = data_message(StreamName("t", "a"), b"x", ProducerClaim("a b\r\n", 1, 2), "ü", "Some: condition\r\n")
    assert draft.headers == "Some: condition\r\nDs-Producer: a%20b%0D%0A 1 2\r\nDs-Seq: %C3%BC\r\n"
    assert draft.is_conditional
    assert not data_message(StreamName("t", "a"), b"x", None, None).is_conditional
