"""Processor time of an installation's processes, which is steadier than rates on a machine with other load."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Server

_TICKS = os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def tree_seconds(root: int) -> float:
    """Of a server: a process and all below it, those that have ended included. Without this process, if that is the root."""
    below: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            below.setdefault(int(fields[1]), []).append(int(process.name))
            seconds[int(process.name)] = sum(map(int, fields[11:15])) / _TICKS
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return sum(seconds.get(pid, 0.0) for pid in found if pid != os.getpid())


def processor_us(root: int, before: float, count: float) -> float | None:
    """Microseconds of the server below `root` for each of `count` operations, since `tree_seconds` was `before`."""
    return (tree_seconds(root) - before) / count * 1e6 if count > 0 else None


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of the workers that serve requests, of nats-server, and of the control and delivery workers."""

    gateway: float
    engine: float
    background: float = 0.0

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.gateway - other.gateway, self.engine - other.engine, self.background - other.background)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.gateway + other.gateway, self.engine + other.engine, self.background + other.background)

    def per(self, count: float) -> "Cost":
        return Cost(self.gateway / count, self.engine / count, self.background / count)

    @property
    def sum(self) -> float:
        return self.gateway + self.engine + self.background


class Meter:
    """Measures the processes of one installation."""

    def __init__(self, server: Server) -> None:
        self._gateway: list[int] = []
        self._engine: list[int] = []
        self._background: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes()
                if str(server.home).encode() not in line + (process / "environ").read_bytes():
                    continue
                if b"nats-server" in line:
                    self._engine.append(int(process.name))
                elif b"gateway" in line.split(b"\0"):
                    self._gateway.append(int(process.name))
                elif b"postroad.runtime.worker" in line:
                    self._background.append(int(process.name))
        if not (self._engine and self._gateway and self._background):
            raise SystemExit("the processes were not found")
        self._idle = Cost(0, 0)

    def read(self) -> Cost:
        return Cost(*(sum(map(process_seconds, pids)) for pids in (self._gateway, self._engine, self._background)))

    async def measure_idle(self, seconds: float) -> Cost:
        """Cost per second without requests; it is subtracted from later measurements."""
        before = self.read()
        await asyncio.sleep(seconds)
        self._idle = (self.read() - before).per(seconds)
        return self._idle

    async def measure(self, count: int, work: Callable[[], Awaitable[None]]) -> Cost:
        """Cost of one of the `count` operations of `work`, including what follows from them within half a second."""
        before, started = self.read(), time.monotonic()
        await work()
        await asyncio.sleep(0.5)
        seconds = time.monotonic() - started
        return (self.read() - before - self._idle.per(1 / seconds)).per(count)
