"""Waiting for what comes: server-sent events and long polls, each on the stream's shared follower."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from postroad.streams import metrics
from postroad.streams.content import data_event, joined
from postroad.streams.cursors import control_event, cursor_after, cursor_now
from postroad.streams.live_follower import Follower, Followers
from postroad.streams.offsets import Place
from postroad.streams.reading import Chunk
from postroad.streams.records import StreamRecord, media_type
from postroad.streams.rules import StreamSnapshot
from postroad.streams.service import Streams
from postroad.streams.store import Name

_BEAT = b": beat\n\n"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    long_poll_seconds: float
    sse_seconds: float
    heartbeat_seconds: float


class Live:
    def __init__(self, streams: Streams, options: LiveOptions) -> None:
        self._streams, self._options = streams, options
        self._followers = Followers(streams.store, heartbeat_seconds=options.heartbeat_seconds)

    async def poll(self, name: Name, place: Place, draining: asyncio.Event) -> Chunk:
        """The data after a place, as soon as there are any; without data at the time-out, at the end of a closed stream, or when
        the stream is no more."""
        known = await self._streams.look(name, touches=True)
        record = _record(known)
        position = min(place, known.tail) if isinstance(place, int) else known.tail
        give_up = time.monotonic() + self._options.long_poll_seconds
        async with self._followers.following(name, record, known.tail, draining) as follower:
            while True:
                if follower.tail > position or known.tail > position:
                    return await self._streams.read_on(name, follower.record, position)
                left = give_up - time.monotonic()
                if follower.is_closed or follower.is_over or left <= 0 or draining.is_set():
                    return Chunk(follower.record, (), position, position, is_end=True, is_closed=follower.is_closed)
                try:
                    async with asyncio.timeout(left):
                        await follower.change()
                except TimeoutError:
                    continue

    async def events(
        self, name: Name, known: StreamSnapshot, place: Place, cursor: int | None, draining: asyncio.Event
    ) -> AsyncIterator[bytes]:
        """Data and control events from a place on, until the stream is closed or deleted, the reader is too slow, or it is time
        to let it come back."""
        record = _record(known)
        async with self._followers.following(name, record, known.tail, draining) as follower:
            position = min(place, known.tail) if isinstance(place, int) else known.tail
            reader = _Reader(follower, position, cursor)
            while reader.position < follower.ring_start:
                chunk = await self._streams.read_on(name, record, reader.position)
                yield reader.caught_up_by(chunk)
                if not chunk.payloads:
                    break
            until = time.monotonic() + self._options.sse_seconds
            while True:
                if reader.position < follower.ring_start:
                    metrics.slow_readers.inc()
                    return
                news = reader.news()
                if news:
                    yield news
                if reader.is_done or time.monotonic() >= until:
                    return
                if not news:
                    await follower.change()


class _Reader:
    """How far one reader of a follower is, and what it has to be told."""

    def __init__(self, follower: Follower, position: int, cursor: int | None) -> None:
        self._follower, self.position = follower, position
        self._cursor = cursor if cursor is not None and cursor >= cursor_now() else None  # only then it is special
        self._is_told = False  # where it is, and that there is no more
        self._beats = follower.beats
        self._media = media_type(follower.record.content_type)
        self.is_done = False

    def _next_cursor(self) -> int:
        if self._cursor is None:
            return cursor_now()
        self._cursor = cursor_after(self._cursor)
        return self._cursor

    def caught_up_by(self, chunk: Chunk) -> bytes:
        """What was read from the log, as one event; its control event says whether that was all."""
        self.position = max(self.position, chunk.next_offset)
        self._is_told = chunk.is_end
        control = control_event(self.position, self._next_cursor(), is_up_to_date=chunk.is_end)
        if not chunk.payloads:
            return control
        return data_event(joined(chunk.payloads, is_json=chunk.record.is_json), self._media) + control

    def news(self) -> bytes:
        """What has happened since; nothing if there is nothing to say."""
        follower = self._follower
        told = b""
        if follower.tail > self.position:
            told = (
                follower.since(self.position) if self._cursor is None else follower.since_with(self.position, self._next_cursor)
            )
            self.position = follower.tail
            self._is_told = True
        if follower.is_closed:
            self.is_done = True
            return told + control_event(self.position, None, is_up_to_date=True, is_closed=True)
        self.is_done = follower.is_over
        if not self._is_told:
            self._is_told = True
            return told + control_event(self.position, self._next_cursor(), is_up_to_date=True)
        if not told and self._beats != follower.beats:
            told = _BEAT
        self._beats = follower.beats
        return told


def _record(known: StreamSnapshot) -> StreamRecord:
    if known.record is None:
        raise ValueError("of a stream that is not there")
    return known.record
