"""What is hurt: an installation of its own engine and two workers, or two gateways on a cluster of three servers.

A plan of hurts comes from a seed alone, so the same seed does the same things in the same order. What they meet does not.
"""

import asyncio
import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tests.chaos.campaign import SETTINGS
from tests.cluster import Cluster, Node
from tests.installation import Installation, is_running
from tests.waiting import eventually

What = Literal["kill", "pause", "restart", "isolate", "minority", "one-way", "side"]
KILLS: tuple[What, ...] = ("kill", "kill", "pause", "restart")  # a kill is what most promises are about
CUTS: tuple[What, ...] = ("isolate", "minority", "one-way", "side")  # of the network, see `partitions.py`
_READY_SECONDS = 300.0  # of processor time it takes some seconds, but a busy machine has little of it


@dataclass(frozen=True, slots=True)
class Fault:
    """After `pause` seconds of peace, `what` to `victims`; they are down, or still, for `lasting` seconds."""

    pause: float
    what: What
    victims: tuple[str, ...]
    lasting: float

    def __str__(self) -> str:
        has_time = self.what == "pause" or self.what in CUTS
        return f"{self.what} {' and '.join(self.victims)}" + (f" for {self.lasting:.1f} s" if has_time else "")


def plan(seed: int, victims: Sequence[str], whats: Sequence[What] = KILLS) -> Iterator[Fault]:
    """One hurt after the other, without end; now and then two victims at once. A cut concerns one server."""
    chance = random.Random(seed)
    while True:
        what = chance.choice(whats)
        if what in CUTS:
            servers = [victim for victim in victims if victim.startswith("n")]
            yield Fault(round(chance.uniform(0.5, 4.0), 1), what, (chance.choice(servers),), round(chance.uniform(1.0, 20.0), 1))
            continue
        chosen = tuple(chance.sample(list(victims), 2 if chance.random() < 0.2 else 1))
        lasting = 0.0 if what == "restart" else round(chance.uniform(0.2, 6.0), 1)
        yield Fault(round(chance.uniform(0.5, 4.0), 1), what, chosen, lasting)


class Deployment(ABC):
    """Processes that can be hurt one by one, and made whole again."""

    victims: tuple[str, ...]
    whats: tuple[What, ...] = KILLS
    is_partitioned = False  # or was until a moment ago: a server that is cut off shows readers the past

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def urls(self) -> tuple[str, ...]: ...

    @abstractmethod
    def headers(self) -> dict[str, str]: ...

    @abstractmethod
    async def inject(self, fault: Fault) -> None:
        """Return when the victims are back, or are being brought back by whoever looks after them."""

    @abstractmethod
    async def heal(self) -> None:
        """Return when everything runs and answers."""

    def violations(self) -> list[str]:
        """Faults that the processes report themselves."""
        return []

    def summary(self) -> str:
        """What was measured, if anything."""
        return ""

    @abstractmethod
    def end(self) -> None: ...


class Single(Deployment):
    """`postroad up`: its supervisor brings back whatever dies."""

    victims = ("engine", "worker-0", "worker-1", "control", "delivery", "installation")

    def __init__(self, home: Path, **environment: str) -> None:
        self.running = Installation(home, POSTROAD_WORKERS="2", POSTROAD_INTEGRITY_SECONDS="0.5", **SETTINGS, **environment)

    async def start(self) -> None:
        await self.running.start().ready(_READY_SECONDS)

    def urls(self) -> tuple[str, ...]:
        return (self.running.url,)

    def headers(self) -> dict[str, str]:
        return self.running.headers

    async def inject(self, fault: Fault) -> None:
        if "installation" in fault.victims:
            await _fail_installation(self.running, fault.what, fault.lasting)
            return
        pids = [pid for victim in fault.victims for pid in self._pids(victim)]
        await _fail_children(pids, fault.what, fault.lasting)

    def _pids(self, victim: str) -> list[int]:
        """None while it is being brought back."""
        if victim.startswith("worker-"):
            at = int(victim.removeprefix("worker-"))
            return self.running.worker_pids[at : at + 1]
        return self.running.children("nats-server" if victim == "engine" else f"postroad.runtime.worker {victim}")

    async def heal(self) -> None:
        await self.running.ready(_READY_SECONDS)

    def violations(self) -> list[str]:
        """The files were not touched: a report of damage is a false alarm, or a loss."""
        return [line for line in self.running.log().splitlines() if "store_damaged" in line]

    def end(self) -> None:
        self.running.end()


class Clustered(Deployment):
    """Two gateways with all roles on three servers. Nobody looks after the servers, so what is killed is started again here."""

    victims = ("n1", "n2", "n3", "gateway-1", "gateway-2", "gateway-1 worker", "gateway-2 worker")

    def __init__(self, home: Path, **environment: str) -> None:
        self.cluster = Cluster(home)
        self.gateways = [self.cluster.gateway("up", **SETTINGS, **environment) for _ in range(2)]

    async def start(self) -> None:
        await self.cluster.start()
        for gateway in self.gateways:  # the first one makes the keys
            await gateway.start().ready(_READY_SECONDS)

    def urls(self) -> tuple[str, ...]:
        return tuple(gateway.url for gateway in self.gateways)

    def headers(self) -> dict[str, str]:
        return self.gateways[0].headers

    async def inject(self, fault: Fault) -> None:
        async with asyncio.TaskGroup() as run_together:
            for victim in fault.victims:
                run_together.create_task(self._fail_one(victim, fault.what, fault.lasting))

    async def _fail_one(self, victim: str, what: What, lasting: float) -> None:
        name, _, part = victim.partition(" ")
        if name.startswith("n"):
            await fail_node(self.cluster.node(name), what, lasting)
            return
        gateway = self.gateways[int(name.removeprefix("gateway-")) - 1]
        if part and gateway.is_running:
            await _fail_children(gateway.worker_pids, what, lasting)
        elif not part:
            await _fail_installation(gateway, what, lasting)

    async def heal(self) -> None:
        for node in self.cluster.nodes:
            if not node.is_running:
                node.start()
        await self.cluster.wait_ready(_READY_SECONDS)
        for gateway in self.gateways:
            await gateway.ready(_READY_SECONDS)

    def end(self) -> None:
        self.cluster.end()


async def fail_node(node: Node, what: What, lasting: float) -> None:
    if what == "pause":
        node.pause()
        await asyncio.sleep(lasting)
        node.resume()
        return
    await asyncio.to_thread(node.kill if what == "kill" else node.stop)
    await asyncio.sleep(lasting)
    await asyncio.to_thread(node.start)


async def _fail_children(pids: Sequence[int], what: What, lasting: float) -> None:
    """Of an installation, which brings back those that end."""
    if what != "pause":
        for pid in pids:
            _signal(pid, signal.SIGKILL if what == "kill" else signal.SIGTERM)
        return
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(lasting)
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


async def _fail_installation(running: Installation, what: What, lasting: float) -> None:
    """All of it. What it leaves behind must be gone before it can listen on its port again."""
    children = running.children("")
    if what == "pause":
        await _fail_children([running.pid, *children], what, lasting)
        return
    await running.stop(signal.SIGKILL if what == "kill" else signal.SIGTERM, 30)
    for pid in children:
        await eventually(partial(_is_gone, pid), 30)
    await asyncio.sleep(lasting)
    running.start()
    await running.ready(_READY_SECONDS)


def _is_gone(pid: int) -> bool:
    return not is_running(pid)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
