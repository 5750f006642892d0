import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.jetstream.streams import committer_of, make_live_stream, new_message
from tests.servers import OpenConnection, Server, TcpProxy, restart
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.management import purge_stream
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail, follow


class _Reader:
    """Collects the entries that a tail delivers."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    async def take(self, entry: Entry) -> None:
        self.entries.append(entry)

    @property
    def sequences(self) -> list[int]:
        return [entry.sequence for entry in self.entries]

    async def has(self, *sequences: int, seconds: float = 5) -> None:
        """Wait for exactly these entries, in this order."""
        await eventually(lambda: len(self.entries) >= len(sequences), seconds)
        assert self.sequences == list(sequences)


class _LossyTail(Tail):
    """Misses the republished messages with these sequences; None: all of them."""

    missed: frozenset[int] | None = frozenset()

    def _on_message(self, message: IncomingMessage) -> None:
        if self.missed is not None and int((message.headers or {})["Nats-Sequence"]) not in self.missed:
            super()._on_message(message)


@asynccontextmanager
async def _running(run: Callable[[], Awaitable[None]]) -> AsyncIterator["asyncio.Future[None]"]:
    task = asyncio.ensure_future(run())
    try:
        yield task
        assert not task.done(), "a tail runs until it is cancelled"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _store(committers: Committers, stream: str, letters: str) -> None:
    for letter in letters:
        await committers.of(stream).append(new_message(f"{stream}.{letter}", letter.encode()))


@pytest.mark.parametrize(("after", "expected"), [(0, [1, 2, 3, 4, 5, 6]), (2, [3, 4, 5, 6]), (4, [5, 6])])
async def test_a_tail_starts_after_a_position(
    connection: Connection, committers: Committers, name: str, after: int, expected: list[int]
) -> None:
    await make_live_stream(connection, name)
    await _store(committers, name, "abab")
    reader = _Reader()
    tail = Tail(connection, Source(name, f"{name}.>"), after, reader.take)
    assert tail.synced_at is None
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await _store(committers, name, "ab")
        await reader.has(*expected)
    assert tail.position == 6
    assert [entry.payload for entry in reader.entries] == [b"ab"[(sequence - 1) % 2 :][:1] for sequence in expected]


async def test_a_tail_can_follow_one_subject(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    await _store(committers, name, "abba")
    reader = _Reader()
    tail = Tail(connection, Source(name, f"{name}.a"), 1, reader.take)
    async with _running(tail.run):
        await reader.has(4)
        await _store(committers, name, "bbabba")
        await reader.has(4, 7, 10)


async def test_a_live_entry_is_the_stored_one(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    live, stored = _Reader(), _Reader()
    tail = Tail(connection, Source(name, f"{name}.>"), 0, live.take, poll_seconds=60)
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await _store(committers, name, "ab")
        await live.has(1, 2)
    async with _running(Tail(connection, Source(name, f"{name}.>"), 0, stored.take).run):
        await stored.has(1, 2)
    assert live.entries == stored.entries


async def test_a_message_is_delivered_as_soon_as_it_is_stored(connection: Connection, committers: Committers, name: str) -> None:
    """By its republication, not by the next poll."""
    await make_live_stream(connection, name)
    reader = _Reader()
    tail = Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60)
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await _store(committers, name, "a")
        await reader.has(1, seconds=1)


async def test_writes_during_the_start_of_a_tail_are_neither_lost_nor_duplicated(connection: Connection, name: str) -> None:
    await make_live_stream(connection, name)
    committer = committer_of(connection, name)
    reader = _Reader()
    async with _running(Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60).run):
        await asyncio.gather(*[committer.append(new_message(f"{name}.a")) for _ in range(1000)])
        await reader.has(*range(1, 1001))


class _Patient(_Reader):
    """Blocks on the first entry until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.is_waiting = asyncio.Event()

    async def take(self, entry: Entry) -> None:
        self.is_waiting.set()
        await self.may_go_on.wait()
        await super().take(entry)


async def test_a_message_that_is_republished_and_read_is_delivered_once(connection: Connection, name: str) -> None:
    await make_live_stream(connection, name)
    committer = committer_of(connection, name)
    await asyncio.gather(*[committer.append(new_message(f"{name}.a")) for _ in range(600)])  # more than one page
    reader = _Patient()
    async with _running(Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60).run):
        await asyncio.wait_for(reader.is_waiting.wait(), 30)
        for _ in range(10):
            await committer.append(new_message(f"{name}.a"))
        reader.may_go_on.set()
        await reader.has(*range(1, 611))
        await committer.append(new_message(f"{name}.a"))
        await reader.has(*range(1, 612))


async def test_messages_over_the_tails_buffer_are_read_from_the_stream(connection: Connection, name: str) -> None:
    await make_live_stream(connection, name)
    committer = committer_of(connection, name)
    reader = _Patient()
    tail = Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60)
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await asyncio.gather(*[committer.append(new_message(f"{name}.a")) for _ in range(5000)])
        await asyncio.wait_for(reader.is_waiting.wait(), 30)
        reader.may_go_on.set()
        await reader.has(*range(1, 5001), seconds=20)


@pytest.mark.parametrize("subject", ["a", ">"])
async def test_a_missed_message_is_read_from_the_stream_when_the_next_one_shows_the_gap(
    connection: Connection, committers: Committers, name: str, subject: str
) -> None:
    await make_live_stream(connection, name)
    reader = _Reader()
    tail = _LossyTail(connection, Source(name, f"{name}.{subject}"), 0, reader.take, poll_seconds=60)
    tail.missed = frozenset({1, 3, 4, 5, 8})
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await _store(committers, name, "aaaaaaaaa")
        await reader.has(*range(1, 10))


async def test_a_lagging_replica_does_not_prove_that_a_tail_is_current(
    connection: Connection, committers: Committers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again until it has the last entry that the leader had at the start of the poll."""
    await make_live_stream(connection, name)
    await _store(committers, name, "aa")
    monkeypatch.setattr(connection, "settings", replace(connection.settings, has_replicas=True))
    reader, read, polls, is_visible = _Reader(), stream_reader.read, list[int](), asyncio.Event()

    async def behind(connection: Connection, stream: str, subject: str, position: int, *more: int) -> stream_reader.Page:
        if stream != name or is_visible.is_set():
            return await read(connection, stream, subject, position, *more)
        polls.append(position)
        return stream_reader.Page((), position, 0)

    monkeypatch.setattr(stream_reader, "read", behind)
    tail = Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60)
    async with _running(tail.run):
        await eventually(lambda: len(polls) > 2)
        assert tail.synced_at is None and not tail.caught_up.is_set()
        is_visible.set()
        await reader.has(1, 2)
        await eventually(lambda: tail.synced_at is not None)


async def test_a_poll_proves_only_what_was_so_when_it_asked(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is long on its way does not make the tail younger."""
    await make_live_stream(connection, name)
    asked_at: list[float] = []
    read = stream_reader.read

    async def timed(*given: Any) -> stream_reader.Page:
        asked_at.append(asyncio.get_running_loop().time())
        page = await read(*given)
        await asyncio.sleep(0)
        return page

    monkeypatch.setattr(stream_reader, "read", timed)
    tail = Tail(connection, Source(name, f"{name}.>"), 0, _Reader().take)
    async with _running(tail.run):
        await tail.caught_up.wait()
        assert tail.synced_at is not None and tail.synced_at <= asked_at[0]


async def test_a_missed_last_message_is_found_by_polling(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    reader = _Reader()
    tail = _LossyTail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=0.1)
    tail.missed = None
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        seen = tail.synced_at
        await _store(committers, name, "aa")
        await reader.has(1, 2)
        await eventually(lambda: tail.synced_at is not None and seen is not None and tail.synced_at > seen)


def _has_polled_since(tail: Tail, seen: float | None) -> bool:
    return tail.synced_at != seen


async def test_a_busy_stream_is_polled_too(connection: Connection, committers: Committers, name: str) -> None:
    """Polls depend on the clock, not on silence: otherwise the tail of a busy stream would seem stale."""
    await make_live_stream(connection, name)
    reader = _Reader()
    tail = Tail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=0.2)

    async def write_on() -> None:
        while True:
            await _store(committers, name, "a")

    async with _running(tail.run), _running(write_on):
        await eventually(lambda: tail.synced_at is not None)
        for _ in range(3):
            before, seen = len(reader.entries), tail.synced_at
            await eventually(partial(_has_polled_since, tail, seen))
            assert len(reader.entries) > before, "messages keep arriving"


async def test_deleted_messages_are_not_a_gap(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    reader = _Reader()
    tail = _LossyTail(connection, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60)
    tail.missed = frozenset({2, 3})
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        await _store(committers, name, "abb")
        await purge_stream(connection, name, f"{name}.b")
        await _store(committers, name, "a")
        await reader.has(1, 4)


@pytest.mark.parametrize("subject", ["a", ">"])
async def test_a_tail_survives_restarts_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str, subject: str
) -> None:
    writing, reading = await open_connection(own_server.url), await open_connection(own_server.url)
    await make_live_stream(writing, name)
    committer = committer_of(writing, name)
    reader = _Reader()
    tail = Tail(reading, Source(name, f"{name}.{subject}"), 0, reader.take, poll_seconds=60)
    async with _running(tail.run):
        for round_number in range(3):
            for _ in range(10):
                await committer.append(new_message(f"{name}.a"))
            if round_number < 2:
                await restart(own_server, writing, reading)
        await reader.has(*range(1, 31))


async def test_messages_stored_during_a_disconnect_are_delivered_after_it(
    connection: Connection, committers: Committers, proxy: TcpProxy, open_connection: OpenConnection, name: str
) -> None:
    await make_live_stream(connection, name)
    far = await open_connection(proxy.url)
    reader = _Reader()
    tail = Tail(far, Source(name, f"{name}.>"), 0, reader.take, poll_seconds=60)
    async with _running(tail.run):
        await eventually(lambda: tail.synced_at is not None)
        proxy.drops_replies = True
        await _store(committers, name, "aaa")
        await asyncio.wait_for(proxy.dropped.wait(), 30)
        proxy.cut()
        await reader.has(1, 2, 3)


async def test_a_tail_that_starts_without_a_server_continues_when_it_is_back(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await make_live_stream(connection, name)
    committer = committer_of(connection, name)
    await committer.append(new_message(f"{name}.a"))
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    reader = _Reader()
    async with _running(Tail(connection, Source(name, f"{name}.>"), 0, reader.take).run):
        own_server.start()
        await reader.has(1)
        await committer.append(new_message(f"{name}.a"))
        await reader.has(1, 2)


# One reader at its own pace


def _following(
    connection: Connection, source: Source, after: int, ahead_max: int = 256
) -> "AbstractAsyncContextManager[AsyncIterator[Entry]]":
    return aclosing(follow(connection, source, after, ahead_max=ahead_max))


async def test_a_slow_reader_gets_all_entries_in_order(connection: Connection, name: str) -> None:
    """At most `ahead_max` entries wait for it: the rest is read from the stream later."""
    count = 1000
    await make_live_stream(connection, name)
    committer = committer_of(connection, name)
    read: list[int] = []
    async with asyncio.timeout(30), _following(connection, Source(name, f"{name}.>"), 0, ahead_max=16) as entries:
        await committer.append(new_message(f"{name}.a"))
        async for entry in entries:
            read.append(entry.sequence)
            if len(read) == 1:  # the other entries are stored before the second is read
                await asyncio.gather(*[committer.append(new_message(f"{name}.a")) for _ in range(count - 1)])
            if len(read) == count:
                break
    assert read == list(range(1, count + 1))


async def test_tails_at_different_positions_are_independent(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    await _store(committers, name, "abcabc")

    async def read(subject: str, after: int, count: int) -> list[int]:
        async with _following(connection, Source(name, f"{name}.{subject}"), after) as entries:
            return [(await anext(entries)).sequence for _ in range(count)]

    async with asyncio.timeout(30):
        got = await asyncio.gather(read(">", 0, 6), read(">", 4, 2), read("b", 0, 2), read("c", 3, 1))
    assert list(got) == [[1, 2, 3, 4, 5, 6], [5, 6], [2, 5], [6]]


async def test_closing_the_iterator_stops_the_tail(connection: Connection, committers: Committers, name: str) -> None:
    await make_live_stream(connection, name)
    await _store(committers, name, "a")
    before = asyncio.all_tasks()
    async with _following(connection, Source(name, f"{name}.>"), 0) as entries:
        assert (await anext(entries)).sequence == 1
        started = asyncio.all_tasks() - before
        assert started
    await eventually(lambda: all(task.done() for task in started))


async def test_a_reader_gets_the_exception_of_its_tail(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Tail.run

    async def broken(tail: Tail) -> None:
        if tail._source.stream != name:
            return await run(tail)
        raise RuntimeError("the tail broke")

    monkeypatch.setattr(Tail, "run", broken)

    with pytest.raises(RuntimeError, match="the tail broke"):
        async with asyncio.timeout(30):
            await anext(follow(connection, Source(name, f"{name}.>"), 0))
