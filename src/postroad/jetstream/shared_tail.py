"""Shared tails: all readers of a source in a process share one subscription, and its polls of the stream.

A shared tail keeps the newest entries in a ring, each converted once for all readers. A reader that starts before the ring, or
falls behind it, reads from the stream until it has caught up. So memory stays bounded, no entry is skipped, and a further reader
costs the engine nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import aclosing, contextmanager
from typing import Generic, Protocol, TypeVar

from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail, follow
from postroad.kernel.waiters import Waiters

_RING_ENTRIES_MAX = 512
_RING_BYTES_MAX = 1024 * 1024
_BURST_ENTRIES = 64  # that are added before readers run: a whole burst at once would take the ring past all of them
_IDLE_SECONDS = 5.0  # after its last reader, for the next one

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class TailListener(Protocol):
    """Is called back instead of waiting in a task, for many readers at once."""

    @property
    def is_busy(self) -> bool:
        """True while it passes entries on: then the tail waits after a burst."""

    def tail_changed(self) -> None:
        """There are new entries, or the tail has ended."""


class SharedTail(Generic[T]):
    """`position` is that of the newest entry, `ring_start` the one before the first entry in the ring."""

    def __init__(self, connection: Connection, source: Source, after: int, convert: Callable[[Entry], T]) -> None:
        self.position = self.ring_start = after
        self.readers = 0
        self.has_ended = False
        self.listeners: set[TailListener] = set()
        self._is_notifying = False
        self._changed = Waiters()
        self._convert = convert
        self._ring: deque[tuple[int, int, T]] = deque()  # sequence, size, item
        self._ring_bytes = self._added = 0
        self._tail = Tail(connection, source, after, self._deliver)
        self.running = asyncio.create_task(self._tail.run())
        self.running.add_done_callback(lambda _: self._wake())

    @property
    def is_current(self) -> bool:
        return self._tail.caught_up.is_set() and not self.running.done()

    async def _deliver(self, entry: Entry) -> None:
        self._ring.append((entry.sequence, len(entry.payload), self._convert(entry)))
        self._ring_bytes += len(entry.payload)
        while len(self._ring) > _RING_ENTRIES_MAX or (self._ring_bytes > _RING_BYTES_MAX and len(self._ring) > 1):
            sequence, size, _ = self._ring.popleft()
            self._ring_bytes -= size
            self.ring_start = sequence
        self.position = entry.sequence
        self._wake()
        self._added += 1
        if self._added % _BURST_ENTRIES == 0:
            await asyncio.sleep(0)
            while any(listener.is_busy for listener in self.listeners):  # noqa: ASYNC110  # for a few iterations
                await asyncio.sleep(0)

    def _wake(self) -> None:
        self._changed.wake()
        if self.listeners and not self._is_notifying:
            self._is_notifying = True
            asyncio.get_running_loop().call_soon(self._notify)

    def _notify(self) -> None:
        self._is_notifying = False
        for listener in tuple(self.listeners):
            listener.tail_changed()

    async def wait(self) -> None:
        """Wait for the next entry or the end. The caller must not have awaited anything since it read the state."""
        if not self.has_ended and not self.running.done():
            await self._changed.wait()

    def items_after(self, position: int) -> list[T]:
        """The items after a position that is not before the ring."""
        found: list[T] = []
        for sequence, _, item in reversed(self._ring):
            if sequence <= position:
                break
            found.append(item)
        found.reverse()
        return found

    def end(self) -> None:
        """The source is gone: stop, and wake all readers."""
        self.has_ended = True
        self.running.cancel()
        self._wake()


class SharedTails(Generic[K, T]):
    """The shared tails of a process: one for each source with readers, kept for a short time after the last one."""

    def __init__(
        self, connection: Connection, source_of: Callable[[K], Source], convert: Callable[[K], Callable[[Entry], T]]
    ) -> None:
        self._connection, self._source_of, self._convert = connection, source_of, convert
        self._tails: dict[K, SharedTail[T]] = {}

    def current(self, key: K) -> SharedTail[T] | None:
        """The tail of a source that has readers and is up to date, else None."""
        tail = self._tails.get(key)
        return tail if tail is not None and tail.is_current else None

    def position(self, key: K) -> int | None:
        """The newest position of a source that has readers and is up to date, else None."""
        tail = self.current(key)
        return None if tail is None else tail.position

    def acquire(self, key: K, after: int) -> SharedTail[T]:
        """The tail of a source; a new one starts after the position `after`. Must be released."""
        tail = self._tails.get(key)
        if tail is None or tail.running.done():
            tail = self._tails[key] = SharedTail(self._connection, self._source_of(key), after, self._convert(key))
        tail.readers += 1
        return tail

    def release(self, key: K, tail: SharedTail[T]) -> None:
        tail.readers -= 1
        if not tail.readers:
            asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_if_idle, key, tail)

    @contextmanager
    def join(self, key: K, after: int) -> Iterator[SharedTail[T]]:
        """The tail of a source, as long as the context lasts."""
        tail = self.acquire(key, after)
        try:
            yield tail
        finally:
            self.release(key, tail)

    async def follow(self, key: K, after: int) -> AsyncGenerator[T, None]:
        """The items after a position, in order and without gaps, at the reader's pace."""
        convert, source = self._convert(key), self._source_of(key)
        with self.join(key, after) as tail:
            while True:
                if after < tail.ring_start:
                    async with aclosing(follow(self._connection, source, after)) as entries:
                        async for entry in entries:
                            after = entry.sequence
                            yield convert(entry)
                            if after >= tail.ring_start:
                                break
                position = tail.position
                for item in tail.items_after(after):
                    yield item
                after = max(after, position)
                if after >= tail.position:
                    if tail.running.done():
                        tail.running.result()  # it ends only by an exception, which is passed on
                        return
                    await tail.wait()

    def end(self, key: K) -> None:
        """The source is gone: its readers end."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            tail.end()

    def _drop_if_idle(self, key: K, tail: SharedTail[T]) -> None:
        if not tail.readers:
            tail.running.cancel()
            if self._tails.get(key) is tail:
                del self._tails[key]
