"""Shared tails: all readers of a source in a process share one subscription, and its polls of the stream.

A shared tail keeps the newest entries in a ring. A reader that starts before the ring, or falls behind it, reads from the stream
with a tail of its own until it has caught up. So memory stays bounded, no entry is skipped, and a further reader costs the engine
nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail, follow
from postroad.kernel.waiters import Waiters

_RING_ENTRIES_MAX = 512
_RING_BYTES_MAX = 1024 * 1024
_IDLE_SECONDS = 5.0  # after its last reader, for the next one


class _SharedTail:
    """`ring_start` is the position before the first entry in the ring."""

    def __init__(self, connection: Connection, source: Source, after: int) -> None:
        self.position = self.ring_start = after
        self.readers = 0
        self.changed = Waiters()
        self._ring: deque[Entry] = deque()
        self._ring_bytes = 0
        self._tail = Tail(connection, source, after, self._deliver)
        self.running = asyncio.create_task(self._tail.run())
        self.running.add_done_callback(lambda _: self.changed.wake())

    @property
    def is_current(self) -> bool:
        return self._tail.caught_up.is_set() and not self.running.done()

    async def _deliver(self, entry: Entry) -> None:
        self._ring.append(entry)
        self._ring_bytes += len(entry.payload)
        while len(self._ring) > _RING_ENTRIES_MAX or (self._ring_bytes > _RING_BYTES_MAX and len(self._ring) > 1):
            oldest = self._ring.popleft()
            self._ring_bytes -= len(oldest.payload)
            self.ring_start = oldest.sequence
        self.position = entry.sequence
        self.changed.wake()

    def entries_after(self, position: int) -> list[Entry]:
        """The entries after a position that is not before the ring."""
        found: list[Entry] = []
        for entry in reversed(self._ring):
            if entry.sequence <= position:
                break
            found.append(entry)
        found.reverse()
        return found


class SharedTails:
    """The shared tails of a process: one for each source with readers, kept for a short time after the last one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tails: dict[Source, _SharedTail] = {}

    def position(self, source: Source) -> int | None:
        """The newest position of a source that has readers and is up to date, else None."""
        tail = self._tails.get(source)
        return tail.position if tail is not None and tail.is_current else None

    async def follow(self, source: Source, after: int) -> AsyncGenerator[Entry, None]:
        """The entries after a position, in order and without gaps, at the reader's pace."""
        tail = self._tails.get(source)
        if tail is None or tail.running.done():
            tail = self._tails[source] = _SharedTail(self._connection, source, after)
        tail.readers += 1
        try:
            while True:
                if after < tail.ring_start:
                    async with aclosing(follow(self._connection, source, after)) as entries:
                        async for entry in entries:
                            after = entry.sequence
                            yield entry
                            if after >= tail.ring_start:
                                break
                for entry in tail.entries_after(after):
                    after = entry.sequence
                    yield entry
                if after >= tail.position:
                    if tail.running.done():
                        tail.running.result()  # it ends only by an exception, which is passed on
                        return
                    await tail.changed.wait()
        finally:
            tail.readers -= 1
            if not tail.readers:
                asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_if_idle, source, tail)

    def _drop_if_idle(self, source: Source, tail: _SharedTail) -> None:
        if not tail.readers:
            tail.running.cancel()
            if self._tails.get(source) is tail:
                del self._tails[source]
