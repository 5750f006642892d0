"""Child processes that are kept alive: started again with back-off when they die, stopped politely, gone when we are."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger("postroad.process")

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Linux only: have the kernel send SIGTERM when the parent is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()
    has_our_environment: bool = True  # False for programs of others, whom our secrets do not concern


@dataclass(slots=True)
class SupervisedProcess:
    """A command that `run` keeps running. `pid` is the current process; `starts` counts them."""

    command: Command
    back_off_max: float = 5.0
    stop_seconds: float = 4.0
    pid: int | None = None
    starts: int = 0

    async def run(self) -> None:
        """Until cancelled; then the process is asked to end, and after `stop_seconds` made to."""
        loop = asyncio.get_running_loop()
        back_off = 0.1
        while True:
            started = loop.time()
            process = await self._spawn()
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                await self._stop(process)
                raise
            finally:
                self.pid = None
            if loop.time() - started > 10:
                back_off = 0.1
            log.warning("process_ended", process=self.command.name, exit_code=code, again_in_seconds=back_off)
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, self.back_off_max)

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.command.argv,
            env={**(os.environ if self.command.has_our_environment else {}), **self.command.env},
            pass_fds=tuple(self.command.pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
            start_new_session=True,  # Ctrl-C in a terminal reaches us alone, and we stop our children in order
        )
        self.pid = process.pid
        self.starts += 1
        return process

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # Not asyncio.timeout: we are being cancelled, and in Python 3.11.2 (Debian 12) it then passes that on at its time.
        ending = asyncio.ensure_future(process.wait())
        await asyncio.wait({ending}, timeout=self.stop_seconds)
        if not ending.done():
            log.warning("process_killed", process=self.command.name)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await ending
