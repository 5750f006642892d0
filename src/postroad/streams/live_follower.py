"""Live reading: all readers of a stream in a process share one follower, which frames each message once.

A follower hears what the engine republishes and keeps the newest events in a ring. A reader that begins behind the ring reads
from the log until it has caught up; one that later falls behind it is too slow, and is sent away: it can come back to the
offset where it was. Nothing waits for a reader without bound.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import LIVE, Source, Tail
from postroad.kernel.errors import PostroadError
from postroad.streams import metrics
from postroad.streams.content import data_event, joined
from postroad.streams.cursors import control_event, cursor_now
from postroad.streams.records import State, StreamRecord, media_type
from postroad.streams.store import Name, Store

_RING_EVENTS_MAX = 2048
_RING_BYTES_MAX = 1024 * 1024
_LOOK_EVERY = 20.0
_LINGER_SECONDS = 5.0
_JOINED_MAX = 64
_SECONDS_PER_READER = 40e-6  # twice what it costs to send to one
_GATHER_SECONDS_MAX = 0.1

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class _Event:
    sequence: int
    data: bytes
    framed: bytes  # data and control, as nearly every reader gets them


class Follower:
    """One stream as it goes on. `tail` is the newest sequence it has; `ring_start` the one before the first in the ring."""

    def __init__(self, store: Store, name: Name, record: StreamRecord, tail: int) -> None:
        self._store, self._name = store, name
        self.record = record
        self.tail = self.ring_start = tail
        self._ends_at: int | None = None  # once it is closed
        self.is_closed = False  # and everything up to its end is here
        self.is_over = False  # deleted, or given up: there is nothing more to come
        self.readers = 0
        self.left_at = 0.0
        self.beats = 0
        self._media = media_type(record.content_type)
        self._ring: deque[_Event] = deque()
        self._ring_bytes = 0
        self._joined: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self._has_news = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._woken_at = 0.0
        # What lies before its record is of another stream that had this name.
        begin = max(tail, record.born)
        self._tail = Tail(store.connection, Source(name.store, name.data), begin, self._deliver, poll_seconds=_LOOK_EVERY)

    async def run(self) -> None:
        """Until cancelled. If it fails, its readers are sent away and come back to another one."""
        stop = await self._store.connection.listen(LIVE + self._name.record, self._record_changed)
        forget = self._store.connection.on_reconnect(self._has_news.set)
        tailing = asyncio.create_task(self._tail.run())
        tailing.add_done_callback(lambda _: self._has_news.set())
        try:
            self._has_news.set()  # something may have changed before anyone listened
            while not tailing.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY):
                        await self._has_news.wait()
                self._has_news.clear()
                await self._look()
        finally:
            self.end()
            forget()
            tailing.cancel()
            await asyncio.gather(tailing, return_exceptions=True)
            await stop()

    def _record_changed(self, _payload: bytes) -> None:
        self._has_news.set()

    async def _look(self) -> None:
        """Whether the stream is still the one it was, and whether it was closed."""
        try:
            known = await self._store.known(self._name)
        except PostroadError:
            return  # the next look will tell
        record = known.record
        if record is None or record.state is not State.LIVE or record.born != self.record.born:
            self.end()
            return
        self.record = record
        if record.is_closed and not self.is_closed:
            self._ends_at = known.tail
            self._close_if_complete()

    def _close_if_complete(self) -> None:
        """Readers must have all data before they are told that there will be no more."""
        if self._ends_at is None:
            return
        if self.tail >= self._ends_at:
            self.is_closed = True
            self._wake()
        else:
            self._tail.poll_soon()

    def beat(self) -> None:
        """Have readers show that they are there, if they have nothing else to say."""
        self.beats += 1
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def _deliver(self, entry: Entry) -> None:
        data = data_event(joined([entry.payload], is_json=self.record.is_json), self._media)
        event = _Event(entry.sequence, data, data + control_event(entry.sequence, cursor_now(), is_up_to_date=True))
        self._ring.append(event)
        self._ring_bytes += len(event.framed)
        while len(self._ring) > _RING_EVENTS_MAX or (self._ring_bytes > _RING_BYTES_MAX and len(self._ring) > 1):
            oldest = self._ring.popleft()
            self._ring_bytes -= len(oldest.framed)
            self.ring_start = oldest.sequence
        self.tail = entry.sequence
        self._joined.clear()
        self._wake_in_time()
        if self._ends_at is not None and self.tail >= self._ends_at:
            self._close_if_complete()

    def _wake_in_time(self) -> None:
        """At once, unless readers were woken a moment ago: to wake them all costs so much each, and what comes meanwhile can go
        along. So no more than half of the time goes into waking, and a message that comes alone does not wait."""
        if self._waking is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._woken_at + min(self.readers * _SECONDS_PER_READER, _GATHER_SECONDS_MAX)
        if due <= loop.time():
            self._wake()
        else:
            self._waking = loop.call_at(due, self._wake)

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._woken_at = asyncio.get_running_loop().time()
        self._changed.set()
        self._changed = asyncio.Event()

    # For readers

    async def change(self) -> None:
        """Until something happens; the caller has looked at everything, and nothing was awaited since."""
        await self._changed.wait()

    def since(self, position: int) -> bytes:
        """The events after this position, which is not before the ring. Put together once for all who are there."""
        ready = self._joined.get(position)
        if ready is None:
            ready = b"".join([event.framed for event in self._after(position)])
            if len(self._joined) < _JOINED_MAX:
                self._joined[position] = ready
        return ready

    def since_with(self, position: int, cursor: Callable[[], int]) -> bytes:
        """As `since`, for a reader who needs a cursor of its own."""
        return b"".join(
            [event.data + control_event(event.sequence, cursor(), is_up_to_date=True) for event in self._after(position)]
        )

    def _after(self, position: int) -> list[_Event]:
        found: list[_Event] = []
        for event in reversed(self._ring):
            if event.sequence <= position:
                break
            found.append(event)
        found.reverse()
        return found


class Followers:
    """The process's followers: one for each stream that somebody reads live, and for a moment after."""

    def __init__(self, store: Store, *, heartbeat_seconds: float) -> None:
        self._store, self._heartbeat_seconds = store, heartbeat_seconds
        self._followers: dict[tuple[Name, int], tuple[Follower, asyncio.Task[None]]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._is_draining = False

    @asynccontextmanager
    async def following(self, name: Name, record: StreamRecord, tail: int, draining: asyncio.Event) -> AsyncIterator[Follower]:
        """The follower of this incarnation of the stream; a new one begins at `tail`, which was the end a moment ago."""
        key = (name, record.born)
        kept = self._followers.get(key)
        if kept is None or kept[0].is_over:
            follower = Follower(self._store, name, record, tail)
            self._followers[key] = follower, asyncio.create_task(follower.run())
            metrics.followed.set(len(self._followers))
        else:
            follower = kept[0]
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(draining))
        follower.readers += 1
        try:
            yield follower
        finally:
            follower.readers -= 1
            follower.left_at = time.monotonic()

    async def _keep(self, draining: asyncio.Event) -> None:
        """Let readers beat, end followers that nobody needs any more, and all when the process is asked to stop."""
        stopping = asyncio.ensure_future(draining.wait())
        beaten_at = time.monotonic()
        try:
            while self._followers and not stopping.done():
                await asyncio.wait({stopping}, timeout=1.0)
                now = time.monotonic()
                if now - beaten_at >= self._heartbeat_seconds:
                    beaten_at = now
                    for follower, _ in self._followers.values():
                        follower.beat()
                idle = [
                    key
                    for key, (follower, running) in self._followers.items()
                    if running.done() or (not follower.readers and now - follower.left_at > _LINGER_SECONDS)
                ]
                for key in idle:
                    self._drop(key)
            for key in list(self._followers):
                self._drop(key)
        finally:
            stopping.cancel()
            self._keeper = None

    def _drop(self, key: tuple[Name, int]) -> None:
        follower, running = self._followers.pop(key)
        follower.end()
        if running.done() and not running.cancelled() and running.exception() is not None:
            log.warning("follower_failed", error=repr(running.exception()))
        running.cancel()
        metrics.followed.set(len(self._followers))
