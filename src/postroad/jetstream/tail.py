"""Live tails: a stream's `republish` brings each stored message at once; what it misses is read from the log.

A republished message names the sequence before it, so a gap shows with the next message. Gaps that no message shows (the last
one was lost, the connection broke) are found by looking at the log after every reconnect and every few seconds. A successful
look is also the proof of being in touch: `seen_at` says when that was.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import structlog
from nats.aio.msg import Msg

from postroad.jetstream import metrics, stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry, entry_of
from postroad.kernel.errors import EngineUnavailable

_LAG_SECONDS = 0.02  # after which a replica that lags is asked again
LIVE = "live."  # what a republished subject starts with

log = structlog.get_logger("postroad.jetstream")


def republish(subject: str) -> dict[str, str]:
    """The stream option that makes tails of `subject` work."""
    return {"src": subject, "dest": LIVE + subject}


@dataclass(frozen=True, slots=True)
class Source:
    """What to follow: a whole stream (`subject` is its only wildcard), or one subject of it."""

    stream: str
    subject: str

    @property
    def is_whole_stream(self) -> bool:
        return self.subject.endswith(">")


class Tail:
    """Hands each entry to `deliver`, in order and without gaps, from `after` on, until cancelled.

    `deliver` must be quick: what it cannot take it should queue, with a bound of its own.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        after: int,
        deliver: Callable[[Entry], Awaitable[None]],
        *,
        look_every: float = 5.0,
    ) -> None:
        self.position = after
        self.seen_at: float | None = None
        self.caught_up = asyncio.Event()  # set once the log was read to its end
        self._connection, self._source, self._deliver, self._look_every = connection, source, deliver, look_every
        self._inbox: asyncio.Queue[Msg | None] = asyncio.Queue(maxsize=4096)
        self._must_look = False
        self._looked_at = 0.0

    async def run(self) -> None:
        stop = await self._connection.subscribe(LIVE + self._source.subject, self._heard)
        stop_listening = self._connection.on_reconnect(self.look_soon)
        try:
            await self._look()
            while True:
                # By the clock, not by silence: a stream that never rests is looked at all the same.
                try:
                    async with asyncio.timeout_at(self._looked_at + self._look_every):
                        message = await self._inbox.get()
                except TimeoutError:
                    message = None
                if message is None or self._must_look:
                    await self._look()
                else:
                    await self._take(message)
        finally:
            stop_listening()
            await stop()

    async def _heard(self, message: Msg) -> None:
        try:
            self._inbox.put_nowait(message)
        except asyncio.QueueFull:  # the log still has it
            self._must_look = True

    def look_soon(self) -> None:
        """Somebody has reason to think that the log has more."""
        self._must_look = True
        if self._inbox.empty():
            self._inbox.put_nowait(None)

    async def _take(self, message: Msg) -> None:
        headers = message.headers or {}
        sequence = int(headers["Nats-Sequence"])
        if sequence <= self.position:
            return
        before = sequence - 1 if self._source.is_whole_stream else int(headers["Nats-Last-Sequence"])
        if before > self.position:
            metrics.tail_gaps.inc()
            await self._look()
            return
        self.position = sequence
        await self._deliver(entry_of(message.data, headers))

    async def _look(self) -> None:
        """Deliver whatever the log has beyond the position; keep trying while the engine is away."""
        loop = asyncio.get_running_loop()
        self._must_look = False
        self._looked_at = loop.time()
        while True:
            try:
                end = await self._end()
                page = await stream_reader.read(self._connection, self._source.stream, self._source.subject, self.position + 1)
            except EngineUnavailable:
                await asyncio.sleep(0.1)
                await self._connection.wait_up()
                continue
            for entry in page.entries:
                self.position = entry.sequence
                await self._deliver(entry)
            if page.is_end and self.position >= end:
                self.seen_at = loop.time()
                self.caught_up.set()
                return
            if page.is_end:
                await asyncio.sleep(_LAG_SECONDS)

    async def _end(self) -> int:
        """What must be reached to have seen everything. Who answers a read may be a replica that lags, or one that is cut off
        from the others and will hear of nothing any more: only the leader can say that there is no more."""
        if not self._connection.settings.has_replicas:
            return 0
        newest = await stream_reader.last(self._connection, self._source.stream, self._source.subject)
        return 0 if newest is None else newest.sequence


async def follow(connection: Connection, source: Source, after: int, *, ahead_max: int = 256) -> AsyncIterator[Entry]:
    """The tail as an iterator, for one reader at its own pace.

    At most `ahead_max` entries wait for the reader; beyond that the tail stands still, drops what it hears, and reads the rest
    from the log when the reader has caught up. Memory stays bounded and nothing is skipped.
    """
    ready: asyncio.Queue[Entry] = asyncio.Queue(maxsize=ahead_max)
    running = asyncio.create_task(Tail(connection, source, after, ready.put).run())
    try:
        while True:
            coming = asyncio.ensure_future(ready.get())
            try:
                await asyncio.wait({coming, running}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    running.result()  # it only ends by an error, which is the reader's to see
                    return
                yield coming.result()
            finally:
                coming.cancel()
    finally:
        running.cancel()
