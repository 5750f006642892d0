"""Child processes: restarted when they end or hang, stopped with SIGTERM before SIGKILL, and never outliving the parent."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import structlog

from postroad.kernel.backoff import Backoff
from postroad.runtime.watchdog import Watchdog

log = structlog.get_logger("postroad.process")

_PR_SET_PDEATHSIG = 1
_RESTART_SECONDS = 0.1
_STABLE_SECONDS = 10  # a process that ran for longer is restarted without a longer delay


def _die_with_parent() -> None:
    """Linux only: let the kernel send SIGTERM when the parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()
    inherits_environment: bool = True  # False for third-party programs, which must not see our secrets


@dataclass(slots=True)
class SupervisedProcess:
    """A command that `run` restarts whenever it ends or its watchdog expires. `pid` is the current process; `starts` counts them.

    `before_start` is called in a thread before each start, `on_end` with the pid of each process that has ended, and whether the
    watchdog ended it, and `on_exit_code` with its exit code.
    """

    command: Command
    backoff_max_seconds: float = 5.0
    stop_seconds: float = 4.0
    watchdog: Watchdog | None = None
    before_start: Callable[[], None] | None = None
    on_end: Callable[[int, bool], None] | None = None
    on_exit_code: Callable[[int], None] | None = None
    pid: int | None = None
    starts: int = 0

    async def run(self) -> None:
        """Run until cancelled; then terminate the process, and kill it after `stop_seconds`."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_RESTART_SECONDS, self.backoff_max_seconds)
        delays = backoff.delays()
        while True:
            if self.before_start is not None:
                await asyncio.to_thread(self.before_start)
            started = loop.time()
            process = await self._spawn()
            try:
                code, is_hung = await self._wait_ended(process)
            except asyncio.CancelledError:
                await self._stop(process)
                raise
            finally:
                self.pid = None
            if self.on_end is not None:
                self.on_end(process.pid, is_hung)
            if self.on_exit_code is not None:
                self.on_exit_code(code)
            if loop.time() - started > _STABLE_SECONDS:
                delays = backoff.delays()
            delay = next(delays)
            log.warning("process_ended", process=self.command.name, exit_code=code, restart_in_seconds=delay)
            await asyncio.sleep(delay)

    async def _wait_ended(self, process: asyncio.subprocess.Process) -> tuple[int, bool]:
        """The exit code, and whether the watchdog expired and the process was killed."""
        if self.watchdog is None:
            return await process.wait(), False
        ending, hanging = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self.watchdog.wait_hung())
        try:
            await asyncio.wait({ending, hanging}, return_when=asyncio.FIRST_COMPLETED)
            is_hung = not ending.done()
            if is_hung:
                silent_seconds = round(hanging.result(), 1)
                log.error("process_hung", process=self.command.name, pid=process.pid, silent_seconds=silent_seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with its children; `_spawn` starts it in a session of its own
            return await ending, is_hung
        finally:
            ending.cancel()
            hanging.cancel()

    def restart(self) -> None:
        """Terminate the current process, which `run` then starts again."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.command.argv,
            env={**(os.environ if self.command.inherits_environment else {}), **self.command.env},
            pass_fds=tuple(self.command.pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
            start_new_session=True,  # Ctrl-C in a terminal then signals the supervisor only, which stops its children in order
        )
        self.pid = process.pid
        self.starts += 1
        return process

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # Not asyncio.timeout: during a cancellation that of Python 3.11.2 (Debian 12) raises CancelledError when it expires.
        ending = asyncio.ensure_future(process.wait())
        await asyncio.wait({ending}, timeout=self.stop_seconds)
        if not ending.done():
            log.warning("process_killed", process=self.command.name)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await ending


def supervised(process: SupervisedProcess) -> AbstractAsyncContextManager[None]:
    """Run the process during the block, and wait for its end afterwards."""
    return running(process.run())


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run a coroutine during the block; cancel it and wait for its end afterwards."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
