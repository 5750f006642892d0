"""Group sync, part 2: make what the embedded server has written durable, with one sync for all callers that wait.

The server runs with a long `sync_interval`. A caller that promises durability waits here after the server's answer, and so does a
reader of entries that no sync has covered yet: an entry that a power failure could take back is never shown. Every process that
uses the store syncs what it waits for itself.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from postroad.jetstream import metrics
from postroad.jetstream.kernel_aio import NOT_SUBMITTED, KernelAio, Operation
from postroad.jetstream.stream_files import FilesystemSyncNeeded, StreamFiles, is_disk_error
from postroad.jetstream.sync_rules import SyncGroups
from postroad.kernel.errors import EngineUnavailable

STREAMS_OPEN_MAX = 256  # their files stay open: two descriptors each
_EXPIRE_SECONDS = 1.0
_ACCOUNT = Path("jetstream", "$G", "streams")

log = structlog.get_logger("postroad.jetstream")

Callback = Callable[[EngineUnavailable | None], None]
_Caller = tuple[Callback, float]  # and its deadline


class StoreSyncFailed(Exception):
    """The kernel could not write data to the disk. It has dropped them, so a retry would succeed without effect."""


class NoSync:
    """For a server that has synced a write when it answers: nothing is waited for."""

    def request(self, _stream: str, _sequence: int, callback: Callback) -> None:
        callback(None)

    def request_entry(self, _stream: str, _sequence: int, callback: Callback) -> None:
        callback(None)

    def request_all(self, _written: Mapping[str, int], callback: Callback) -> None:
        callback(None)

    def observe(self, stream: str, sequence: int) -> None:
        pass

    async def wait(self, stream: str, sequence: int = 0) -> None:
        pass

    async def wait_filesystem(self) -> None:
        pass

    async def raise_when_failed(self) -> None:
        pass


class StoreSync:
    """Syncs of one process. `store_dir` is the directory of the embedded server's store. Raises OSError without kernel AIO.

    After a failed sync all callers fail, and `raise_when_failed` ends the process.
    """

    def __init__(self, store_dir: Path, *, deadline_seconds: float = 10.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams_dir = store_dir / _ACCOUNT
        self._store = os.open(store_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._aio = KernelAio(self._loop)
        self._deadline_seconds = deadline_seconds
        self._groups: SyncGroups[_Caller] = SyncGroups()
        self._filesystem_groups: SyncGroups[_Caller] = SyncGroups()
        self._files: OrderedDict[str, StreamFiles] = OrderedDict()
        self._in_sync: dict[str, StreamFiles] = {}
        self._is_start_scheduled = False
        self._has_timer = False
        self._begun_at = 0.0
        self._failure: asyncio.Future[OSError] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    # Callers

    def request(self, stream: str, sequence: int, callback: Callback) -> None:
        """Call `callback` once everything that the engine wrote to the stream before this call is durable, or with an error.

        `sequence`: the highest one that the engine has reported; 0 if there is none, as for an acknowledgement.
        """
        if self._failure.done():
            callback(_unknown())
            return
        if sequence:
            self._files_of(stream).observe(sequence)
        self._groups.add(stream, (callback, self._loop.time() + self._deadline_seconds))
        if not self._is_start_scheduled and self._groups.is_due:
            self._is_start_scheduled = True
            self._loop.call_soon(self._start)
        self._start_timer()

    def request_entry(self, stream: str, sequence: int, callback: Callback) -> None:
        """Like `request`; calls back at once if the entry with this sequence is known to be durable."""
        if self._files_of(stream).is_durable(sequence):
            callback(None)
        else:
            self.request(stream, sequence, callback)

    def request_all(self, written: Mapping[str, int], callback: Callback) -> None:
        """Like `request` for several streams, by name with the highest sequence, which share a sync. Calls `callback` once."""
        left, problem = len(written), None

        def on_synced(error: EngineUnavailable | None) -> None:
            nonlocal left, problem
            left, problem = left - 1, problem or error
            if not left:
                callback(problem)

        for stream, sequence in written.items():
            self.request(stream, sequence, on_synced)

    async def wait(self, stream: str, sequence: int = 0) -> None:
        """Like `request`; returns at once if the entry with this sequence is known to be durable. Raises EngineUnavailable."""
        if sequence and self._files_of(stream).is_durable(sequence):
            return
        future = self._loop.create_future()
        self.request(stream, sequence, partial(_resolve, future))
        await future

    def observe(self, stream: str, sequence: int) -> None:
        """Note an entry that a later `wait` asks for: a sync that begins before that covers it."""
        self._files_of(stream).observe(sequence)

    async def wait_filesystem(self) -> None:
        """Return once everything written to the filesystem of the store is durable: after a change of streams and consumers.

        Raises EngineUnavailable.
        """
        future = self._loop.create_future()
        self._add_filesystem_callers("", [(partial(_resolve, future), self._loop.time() + self._deadline_seconds)])
        self._start_timer()
        await future

    async def raise_when_failed(self) -> None:
        """Raise StoreSyncFailed after a sync has failed."""
        problem = await asyncio.shield(self._failure)
        raise StoreSyncFailed(f"the store could not be synced: {problem}") from problem

    def close(self) -> None:
        self._fail_callers(lambda _caller: True)
        self._failure.cancel()
        self._aio.close()
        for files in (*self._files.values(), *self._in_sync.values()):
            files.close()
        os.close(self._store)

    def _files_of(self, stream: str) -> StreamFiles:
        found = self._files.get(stream)
        if found is None:
            found = self._in_sync.get(stream) or StreamFiles(self._streams_dir / stream)
            self._files[stream] = found
            if len(self._files) > STREAMS_OPEN_MAX:
                oldest, files = self._files.popitem(last=False)
                if oldest not in self._in_sync:
                    files.close()
        else:
            self._files.move_to_end(stream)
        return found

    # Syncs of streams

    def _start(self) -> None:
        self._is_start_scheduled = False
        if not self._groups.is_due or self._failure.done():
            return
        self._begun_at = time.perf_counter()
        operations: list[Operation] = []
        try:
            for stream in self._groups.begin():
                files = self._in_sync[stream] = self._files_of(stream)
                try:
                    operations += files.operations()
                except FilesystemSyncNeeded:
                    self._leave_to_filesystem(stream)
        except OSError as problem:
            self._fail(problem)
            return
        try:
            if operations:
                self._aio.submit(operations, self._on_synced)
                return
        except OSError as problem:
            if is_disk_error(problem):
                self._fail(problem)
                return
            self._leave_all_to_filesystem()
        self._loop.call_soon(self._on_synced, 0)

    def _leave_to_filesystem(self, stream: str) -> None:
        self._release(stream, self._in_sync.pop(stream))
        self._add_filesystem_callers(stream, self._groups.remove(stream))

    def _leave_all_to_filesystem(self) -> None:
        """The files of this sync may have been listed for nothing: the next sync lists them again."""
        for stream, files in list(self._in_sync.items()):
            files.close()
            self._leave_to_filesystem(stream)

    def _release(self, stream: str, files: StreamFiles) -> None:
        files.release()
        if self._files.get(stream) is not files:  # others took its place meanwhile
            files.close()

    def _on_synced(self, error: int) -> None:
        if error == NOT_SUBMITTED:
            self._leave_all_to_filesystem()
        elif error:
            self._fail(OSError(error, os.strerror(error)))
        if self._failure.done():
            return
        for stream, files in self._in_sync.items():
            files.end_sync()
            self._release(stream, files)
        self._in_sync.clear()
        callers = self._groups.end()
        if self._groups.is_due and not self._is_start_scheduled:
            # After the callbacks that are due now: answers that have already arrived then join the group.
            self._is_start_scheduled = True
            self._loop.call_soon(self._start)
        metrics.sync_seconds.observe(time.perf_counter() - self._begun_at)
        metrics.sync_callers.observe(len(callers))
        _call(callers, None)

    # Syncs of the filesystem

    def _add_filesystem_callers(self, stream: str, callers: Sequence[_Caller]) -> None:
        self._filesystem_groups.add(stream, *callers)
        self._start_filesystem()

    def _start_filesystem(self) -> None:
        if self._filesystem_groups.is_due and not self._failure.done():
            self._filesystem_groups.begin()
            task = self._loop.create_task(self._sync_filesystem())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sync_filesystem(self) -> None:
        """In a thread, since kernel AIO has no such call. It is rare, and its duration is that of the disk."""
        begun_at = time.perf_counter()
        try:
            await asyncio.to_thread(_syncfs, self._store)
        except OSError as problem:
            self._fail(problem)
            return
        metrics.filesystem_sync_seconds.observe(time.perf_counter() - begun_at)
        callers = self._filesystem_groups.end()
        self._start_filesystem()
        _call(callers, None)

    # Failures

    def _fail(self, problem: OSError) -> None:
        """Fail all callers. A failed sync is not repeated: the kernel reports an error once, and drops the data."""
        if self._failure.done():
            return
        self._failure.set_result(problem)
        self._fail_callers(lambda _caller: True)
        with contextlib.suppress(OSError):  # the log may be on the same disk
            log.critical("store_sync_failed", error=repr(problem), remedy="check the disk")

    def _fail_callers(self, is_failed: Callable[[_Caller], bool]) -> None:
        for groups in (self._groups, self._filesystem_groups):
            _call(groups.remove_where(is_failed), _unknown())

    def _start_timer(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(_EXPIRE_SECONDS, self._expire)

    def _expire(self) -> None:
        """Fail the callers whose deadline has passed, on a disk that does not answer. One timer serves all of them."""
        self._has_timer = False
        now = self._loop.time()
        self._fail_callers(lambda caller: caller[1] <= now)
        if not (self._groups.is_idle and self._filesystem_groups.is_idle) and not self._failure.done():
            self._start_timer()


def _unknown() -> EngineUnavailable:
    return EngineUnavailable("the store was not synced in time: the change may or may not be durable", retry_after=1)


def _call(callers: Sequence[_Caller], outcome: EngineUnavailable | None) -> None:
    for callback, _ in callers:
        try:
            callback(outcome)
        except Exception:  # a bug, which must not leave the other callers without an answer
            log.exception("sync_callback_failed")


def _resolve(future: "asyncio.Future[None]", problem: EngineUnavailable | None) -> None:
    if future.done():  # cancelled by its caller
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)


def _syncfs(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # releases the interpreter lock during the call
    while libc.syncfs(descriptor) != 0:
        problem = ctypes.get_errno()
        if problem != errno.EINTR:
            raise OSError(problem, os.strerror(problem))
