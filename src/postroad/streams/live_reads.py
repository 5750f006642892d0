"""Live reads: server-sent events and long polls, on the stream's shared follower."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from postroad.api.streams import media_type
from postroad.http.response import WriteChunk
from postroad.streams import metrics
from postroad.streams.content import data_event, join_payloads
from postroad.streams.cursors import control_event, cursor_after, cursor_now
from postroad.streams.live_follower import StreamFollower, StreamFollowers
from postroad.streams.offsets import Position
from postroad.streams.reading import ReadResult
from postroad.streams.rules import StreamSnapshot, start_of
from postroad.streams.service import Streams
from postroad.streams.store import StreamName

_HEARTBEAT = b": beat\n\n"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    long_poll_seconds: float
    sse_seconds: float
    heartbeat_seconds: float


class LiveReads:
    def __init__(self, streams: Streams, options: LiveOptions) -> None:
        self._streams, self._options = streams, options
        self._followers = StreamFollowers(streams.store, heartbeat_seconds=options.heartbeat_seconds)

    async def poll(self, name: StreamName, position: Position, draining: asyncio.Event) -> ReadResult:
        """Return data after the position as soon as there is some. Returns no data after the time-out, at the end of a closed
        stream, or when the stream was deleted. Raises StreamNotFound, StreamGone, OffsetGone."""
        snapshot = await self._streams.snapshot(name, is_use=True)
        start = min(start_of(snapshot.existing, position, snapshot.tail), snapshot.tail)
        deadline = time.monotonic() + self._options.long_poll_seconds
        async with self._followers.follow(name, snapshot.existing, snapshot.tail, draining) as follower:
            while True:
                if follower.tail > start or snapshot.tail > start:
                    return await self._streams.continue_read(name, follower.record, start)
                remaining = deadline - time.monotonic()
                if follower.is_closed or follower.has_ended or remaining <= 0 or draining.is_set():
                    return ReadResult(follower.record, (), start, start, is_end=True, is_closed=follower.is_closed)
                try:
                    async with asyncio.timeout(remaining):
                        await follower.wait_for_change()
                except TimeoutError:
                    continue

    async def events(
        self,
        name: StreamName,
        snapshot: StreamSnapshot,
        position: int,
        cursor: int | None,
        draining: asyncio.Event,
        write: WriteChunk,
    ) -> AsyncIterator[bytes]:
        """Data and control events after the position, until the stream is closed or deleted, the reader is too slow, or the
        maximum duration of a response is reached. New ones are written with `write`, while it accepts them."""
        record = snapshot.existing
        async with self._followers.follow(name, record, snapshot.tail, draining) as follower:
            reader = _EventReader(follower, min(position, snapshot.tail), cursor)
            while reader.position < follower.ring_start:
                result = await self._streams.continue_read(name, record, reader.position)
                yield reader.catch_up(result)
                if not result.payloads:
                    break
            deadline = time.monotonic() + self._options.sse_seconds

            def serve() -> bool:
                return time.monotonic() < deadline and reader.write_next(write)

            while True:
                if reader.position < follower.ring_start:
                    metrics.slow_readers.inc()
                    return
                events = reader.next_events()
                if events:
                    yield events
                if reader.is_done or time.monotonic() >= deadline:
                    return
                if not events:
                    await follower.wait_for_change(serve)


class DirectWrites:
    """Writes to the connection of a response, while its task waits for the next events: to wake the task for them costs more than
    everything else."""

    def __init__(self) -> None:
        self._write: WriteChunk | None = None

    def attach(self, write: WriteChunk) -> None:
        self._write = write

    def __call__(self, chunk: bytes) -> bool:
        return self._write is not None and self._write(chunk)


class _EventReader:
    """Position of one reader of a follower, and its next events."""

    def __init__(self, follower: StreamFollower, position: int, cursor: int | None) -> None:
        self._follower, self.position = follower, position
        self._cursor = cursor if cursor is not None and cursor >= cursor_now() else None  # an older one needs no own events
        self._is_position_sent = False
        self._heartbeats = follower.heartbeats
        self._media = media_type(follower.record.content_type)
        self._unwritten = b""
        self.is_done = False

    def _next_cursor(self) -> int:
        if self._cursor is None:
            return cursor_now()
        self._cursor = cursor_after(self._cursor)
        return self._cursor

    def catch_up(self, result: ReadResult) -> bytes:
        """Data read from storage as one event, and a control event."""
        self.position = max(self.position, result.next_offset)
        self._is_position_sent = result.is_end
        control = control_event(self.position, self._next_cursor(), is_up_to_date=result.is_end)
        if not result.payloads:
            return control
        return data_event(join_payloads(result.payloads, is_json=result.record.is_json), self._media) + control

    def write_next(self, write: WriteChunk) -> bool:
        """Write the events since the last call. False if the response has to go on: with those that were not written, its end, or
        because the reader is too slow."""
        follower = self._follower
        if self.position < follower.ring_start or follower.is_closed or follower.has_ended:
            return False
        events = self.next_events()
        if events and not write(events):
            self._unwritten = events
            return False
        return True

    def next_events(self) -> bytes:
        """Events since the last call; empty if there are none."""
        if self._unwritten:
            events, self._unwritten = self._unwritten, b""
            return events
        follower = self._follower
        events = b""
        if follower.tail > self.position:
            if self._cursor is None:
                events = follower.events_after(self.position)
            else:
                events = follower.events_with_cursor(self.position, self._next_cursor)
            self.position = follower.tail
            self._is_position_sent = True
        if follower.is_closed:
            self.is_done = True
            return events + control_event(self.position, None, is_up_to_date=True, is_closed=True)
        self.is_done = follower.has_ended
        if not self._is_position_sent:
            self._is_position_sent = True
            return events + control_event(self.position, self._next_cursor(), is_up_to_date=True)
        if not events and self._heartbeats != follower.heartbeats:
            events = _HEARTBEAT
        self._heartbeats = follower.heartbeats
        return events
