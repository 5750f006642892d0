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


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of the workers that serve requests, and of nats-server."""

    gateway: float
    engine: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.gateway - other.gateway, self.engine - other.engine)

    def per(self, count: float) -> "Cost":
        return Cost(self.gateway / count, self.engine / count)


class Meter:
    """Measures the processes of one installation. Those that serve no requests (control, delivery) work at intervals, and for
    all queues: their cost is not one of a request."""

    def __init__(self, server: Server) -> None:
        self._gateway: list[int] = []
        self._engine: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes()
                if str(server.home).encode() not in line + (process / "environ").read_bytes():
                    continue
                if b"nats-server" in line:
                    self._engine.append(int(process.name))
                elif b"gateway" in line.split(b"\0"):
                    self._gateway.append(int(process.name))
        if not self._engine or not self._gateway:
            raise SystemExit("the processes were not found")
        self._idle = Cost(0, 0)

    def read(self) -> Cost:
        return Cost(sum(map(process_seconds, self._gateway)), sum(map(process_seconds, self._engine)))

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
        used = self.read() - before
        return Cost(used.gateway - self._idle.gateway * seconds, used.engine - self._idle.engine * seconds).per(count)
