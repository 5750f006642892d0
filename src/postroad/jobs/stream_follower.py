"""Applies new frames of `JOBS` to a store: frames are read in the event loop, and applied in batches in the store's thread."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail
from postroad.jobs import metrics
from postroad.jobs.event_decoder import read_frames
from postroad.jobs.store import Store, remove
from postroad.kernel.clock import Clock
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.task_group import run_all

STREAM = "JOBS"
SUBJECT = "job.>"
_BATCH_BYTES = 2 * 1024 * 1024  # about 5,000 events; a batch is smaller unless that much is waiting
_FRAMES_AHEAD = 1024
_BYTES_AHEAD = 64 * 1024 * 1024
# Between two batches while no query waits: a batch has a fixed cost, and the events of a job in one batch cost half as much.
_PAUSE_SECONDS = 1.0
_FRAMES_BEHIND = 512  # so many waiting frames, or `_BATCH_BYTES`, end the pause
_LOGGED_MAX = 10
_RETRY_SECONDS = 0.5

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("postroad.jobs")


class JobsStreamInfo(msgspec.Struct, frozen=True):
    """`created` distinguishes the stream from another one of the same name."""

    created: str
    state: StreamState


_decode_stream = msgspec.json.Decoder(JobsStreamInfo).decode


async def jobs_stream_info(connection: Connection) -> JobsStreamInfo:
    """Raises EngineUnavailable, or EngineRefused if the stream does not exist."""
    return _decode_stream(await connection.call(f"STREAM.INFO.{STREAM}"))


class StoreThread:
    """A store and the only thread that uses it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="postroad-jobs")

    async def call(self, work: Callable[Concatenate[Store, P], T], *args: P.args, **more: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self.store, *args, **more))

    def close(self, *, and_remove: bool = False) -> None:
        """Close after the pending calls, without waiting for them."""
        self._thread.submit(self.store.close)
        if and_remove:
            self._thread.submit(remove, self.store.path)
        self._thread.shutdown(wait=False)


class StreamFollower:
    """Applies the frames of the stream to one store, and calls `on_applied` after each batch."""

    def __init__(self, connection: Connection, clock: Clock, thread: StoreThread, on_applied: Callable[[], None]) -> None:
        self.thread = thread
        self.position = thread.store.position
        self.last_at_ms = 0
        self._connection, self._clock, self._on_applied = connection, clock, on_applied
        self._ready: asyncio.Queue[Entry] = asyncio.Queue(maxsize=_FRAMES_AHEAD)
        self._ready_bytes = 0
        self._has_capacity = asyncio.Event()
        self._is_awaited = False
        self._due = asyncio.Event()  # a query waits, or a full batch

    async def run(self) -> None:
        source = Source(STREAM, SUBJECT, is_only_subject=True)
        tail = Tail(self._connection, source, self.position, self._add, poll_seconds=2.0, waits_durable=False)
        await run_all(tail.run(), self._apply())

    def set_awaited(self, *, is_awaited: bool) -> None:
        """Set whether a query waits for the next batch."""
        self._is_awaited = is_awaited
        self._update_due()

    def _update_due(self) -> None:
        is_full = self._ready.qsize() >= _FRAMES_BEHIND or self._ready_bytes >= _BATCH_BYTES
        (self._due.set if self._is_awaited or is_full else self._due.clear)()

    async def _add(self, entry: Entry) -> None:
        while self._ready_bytes > _BYTES_AHEAD:
            self._has_capacity.clear()
            await self._has_capacity.wait()
        await self._ready.put(entry)
        self._ready_bytes += len(entry.payload)
        self._update_due()

    async def _next_batch(self) -> list[Entry]:
        """The frames that wait, up to `_BATCH_BYTES`."""
        entries = [await self._ready.get()]
        size = len(entries[0].payload)
        while size < _BATCH_BYTES and not self._ready.empty():
            entries.append(self._ready.get_nowait())
            size += len(entries[-1].payload)
        self._ready_bytes -= size
        self._has_capacity.set()
        self._update_due()
        return entries

    async def _pause(self, until: float) -> None:
        if until > asyncio.get_running_loop().time():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._due.wait()

    async def _apply(self) -> None:
        pause_until = 0.0
        while True:
            await self._pause(pause_until)
            entries = await self._next_batch()
            await self._wait_durable(entries[-1].sequence)
            with metrics.batch_seconds.time():
                await self.thread.call(apply_frames, entries, self._clock())
            self.position, self.last_at_ms = entries[-1].sequence, entries[-1].at_ms
            self._on_applied()
            pause_until = asyncio.get_running_loop().time() + _PAUSE_SECONDS

    async def _wait_durable(self, sequence: int) -> None:
        """The store must not be ahead of the stream after a power failure: it would skip the events that reuse the sequences."""
        while True:
            try:
                await self._connection.store_sync.wait(STREAM, sequence)
                return
            except EngineUnavailable as error:  # the disk does not answer
                log.warning("events_not_durable", stream=STREAM, detail=error.detail)
                await asyncio.sleep(_RETRY_SECONDS)

    async def has_all(self) -> bool:
        """True if the stream has no frame beyond the position. Frames may have been removed."""
        page = await stream_reader.read(self._connection, STREAM, SUBJECT, self.position + 1, limit=1)
        return not page.entries


def apply_frames(store: Store, entries: list[Entry], now: int) -> None:
    if entries[0].sequence > store.position + 1:
        store.note_gap(entries[0].at_ms)
    batch = read_frames(entries)
    for sequence, problem in batch.unreadable[:_LOGGED_MAX]:
        log.error("event_unreadable", stream=STREAM, sequence=sequence, problem=problem)
    store.apply(batch, now)
    metrics.unreadable.inc(len(batch.unreadable))
    metrics.events.inc(batch.events)
