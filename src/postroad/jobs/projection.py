"""Maintains the job index from `JOBS`, normally in one process at a time.

If two processes write to the same file, the second one finds another position in it and opens it again. A file with any fault is
replaced by a new one, made from the stream.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from postroad.jetstream.connection import Connection
from postroad.jobs import metrics
from postroad.jobs.rules import JobRecord
from postroad.jobs.store import ConcurrentWriter, InvalidStoreFile, Store, files_in, fresh_path, make_store, open_store, remove
from postroad.jobs.stream_follower import JobsStreamInfo, StoreThread, StreamFollower, jobs_stream_info
from postroad.kernel.clock import Clock
from postroad.kernel.errors import EngineUnavailable, PostroadError, PreconditionFailed
from postroad.kernel.task_group import StoppableTaskGroup

_CHUNK_SIZE = 500  # rows per step of a sweep or of pruning: takes milliseconds, while readers wait
_PRUNE_SECONDS = 600.0
_RETRY_SECONDS = 0.5
_BEHIND_SECONDS = 30.0  # a leader without a majority answers with an old state for about ten seconds
_DAY_MS = 86_400_000
_CLOCK_SKEW_MS = 600_000  # between the time of creation of a job and the time when its first event was stored

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("postroad.jobs")


class StreamRecreated(Exception):
    """The file belongs to a stream that was deleted and created again."""


class StreamBehind(Exception):
    """The stream's state is older than the file. On a cluster, the answer may be that of a leader that has been replaced."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Position of the index and end of the stream. `rebuilt` is the position of the new file during a rebuild."""

    position: int
    target: int
    rebuilt: int | None


@dataclass(slots=True)
class _Running:
    """State while the projection runs: the current file, and the one that will replace it."""

    tasks: StoppableTaskGroup
    current: StreamFollower
    following: "asyncio.Task[None]"
    next: StreamFollower | None = None
    is_rebuilding: bool = False


class Projection:
    """Call `run` in one process; the others send it requests."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        folder: Path,
        keep_days: int,
        *,
        poll_seconds: float = 2.0,
        sweep_seconds: float = 1.0,
    ) -> None:
        self._connection, self._clock, self._folder = connection, clock, folder
        self._keep_ms, self._poll_seconds, self._sweep_seconds = keep_days * _DAY_MS, poll_seconds, sweep_seconds
        self.on_expired: Callable[[Sequence[JobRecord]], Awaitable[None]] | None = None
        self._running: _Running | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._behind_since: float | None = None

    # Reading

    @property
    def is_loaded(self) -> bool:
        return self._running is not None

    @property
    def position(self) -> int:
        return self._running.current.position if self._running else 0

    async def read(self, query: Callable[Concatenate[Store, P], T], *args: P.args, **more: P.kwargs) -> T:
        """Call `query` with the store. Raises EngineUnavailable while there is none."""
        try:
            return await self._current().current.thread.call(query, *args, **more)
        except sqlite3.Error as problem:
            raise EngineUnavailable(f"the job index cannot be read now: {problem}", retry_after=1) from problem

    def _current(self) -> _Running:
        if self._running is None:
            raise EngineUnavailable("the job index is not loaded yet", retry_after=1)
        return self._running

    async def wait_for(self, sequence: int, seconds: float) -> bool:
        """Wait until the index has all frames up to that sequence. Returns False when the time is over."""
        if self.position >= sequence:
            return True
        waiter = (sequence, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._running:
            self._running.current.set_awaited(is_awaited=True)
        try:
            async with asyncio.timeout(seconds):
                await waiter[1]
            return True
        except TimeoutError:
            return False
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _advanced(self) -> None:
        position = self.position
        for sequence, future in self._waiters:
            if sequence <= position and not future.done():
                future.set_result(None)
        if self._running:
            self._running.current.set_awaited(is_awaited=any(sequence > position for sequence, _ in self._waiters))

    @property
    def complete_since(self) -> int:
        """The index has every job created since this time, and older ones unless they ended before the retention period."""
        gap = self._current().current.thread.store.complete_since
        return max(gap, self._clock() - self._keep_ms) + _CLOCK_SKEW_MS

    async def progress(self) -> Progress:
        state = (await jobs_stream_info(self._connection)).state
        running = self._current()
        target = state.last_seq if state.messages else running.current.position
        rebuilt = running.next.position if running.next else 0
        return Progress(running.current.position, target, rebuilt if running.is_rebuilding else None)

    # Following

    async def run(self) -> None:
        """Run until cancelled. Faults of the file or the stream do not end it: it starts again, with a new file if needed,
        because the process has other work."""
        while True:
            try:
                await self._run_once()
            except (StreamRecreated, StreamBehind, ConcurrentWriter) as reason:
                log.warning("jobs_opened_again", reason=type(reason).__name__)
            except (sqlite3.Error, PostroadError, OSError) as problem:
                log.error("jobs_failed", problem=repr(problem))
            metrics.failures.inc()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _run_once(self) -> None:
        stream = await jobs_stream_info(self._connection)
        thread = StoreThread(await asyncio.to_thread(self._open, stream))
        current = StreamFollower(self._connection, self._clock, thread, self._advanced)
        if not stream.state.messages and stream.state.last_seq > current.position:
            await thread.call(Store.note_gap, self._clock())
        _report_missed_frames(current.position, stream)
        tasks, is_broken = StoppableTaskGroup(), False
        self._running = running = _Running(tasks, current, tasks.start(current.run()))
        tasks.start(self._watch(running, stream))
        tasks.start(self._maintain(running))
        self._advanced()
        try:
            await tasks.run()
        except sqlite3.DatabaseError as problem:
            is_broken = type(problem) is sqlite3.DatabaseError  # the file itself is corrupt; not a lock or a full disk
            raise
        finally:
            self._running = None
            metrics.behind_frames.set(0)
            metrics.behind_seconds.set(0)
            running.current.thread.close(and_remove=is_broken)
            if running.next is not None:
                running.next.thread.close(and_remove=True)

    def _open(self, stream: JobsStreamInfo) -> Store:
        """Open the newest valid file, or create one. Other files are removed. Raises StreamBehind."""
        found: Store | None = None
        for path in files_in(self._folder):
            if found is None:
                found = self._usable(path, stream)
                if found is not None:
                    continue
            remove(path)
        return found or make_store(fresh_path(self._folder, self._clock()), stream.created)

    def _usable(self, path: Path, stream: JobsStreamInfo) -> Store | None:
        """Raises StreamBehind."""
        try:
            found = open_store(path, stream.created)
        except InvalidStoreFile as reason:
            log.warning("jobs_file_discarded", file=path.name, reason=str(reason))
            return None
        if self._has_lost_frames(found.position, stream):  # the engine will assign their sequences again
            log.warning("jobs_file_discarded", file=path.name, reason="ahead of the stream")
            found.close()
            return None
        if found.position > stream.state.last_seq:
            found.close()
            raise StreamBehind
        return found

    def _has_lost_frames(self, position: int, stream: JobsStreamInfo) -> bool:
        """True if the stream does not have all frames up to the position. On a cluster, only if that lasts: a rebuild for an old
        answer would forget the jobs whose frames the pipeline has removed."""
        if stream.state.last_seq >= position:
            self._behind_since = None
            return False
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        return not self._connection.settings.has_replicas or now - self._behind_since >= _BEHIND_SECONDS

    async def _watch(self, running: _Running, stream: JobsStreamInfo) -> None:
        """Check that the stream is still the same, and measure the lag."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                found = await jobs_stream_info(self._connection)
            except PostroadError:
                continue
            if found.created != stream.created or self._has_lost_frames(running.current.position, found):
                raise StreamRecreated
            behind = max(0, found.state.last_seq - running.current.position) if found.state.messages else 0
            age_ms = self._clock() - running.current.last_at_ms
            metrics.behind_frames.set(behind)
            metrics.behind_seconds.set(max(0, age_ms) / 1000 if behind and running.current.last_at_ms else 0)

    async def _maintain(self, running: _Running) -> None:
        """Update jobs whose status changes by time, and delete those past the retention period."""
        loop = asyncio.get_running_loop()
        prune_at = loop.time()
        while True:
            await asyncio.sleep(self._sweep_seconds)
            while await self._sweep(running, self._clock()) == _CHUNK_SIZE:
                pass
            if loop.time() >= prune_at:
                await self._prune(running)
                prune_at = loop.time() + _PRUNE_SECONDS

    async def _sweep(self, running: _Running, now: int) -> int:
        """The event of an expiry is stored before the row: after a crash in between it is stored again, with the same id."""
        expired = await running.current.thread.call(Store.expiring, now, _CHUNK_SIZE)
        if expired and self.on_expired is not None:
            try:
                await self.on_expired(expired)
            except EngineUnavailable:
                return 0
        return await running.current.thread.call(Store.sweep, now, _CHUNK_SIZE)

    async def _prune(self, running: _Running) -> None:
        after: int | None = 0
        now, thread = self._clock(), running.current.thread
        while after is not None and running.current.thread is thread:
            count, after = await thread.call(Store.prune, now, now - self._keep_ms, after, _CHUNK_SIZE)
            metrics.pruned.inc(count)
            await asyncio.sleep(0.01)

    # Rebuilding

    async def rebuild(self) -> None:
        """Start to make a new file from the whole stream; the old one serves queries until it is complete.

        Raises PreconditionFailed during a rebuild, EngineUnavailable while there is no file.
        """
        stream = await jobs_stream_info(self._connection)
        running = self._current()
        if running.is_rebuilding:
            raise PreconditionFailed("a rebuild is already running")
        running.is_rebuilding = True
        running.tasks.start(self._rebuild(running, stream))

    async def _rebuild(self, running: _Running, stream: JobsStreamInfo) -> None:
        """If the disk or the file fails, the projection starts again with the old file. An unavailable engine is waited for."""
        path = fresh_path(self._folder, self._clock())
        thread = StoreThread(await asyncio.to_thread(make_store, path, stream.created, is_complete=False))
        running.next = StreamFollower(self._connection, self._clock, thread, self._advanced)
        following = running.tasks.start(running.next.run())
        log.info("jobs_rebuild_began", target=stream.state.last_seq)
        await self._reach(running, running.next)
        await thread.call(Store.complete)
        await self._reach(running, running.next)
        old, running.current, running.next = running.current, running.next, None
        running.following.cancel()
        running.following = following
        running.is_rebuilding = False
        old.thread.close(and_remove=True)
        self._advanced()
        metrics.rebuilds.inc()
        log.info("jobs_rebuilt", position=self.position)

    async def _reach(self, running: _Running, new: StreamFollower) -> None:
        """Return once the new file has every frame of the old one, apart from frames removed from the stream since."""
        while True:
            wanted = running.current.position
            with suppress(EngineUnavailable):
                if new.position >= wanted or (await new.has_all() and running.current.position == wanted):
                    return
            await asyncio.sleep(0.02)


def _report_missed_frames(position: int, stream: JobsStreamInfo) -> None:
    count = stream.state.first_seq - 1 - position
    if position and stream.state.messages and count > 0:
        log.warning("jobs_missed_frames", count=count)
        metrics.missed.inc(count)
