"""Cost of long streams: reading the end or appending does not read earlier data."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.names import streams_store
from postroad.streams import appender
from postroad.streams.store import StreamName
from tests.streams.workers import OpenWorker, Worker
from tests.waiting import eventually

pytestmark = pytest.mark.slow

MANY = 3000


@dataclass
class Spy:
    """Number of messages read from storage, and of requests."""

    sent: int = 0
    calls: int = 0

    def reset(self) -> None:
        self.sent = self.calls = 0


@pytest.fixture
def spy(name: str, monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Counts all reads of the tenant's store."""
    seen = Spy()
    really: Callable[..., Awaitable[stream_reader.Page]] = stream_reader.read

    async def read(connection: Connection, stream: str, *arguments: Any, **named: Any) -> stream_reader.Page:
        page = await really(connection, stream, *arguments, **named)
        if stream == streams_store(name):
            seen.calls += 1
            seen.sent += len(page.entries)
        return page

    monkeypatch.setattr(stream_reader, "read", read)
    return seen


async def long_stream(worker: Worker, stream: StreamName) -> list[int]:
    """Append MANY messages, with those of other streams in between; returns the offsets."""
    await worker.create(stream)
    neighbour = StreamName(stream.tenant, "neighbour")
    await worker.create(neighbour)
    outcomes = []
    for start in range(0, MANY, 500):
        outcomes += await asyncio.gather(*[worker.append(stream, b"%d" % number) for number in range(start, start + 500)])
        await asyncio.gather(*[worker.append(neighbour, b"another's") for _ in range(100)])
    return [0, *[outcome.next_offset for outcome in outcomes]]


async def test_reading_the_end_of_a_long_stream_does_not_read_its_beginning(worker: Worker, name: str, spy: Spy) -> None:
    stream = StreamName(name, "a")
    offsets = await long_stream(worker, stream)
    spy.reset()
    assert await worker.read_all(stream, offsets[-11]) == [b"%d" % number for number in range(MANY - 10, MANY)]
    assert (spy.calls, spy.sent) == (1, 10)
    spy.reset()
    assert await worker.read_all(stream, offsets[-1]) == []
    assert (spy.calls, spy.sent) == (1, 0)


async def test_reading_a_long_stream_reads_each_message_once(worker: Worker, name: str, spy: Spy) -> None:
    stream = StreamName(name, "a")
    await long_stream(worker, stream)
    spy.reset()
    assert len(await worker.read_all(stream)) == MANY
    assert spy.sent == MANY
    assert spy.calls <= MANY / 1000 + 1


async def test_reading_the_end_of_a_fork_does_not_read_inherited_segments(worker: Worker, name: str, spy: Spy) -> None:
    source, fork = StreamName(name, "a"), StreamName(name, "fork")
    offsets = await long_stream(worker, source)
    made = await worker.fork(fork, source, offsets[-2])
    for number in range(3):
        await worker.append(fork, b"own %d" % number)
    spy.reset()
    assert await worker.read_all(fork, made.tail) == [b"own 0", b"own 1", b"own 2"]
    assert (spy.calls, spy.sent) == (1, 3)
    spy.reset()
    assert await worker.read_all(fork, offsets[-4]) == [b"%d" % (MANY - 3), b"%d" % (MANY - 2), b"own 0", b"own 1", b"own 2"]
    assert spy.sent == 5


async def test_reading_a_fork_does_not_read_its_source_after_the_fork_offset(worker: Worker, name: str, spy: Spy) -> None:
    source, first, second = StreamName(name, "a"), StreamName(name, "first"), StreamName(name, "second")
    offsets = await long_stream(worker, source)
    await worker.fork(first, source, offsets[3])
    await asyncio.gather(*[worker.append(first, b"x") for _ in range(500)])
    await worker.fork(second, first, offsets[2], body=b"own")
    spy.reset()
    assert await worker.read_all(second) == [b"0", b"1", b"own"]
    assert spy.sent <= 3 + 3


async def test_creating_a_fork_copies_no_data(worker: Worker, name: str, spy: Spy) -> None:
    source = StreamName(name, "a")
    offsets = await long_stream(worker, source)
    before = len(await worker.subjects(name))
    spy.reset()
    await worker.fork(StreamName(name, "fork"), source, offsets[MANY // 2])
    await worker.fork(StreamName(name, "part"), source, offsets[MANY // 2], 1)
    assert spy.sent <= 1, "the append of the sub-offset"
    assert len(await worker.subjects(name)) <= before + 2 * 2 + 1


async def test_unguarded_appends_read_no_data(new_worker: OpenWorker, name: str, spy: Spy) -> None:
    stream = StreamName(name, "a")
    await long_stream(await new_worker(), stream)
    spy.reset()
    late = await new_worker()
    for _ in range(5):
        await late.append(stream, b"x")
    await late.append(stream, b"x", ("p", 0, 0))
    assert spy.sent == 0, "there is no earlier producer"


async def test_another_worker_reads_only_data_since_the_last_checkpoint(
    new_worker: OpenWorker, name: str, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "_CHECKPOINT_EVERY", 100)
    stream = StreamName(name, "a")
    first = await new_worker()
    await first.create(stream)
    for start in range(0, 1000, 50):
        await asyncio.gather(*[first.append(stream, b"x", ("p", 0, number)) for number in range(start, start + 50)])

    async def is_saved() -> bool:
        entry = await stream_reader.last(first.connection, stream.store, stream.checkpoint)
        return entry is not None and entry.sequence > 800

    await eventually(is_saved)
    spy.reset()
    assert (await (await new_worker()).append(stream, b"x", ("p", 0, 999))).is_duplicate
    assert spy.sent <= 200
