"""The jobs as they follow from `JOBS`, kept up by one process at a time, but for a moment.

If two do, the file's position tells the second one to write, and it opens the file again. Whatever is wrong with a file, a new
one can be made of the stream.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from postroad.jetstream.connection import Connection
from postroad.jobs import metrics
from postroad.jobs.store import ConcurrentWriter, InvalidStoreFile, Store, files_in, fresh_path, make_store, open_store, remove
from postroad.jobs.stream_follower import Follower, StoreThread, StreamNow, stream_now
from postroad.kernel.clock import Clock
from postroad.kernel.errors import EngineUnavailable, PostroadError, PreconditionFailed
from postroad.kernel.task_group import StoppableTaskGroup

_CHUNK_SIZE = 500  # rows of a sweep or a pruning at once: milliseconds, during which readers wait
_PRUNE_EVERY = 600.0
_AGAIN_AFTER = 0.5
_DAY_MS = 86_400_000
_CLOCKS_DIFFER_MS = 600_000  # between what says when a job was created and what says when its first event was stored

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("postroad.jobs")


class StreamRecreated(Exception):
    """The stream is not the one that the file was made of."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the jobs are. While a new file is made, `rebuilt` is how far that one is."""

    position: int
    target: int
    rebuilt: int | None


@dataclass(slots=True)
class _Running:
    """What there is while the projection runs: the file that answers, and the one that is to take its place."""

    crew: StoppableTaskGroup
    current: Follower
    following: "asyncio.Task[None]"
    coming: Follower | None = None
    is_rebuilding: bool = False


class Projection:
    """`run` in one process; the others ask that one."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        folder: Path,
        keep_days: int,
        *,
        look_every: float = 2.0,
        sweep_every: float = 1.0,
    ) -> None:
        self._connection, self._clock, self._folder = connection, clock, folder
        self._keep_ms, self._look_every, self._sweep_every = keep_days * _DAY_MS, look_every, sweep_every
        self._running: _Running | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    # Reading

    @property
    def position(self) -> int:
        return self._running.current.position if self._running else 0

    async def read(self, look: Callable[Concatenate[Store, P], T], *args: P.args, **more: P.kwargs) -> T:
        """What `look` finds in the store. Raises EngineUnavailable while there is none."""
        try:
            return await self._now().current.keeper.call(look, *args, **more)
        except sqlite3.Error as problem:
            raise EngineUnavailable(f"the jobs cannot be read now: {problem}", retry_after=1) from problem

    def _now(self) -> _Running:
        if self._running is None:
            raise EngineUnavailable("the jobs are not loaded yet", retry_after=1)
        return self._running

    async def wait_for(self, sequence: int, seconds: float) -> bool:
        """Whether everything up to that sequence is folded, at the latest when that time is over."""
        if self.position >= sequence:
            return True
        waiter = (sequence, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._running:
            self._running.current.hurry(is_awaited=True)
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
            self._running.current.hurry(is_awaited=any(sequence > position for sequence, _ in self._waiters))

    @property
    def complete_since(self) -> int:
        """Every job that was created since then is known here; of older ones, those that have not ended long ago."""
        gap = self._now().current.keeper.store.complete_since
        return max(gap, self._clock() - self._keep_ms) + _CLOCKS_DIFFER_MS

    async def progress(self) -> Progress:
        state = (await stream_now(self._connection)).state
        running = self._now()
        target = state.last_seq if state.messages else running.current.position
        rebuilt = running.coming.position if running.coming else 0
        return Progress(running.current.position, target, rebuilt if running.is_rebuilding else None)

    # Following

    async def run(self) -> None:
        """Until cancelled. What is wrong with a file or the stream does not end it: it begins again, with a new file if need
        be. The process has other work, too, that must not suffer from this."""
        while True:
            try:
                await self._run_once()
            except (StreamRecreated, ConcurrentWriter) as reason:
                log.warning("jobs_opened_again", reason=type(reason).__name__)
            except (sqlite3.Error, PostroadError, OSError) as problem:
                log.error("jobs_failed", problem=repr(problem))
            metrics.failures.inc()
            await asyncio.sleep(_AGAIN_AFTER)

    async def _run_once(self) -> None:
        stream = await stream_now(self._connection)
        keeper = StoreThread(await asyncio.to_thread(self._open, stream))
        current = Follower(self._connection, self._clock, keeper, self._advanced)
        if not stream.state.messages and stream.state.last_seq > current.position:
            await keeper.call(Store.note_gap, self._clock())
        _say_what_was_missed(current.position, stream)
        crew, is_broken = StoppableTaskGroup(), False
        self._running = running = _Running(crew, current, crew.start(current.run()))
        crew.start(self._watch(running, stream))
        crew.start(self._keep_house(running))
        self._advanced()
        try:
            await crew.run()
        except sqlite3.DatabaseError as problem:
            is_broken = type(problem) is sqlite3.DatabaseError  # the file itself; not a lock, not a full disk
            raise
        finally:
            self._running = None
            metrics.behind_frames.set(0)
            metrics.behind_seconds.set(0)
            running.current.keeper.close(and_remove=is_broken)
            if running.coming is not None:
                running.coming.keeper.close(and_remove=True)

    def _open(self, stream: StreamNow) -> Store:
        """The newest file that can be used; a new one if there is none. The others go."""
        found: Store | None = None
        for path in files_in(self._folder):
            if found is None:
                found = _usable(path, stream)
                if found is not None:
                    continue
            remove(path)
        return found or make_store(fresh_path(self._folder, self._clock()), stream.created)

    async def _watch(self, running: _Running, stream: StreamNow) -> None:
        """Is it still the same stream, and how far are we?"""
        while True:
            await asyncio.sleep(self._look_every)
            try:
                found = await stream_now(self._connection)
            except PostroadError:
                continue
            if found.created != stream.created or found.state.last_seq < running.current.position:
                raise StreamRecreated
            behind = found.state.last_seq - running.current.position if found.state.messages else 0
            age_ms = self._clock() - running.current.last_at_ms
            metrics.behind_frames.set(behind)
            metrics.behind_seconds.set(max(0, age_ms) / 1000 if behind and running.current.last_at_ms else 0)

    async def _keep_house(self, running: _Running) -> None:
        """What time alone brings about: jobs that are due or expired, and those that ended long ago."""
        loop = asyncio.get_running_loop()
        prune_at = loop.time()
        while True:
            await asyncio.sleep(self._sweep_every)
            while await running.current.keeper.call(Store.sweep, self._clock(), _CHUNK_SIZE) == _CHUNK_SIZE:
                pass
            if loop.time() >= prune_at:
                await self._prune(running)
                prune_at = loop.time() + _PRUNE_EVERY

    async def _prune(self, running: _Running) -> None:
        after: int | None = 0
        now, keeper = self._clock(), running.current.keeper
        while after is not None and running.current.keeper is keeper:
            count, after = await keeper.call(Store.prune, now, now - self._keep_ms, after, _CHUNK_SIZE)
            metrics.pruned.inc(count)
            await asyncio.sleep(0.01)

    # Rebuilding

    async def rebuild(self) -> None:
        """Begin to make a new file of the whole stream; the old one answers until it is there.

        Raises NotNow while one is made, EngineUnavailable while there is none.
        """
        stream = await stream_now(self._connection)
        running = self._now()
        if running.is_rebuilding:
            raise PreconditionFailed("the jobs are being rebuilt already")
        running.is_rebuilding = True
        running.crew.start(self._rebuild(running, stream))

    async def _rebuild(self, running: _Running, stream: StreamNow) -> None:
        """If the disk or the file fails, everything begins again with the old one; an engine that is away is waited for."""
        path = fresh_path(self._folder, self._clock())
        keeper = StoreThread(await asyncio.to_thread(make_store, path, stream.created, is_complete=False))
        running.coming = Follower(self._connection, self._clock, keeper, self._advanced)
        following = running.crew.start(running.coming.run())
        log.info("jobs_rebuild_began", target=stream.state.last_seq)
        await self._reach(running, running.coming)
        await keeper.call(Store.complete)
        await self._reach(running, running.coming)
        old, running.current, running.coming = running.current, running.coming, None
        running.following.cancel()
        running.following = following
        running.is_rebuilding = False
        old.keeper.close(and_remove=True)
        self._advanced()
        metrics.rebuilds.inc()
        log.info("jobs_rebuilt", position=self.position)

    async def _reach(self, running: _Running, coming: Follower) -> None:
        """Return once the new file has all that the old one has. Frames that were removed since count as had."""
        while True:
            wanted = running.current.position
            with suppress(EngineUnavailable):
                if coming.position >= wanted or (await coming.has_all() and running.current.position == wanted):
                    return
            await asyncio.sleep(0.02)


def _usable(path: Path, stream: StreamNow) -> Store | None:
    try:
        found = open_store(path, stream.created)
    except InvalidStoreFile as reason:
        log.warning("jobs_file_discarded", file=path.name, reason=str(reason))
        return None
    if found.position > stream.state.last_seq:  # the engine lost its last writes, and will give these sequences out again
        log.warning("jobs_file_discarded", file=path.name, reason="ahead of the stream")
        found.close()
        return None
    return found


def _say_what_was_missed(position: int, stream: StreamNow) -> None:
    count = stream.state.first_seq - 1 - position
    if position and stream.state.messages and count > 0:
        log.warning("jobs_missed_frames", count=count)
        metrics.missed.inc(count)
