"""Followers: all live readers of a stream in a process share one follower, which encodes each message once.

A follower receives the messages that JetStream republishes and keeps the newest events in a ring buffer. A reader that starts
before the ring reads from storage until it has caught up. A reader that later falls behind the ring is disconnected and can
reconnect at its offset, so that no reader needs unbounded memory.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from postroad.api.streams import media_type
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import LIVE, Source, Tail
from postroad.kernel.errors import PostroadError
from postroad.kernel.waiters import Waiters
from postroad.streams import metrics
from postroad.streams.content import data_event, join_payloads
from postroad.streams.cursors import control_event, cursor_now
from postroad.streams.records import State, StreamRecord
from postroad.streams.store import StreamName, StreamStore

_RING_EVENTS_MAX = 2048
_RING_BYTES_MAX = 1024 * 1024
_REFRESH_SECONDS = 20.0
_IDLE_SECONDS = 5.0
_JOINED_MAX = 64
_SECONDS_PER_READER = 40e-6  # at least twice the cost of sending to one reader
_COALESCE_SECONDS_MAX = 0.1
_MAINTAIN_SECONDS = 1.0

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class _Event:
    sequence: int
    data: bytes
    framed: bytes  # data and control event, for readers without a cursor of their own


class StreamFollower:
    """Live events of one stream. `tail` is the newest sequence; `ring_start` is the sequence before the first event in the
    ring."""

    def __init__(self, store: StreamStore, name: StreamName, record: StreamRecord, tail: int) -> None:
        self._store, self._name = store, name
        self.record = record
        self.tail = self.ring_start = tail
        self.is_closed = False  # the stream is closed and all of its data has arrived
        self.has_ended = False  # deleted, or this follower failed
        self.readers = 0
        self.idle_since = 0.0
        self.heartbeats = 0
        self._closed_at: int | None = None
        self._media = media_type(record.content_type)
        self._ring: deque[_Event] = deque()
        self._ring_bytes = 0
        self._joined: dict[int, bytes] = {}
        self._changed = Waiters()
        self._refresh_due = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._woke_at = 0.0
        start = max(tail, record.incarnation)  # messages before the record belong to an earlier incarnation
        source = Source(name.store, name.data)
        self._tail = Tail(store.connection, source, start, self._on_entry, poll_seconds=_REFRESH_SECONDS)

    async def run(self) -> None:
        """Run until cancelled. After a failure the readers are disconnected, and reconnect to another follower."""
        unsubscribe = self._store.connection.listen(LIVE + self._name.record, self._on_record)
        remove_listener = self._store.connection.on_reconnect(self._refresh_due.set)
        tailing = asyncio.create_task(self._tail.run())
        tailing.add_done_callback(lambda _: self._refresh_due.set())
        try:
            self._refresh_due.set()  # the record may have changed before the subscription began
            while not tailing.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REFRESH_SECONDS):
                        await self._refresh_due.wait()
                self._refresh_due.clear()
                await self._refresh()
        finally:
            self.end()
            remove_listener()
            tailing.cancel()
            await asyncio.gather(tailing, return_exceptions=True)
            await unsubscribe()

    def _on_record(self, _payload: bytes) -> None:
        self._refresh_due.set()

    async def _refresh(self) -> None:
        """Read whether the stream still exists and whether it was closed."""
        try:
            snapshot = await self._store.snapshot(self._name)
        except PostroadError:
            return  # the next refresh tries again
        record = snapshot.record
        if record is None or record.state is not State.LIVE or record.incarnation != self.record.incarnation:
            self.end()
            return
        self.record = record
        if record.is_closed and not self.is_closed:
            self._closed_at = snapshot.tail
            self._close_if_complete()

    def _close_if_complete(self) -> None:
        """Readers must have all data before the final event."""
        if self._closed_at is None:
            return
        if self.tail >= self._closed_at:
            self.is_closed = True
            self._wake()
        else:
            self._tail.poll_soon()

    def heartbeat(self) -> None:
        """Make readers without new events send a comment, which keeps their connections open."""
        self.heartbeats += 1
        self._wake()

    def end(self) -> None:
        self.has_ended = True
        self._wake()

    async def _on_entry(self, entry: Entry) -> None:
        data = data_event(join_payloads([entry.payload], is_json=self.record.is_json), self._media)
        event = _Event(entry.sequence, data, data + control_event(entry.sequence, cursor_now(), is_up_to_date=True))
        self._ring.append(event)
        self._ring_bytes += len(event.framed)
        while len(self._ring) > _RING_EVENTS_MAX or (self._ring_bytes > _RING_BYTES_MAX and len(self._ring) > 1):
            oldest = self._ring.popleft()
            self._ring_bytes -= len(oldest.framed)
            self.ring_start = oldest.sequence
        self.tail = entry.sequence
        self._joined.clear()
        self._schedule_wake()
        if self._closed_at is not None and self.tail >= self._closed_at:
            self._close_if_complete()

    def _schedule_wake(self) -> None:
        """Wake the readers at once, unless they were woken just before: waking has a cost per reader, and later messages can
        share it. So at most half of the time is spent waking, and a single message is not delayed."""
        if self._wake_timer is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._woke_at + min(self.readers * _SECONDS_PER_READER, _COALESCE_SECONDS_MAX)
        if due <= loop.time():
            self._wake()
        else:
            self._wake_timer = loop.call_at(due, self._wake)

    def _wake(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        self._woke_at = asyncio.get_running_loop().time()
        self._changed.wake()

    # For readers

    async def wait_for_change(self, serve: Callable[[], bool] | None = None) -> None:
        """Wait for the next change, or for one that `serve` does not serve (`Waiters.wait`). The caller must not have awaited
        anything since it read the state."""
        await self._changed.wait(serve)

    def events_after(self, position: int) -> bytes:
        """Encoded events after a position that is not before the ring. Joined once for all readers at the same position."""
        joined = self._joined.get(position)
        if joined is None:
            joined = b"".join([event.framed for event in self._after(position)])
            if len(self._joined) < _JOINED_MAX:
                self._joined[position] = joined
        return joined

    def events_with_cursor(self, position: int, cursor: Callable[[], int]) -> bytes:
        """Like `events_after`, for a reader that needs a cursor of its own."""
        return b"".join(
            [event.data + control_event(event.sequence, cursor(), is_up_to_date=True) for event in self._after(position)]
        )

    def _after(self, position: int) -> list[_Event]:
        events: list[_Event] = []
        for event in reversed(self._ring):
            if event.sequence <= position:
                break
            events.append(event)
        events.reverse()
        return events


class StreamFollowers:
    """Followers of the process: one for each stream with live readers, kept for a short time after the last one."""

    def __init__(self, store: StreamStore, *, heartbeat_seconds: float) -> None:
        self._store, self._heartbeat_seconds = store, heartbeat_seconds
        self._followers: dict[tuple[StreamName, int], tuple[StreamFollower, asyncio.Task[None]]] = {}
        self._maintenance: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def follow(
        self, name: StreamName, record: StreamRecord, tail: int, draining: asyncio.Event
    ) -> AsyncIterator[StreamFollower]:
        """The follower of this incarnation of the stream; a new one starts at `tail`, the end in a recent snapshot."""
        key = (name, record.incarnation)
        existing = self._followers.get(key)
        if existing is None or existing[0].has_ended:
            follower = StreamFollower(self._store, name, record, tail)
            self._followers[key] = follower, asyncio.create_task(follower.run())
            metrics.followed.set(len(self._followers))
        else:
            follower = existing[0]
        if self._maintenance is None:
            self._maintenance = asyncio.create_task(self._maintain(draining))
        follower.readers += 1
        try:
            yield follower
        finally:
            follower.readers -= 1
            follower.idle_since = time.monotonic()

    async def _maintain(self, draining: asyncio.Event) -> None:
        """Send heartbeats and drop idle followers; when the process drains, drop all of them."""
        stopping = asyncio.ensure_future(draining.wait())
        heartbeat_at = time.monotonic()
        try:
            while self._followers and not stopping.done():
                await asyncio.wait({stopping}, timeout=_MAINTAIN_SECONDS)
                now = time.monotonic()
                if now - heartbeat_at >= self._heartbeat_seconds:
                    heartbeat_at = now
                    for follower, _ in self._followers.values():
                        follower.heartbeat()
                idle = [
                    key
                    for key, (follower, running) in self._followers.items()
                    if running.done() or (not follower.readers and now - follower.idle_since > _IDLE_SECONDS)
                ]
                for key in idle:
                    self._drop(key)
            for key in list(self._followers):
                self._drop(key)
        finally:
            stopping.cancel()
            self._maintenance = None

    def _drop(self, key: tuple[StreamName, int]) -> None:
        follower, running = self._followers.pop(key)
        follower.end()
        if running.done() and not running.cancelled() and running.exception() is not None:
            log.warning("follower_failed", error=repr(running.exception()))
        running.cancel()
        metrics.followed.set(len(self._followers))
