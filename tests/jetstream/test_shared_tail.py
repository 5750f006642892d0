import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from tests.jetstream.streams import committer_of, make_live_stream, new_message
from tests.waiting import eventually

from postroad.jetstream import shared_tail
from postroad.jetstream.connection import Connection
from postroad.jetstream.shared_tail import SharedTails
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail


class _Stream:
    def __init__(self, connection: Connection, name: str) -> None:
        self.source = Source(name, f"{name}.one")
        self.tails = SharedTails[Source, Entry](connection, lambda source: source, lambda _source: lambda entry: entry)
        self._committer = committer_of(connection, name)

    async def publish(self, count: int = 1, subject: str = "one") -> None:
        for _ in range(count):
            await self._committer.append(new_message(f"{self.source.stream}.{subject}", b"x" * 100))


@pytest.fixture
async def stream(connection: Connection, name: str) -> _Stream:
    await make_live_stream(connection, name)
    return _Stream(connection, name)


@pytest.fixture
def subscribed(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of the subscriptions that follow."""
    seen: list[str] = []
    subscribe = Connection.subscribe

    def recording(one: Connection, subject: str, *arguments: Any, **more: Any) -> Any:
        seen.append(subject)
        return subscribe(one, subject, *arguments, **more)

    monkeypatch.setattr(Connection, "subscribe", recording)
    return seen


class _Readers:
    """Readers that collect the sequences of the entries."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, after: int = 0) -> list[int]:
        found: list[int] = []

        async def read() -> None:
            async with aclosing(self._stream.tails.follow(self._stream.source, after)) as entries:
                async for entry in entries:
                    found.append(entry.sequence)  # noqa: PERF401  # while it goes on

        self._tasks.append(asyncio.create_task(read()))
        return found

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def readers(stream: _Stream) -> AsyncIterator[_Readers]:
    async with AsyncExitStack() as stack:
        made = _Readers(stream)
        stack.push_async_callback(made.stop)
        yield made


async def test_readers_share_one_subscription(stream: _Stream, readers: _Readers, subscribed: list[str]) -> None:
    found = [readers.start() for _ in range(50)]
    await stream.publish(3)
    await eventually(lambda: all(one == [1, 2, 3] for one in found))
    assert subscribed.count(f"live.{stream.source.subject}") == 1


async def test_a_reader_that_starts_before_the_ring_misses_nothing(
    stream: _Stream, readers: _Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 3)
    first = readers.start()
    await stream.publish(10)
    await eventually(lambda: len(first) == 10)
    others = [readers.start(after) for after in range(10)]
    await stream.publish(2)
    await eventually(lambda: all(one == list(range(after + 1, 13)) for after, one in enumerate(others)))
    await eventually(lambda: first == list(range(1, 13)))


async def test_a_slow_reader_falls_behind_the_ring_and_misses_nothing(
    stream: _Stream, readers: _Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 3)
    async with aclosing(stream.tails.follow(stream.source, 0)) as slow, asyncio.timeout(20):
        fast = readers.start()
        await stream.publish()
        assert (await anext(slow)).sequence == 1
        await stream.publish(20)
        await eventually(lambda: len(fast) == 21)
        assert [(await anext(slow)).sequence for _ in range(20)] == list(range(2, 22))


async def test_the_position_is_known_while_there_are_readers(stream: _Stream, readers: _Readers) -> None:
    assert stream.tails.position(stream.source) is None
    readers.start()
    await stream.publish(2)
    await stream.publish(1, subject="other")
    await eventually(lambda: stream.tails.position(stream.source) == 2)


async def test_a_tail_without_readers_ends(stream: _Stream, readers: _Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tail, "_IDLE_SECONDS", 0.05)
    found = readers.start()
    await stream.publish()
    await eventually(lambda: found == [1])
    await readers.stop()
    await eventually(lambda: not stream.tails._tails)
    again = readers.start(0)
    await eventually(lambda: again == [1])


async def test_a_failed_tail_ends_its_readers(stream: _Stream, readers: _Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader gets another one."""

    async def fail(_self: Any) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(Tail, "run", fail)
        with pytest.raises(RuntimeError, match="broken"):
            await anext(stream.tails.follow(stream.source, 0))
    await stream.publish()
    found = readers.start()
    await eventually(lambda: found == [1])
