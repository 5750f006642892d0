"""Live tails: a stream's `republish` delivers each stored message at once; missed messages are read from the stream.

A republished message names the sequence before it, so a gap shows with the next message. Gaps that no message shows (the last
one was lost, the connection broke) are found by polling the stream after every reconnect and every few seconds. A successful
poll also proves that the tail was current when it asked: `synced_at` is that time.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import structlog

from postroad.jetstream import metrics, stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.stream_reader import Entry, entry_of
from postroad.kernel.errors import EngineUnavailable

_LAG_SECONDS = 0.02  # before a lagging replica is read again
_PAGE_ENTRIES = 1000
LIVE = "live."  # prefix of republished subjects

log = structlog.get_logger("postroad.jetstream")


def republish(subject: str) -> dict[str, str]:
    """The stream option that makes tails of `subject` work."""
    return {"src": subject, "dest": LIVE + subject}


@dataclass(frozen=True, slots=True)
class Source:
    """A whole stream (`subject` is its only wildcard), or one subject of it.

    `is_only_subject`: the stream has no other subject, so the server need not compare them, which it does message by message.
    """

    stream: str
    subject: str
    is_only_subject: bool = False

    @property
    def read_subject(self) -> str:
        return ">" if self.is_only_subject else self.subject

    @property
    def is_whole_stream(self) -> bool:
        return self.subject.endswith(">")


class Tail:
    """Calls `deliver` with each entry after the sequence `after`, in order and without gaps, until cancelled.

    `deliver` must be quick; a slow one should queue entries, with its own bound. Entries are durable, unless `waits_durable` is
    false: then `deliver` must wait for that itself, for many at once.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        after: int,
        deliver: Callable[[Entry], Awaitable[None]],
        *,
        poll_seconds: float = 5.0,
        waits_durable: bool = True,
    ) -> None:
        self._waits_durable = waits_durable
        self.position = after
        self.synced_at: float | None = None
        self.caught_up = asyncio.Event()  # set once the stream has been read to its end
        self._connection, self._source, self._deliver, self._poll_seconds = connection, source, deliver, poll_seconds
        self._inbox: asyncio.Queue[IncomingMessage | None] = asyncio.Queue(maxsize=4096)
        self._must_poll = False
        self._polled_at = 0.0

    async def run(self) -> None:
        unsubscribe = self._connection.subscribe(LIVE + self._source.subject, self._on_message)
        remove_callback = self._connection.on_reconnect(self.poll_soon)
        try:
            await self._catch_up()
            while True:
                # By the clock, not after a silence: a stream that is always busy must be polled, too.
                try:
                    async with asyncio.timeout_at(self._polled_at + self._poll_seconds):
                        message = await self._inbox.get()
                except TimeoutError:
                    message = None
                if message is None or self._must_poll:
                    await self._catch_up()
                else:
                    await self._handle(message)
        finally:
            remove_callback()
            await unsubscribe()

    def _on_message(self, message: IncomingMessage) -> None:
        self._connection.store_sync.observe(self._source.stream, int(message.headers.get("Nats-Sequence", 0)))
        try:
            self._inbox.put_nowait(message)
        except asyncio.QueueFull:  # it is read from the stream later
            self._must_poll = True

    def poll_soon(self) -> None:
        """Poll the stream now: it is likely to have more entries."""
        self._must_poll = True
        if self._inbox.empty():
            self._inbox.put_nowait(None)

    async def _handle(self, message: IncomingMessage) -> None:
        headers = message.headers
        sequence = int(headers["Nats-Sequence"])
        if sequence <= self.position:
            return
        before = sequence - 1 if self._source.is_whole_stream else int(headers["Nats-Last-Sequence"])
        if before > self.position:
            metrics.tail_gaps.inc()
            await self._catch_up()
            return
        if self._waits_durable:
            try:
                await self._connection.store_sync.wait(self._source.stream, sequence)
            except EngineUnavailable:  # the disk does not answer
                await self._catch_up()
                return
        self.position = sequence
        await self._deliver(entry_of(message.data, headers))

    async def _catch_up(self) -> None:
        """Deliver the stored entries after the position. Retries while the engine is unavailable."""
        loop = asyncio.get_running_loop()
        self._must_poll = False
        self._polled_at = loop.time()
        while True:
            asked_at = loop.time()
            try:
                end = await self._last_sequence()
                page = await stream_reader.read(
                    self._connection, self._source.stream, self._source.read_subject, self.position + 1, _PAGE_ENTRIES
                )
            except EngineUnavailable as error:
                self._connection.report_unanswered(self._source.stream)
                log.debug("tail_poll_failed", stream=self._source.stream, problem=error.detail)
                await asyncio.sleep(0.1)
                await self._connection.wait_up()
                continue
            for entry in page.entries:
                self.position = entry.sequence
                await self._deliver(entry)
            if page.is_end and self.position >= end:
                self.synced_at = asked_at  # the answer may have been on its way for seconds
                self.caught_up.set()
                return
            if page.is_end:
                await asyncio.sleep(_LAG_SECONDS)

    async def _last_sequence(self) -> int:
        """The sequence to reach, from the leader: a replica that answers a read may lag, or be cut off from the others."""
        if not self._connection.settings.has_replicas:
            return 0
        newest = await stream_reader.last(self._connection, self._source.stream, self._source.subject)
        return 0 if newest is None else newest.sequence


async def follow(connection: Connection, source: Source, after: int, *, ahead_max: int = 256) -> AsyncGenerator[Entry, None]:
    """A tail as an iterator, for one reader at its own pace.

    At most `ahead_max` entries wait for the reader. Beyond that the tail stops, drops republished messages, and reads them from
    the stream when the reader has caught up. Memory stays bounded and no entry is skipped.
    """
    ready: asyncio.Queue[Entry] = asyncio.Queue(maxsize=ahead_max)
    running = asyncio.create_task(Tail(connection, source, after, ready.put).run())
    try:
        while True:
            coming = asyncio.ensure_future(ready.get())
            try:
                await asyncio.wait({coming, running}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    running.result()  # it ends only by an exception, which is passed on
                    return
                yield coming.result()
            finally:
                coming.cancel()
    finally:
        running.cancel()


async def follow_batches(
    connection: Connection, source: Source, after: int, *, entries_max: int, bytes_max: int
) -> AsyncGenerator[list[Entry], None]:
    """Like `follow`, in batches of the entries that wait: up to `entries_max`, and up to `bytes_max` or one larger.

    An empty batch comes once, when the stream has been read to its end. Raises EngineUnavailable.
    """
    waiting: list[Entry] = []
    changed, has_space = asyncio.Event(), asyncio.Event()

    async def deliver(entry: Entry) -> None:
        waiting.append(entry)
        changed.set()
        while len(waiting) >= 2 * entries_max:
            has_space.clear()
            await has_space.wait()

    tail = Tail(connection, source, after, deliver, waits_durable=False)
    tasks = [asyncio.create_task(tail.run()), asyncio.create_task(tail.caught_up.wait())]
    for task in tasks:
        task.add_done_callback(lambda _: changed.set())
    has_reported_end = False
    try:
        while True:
            if waiting:
                count = _batch_length(waiting, entries_max, bytes_max)
                batch = waiting[:count]
                del waiting[:count]
                has_space.set()
                await connection.store_sync.wait(source.stream, batch[-1].sequence)
                yield batch
            elif tasks[0].done():
                tasks[0].result()  # it ends only by an exception, which is passed on
                return
            elif tail.caught_up.is_set() and not has_reported_end:
                has_reported_end = True
                yield []
            else:
                changed.clear()
                await changed.wait()
    finally:
        for task in tasks:
            task.cancel()


def _batch_length(entries: list[Entry], entries_max: int, bytes_max: int) -> int:
    size = 0
    for count, entry in enumerate(entries[:entries_max]):
        size += len(entry.payload)
        if count and size > bytes_max:
            return count
    return min(len(entries), entries_max)
