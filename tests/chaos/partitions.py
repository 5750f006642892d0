"""Two gateways and three servers in network namespaces, with packet loss between them; how long each gateway does not serve."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.chaos.campaign import SETTINGS
from tests.chaos.deployment import CUTS, Clustered, Fault
from tests.cluster import Cluster
from tests.installation import Installation
from tests.network import Host, Network
from tests.waiting import eventually

_PROBE_SECONDS = 0.1
_PROBE_TIMEOUT = 3.0
_SERVES_SECONDS = 60.0  # then it counts as a violation
_QUEUE = "probes"


@dataclass(slots=True)
class Prober:
    """Publishes, pulls and acknowledges through one gateway again and again, and notes when that succeeded."""

    gateway: Installation
    headers: dict[str, str]
    succeeded: list[float] = field(default_factory=list)  # the time when each successful probe began
    failures: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        url, timeout = f"{self.gateway.url}/v1/queues/{_QUEUE}", aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as session:
            while True:
                began = time.monotonic()
                try:
                    failure = await self._probe(session, url)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    failure = type(error).__name__
                if failure:
                    self.failures[failure] += 1
                else:
                    self.succeeded.append(began)
                await asyncio.sleep(_PROBE_SECONDS)

    async def _probe(self, session: aiohttp.ClientSession, url: str) -> str:
        """The failure, or an empty string."""
        async with session.post(f"{url}/messages", json={"payload": 1}) as published:
            if published.status != 201:
                return f"publish {published.status}"
        async with session.post(f"{url}/pull", json={"maxMessages": 10, "waitMs": 1000}) as pulled:
            if pulled.status != 200:
                return f"pull {pulled.status}"
            receipts = [one["receiptId"] for one in (await pulled.json())["messages"]]
        if not receipts:  # the other prober has it
            return ""
        async with session.post(f"{url}/ack", json={"receiptIds": receipts}) as acked:
            return "" if acked.status == 200 else f"ack {acked.status}"

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds without a success in the interval."""
        times = [begin, *(at for at in self.succeeded if begin < at < end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Partitioned(Clustered):
    """As `Clustered`, with an address for each process; servers and gateways can be cut off from each other."""

    whats = (*Clustered.whats, *CUTS, *CUTS)

    def __init__(self, home: Path) -> None:
        self.network = Network(5)
        self._servers, gateway_hosts = self.network.hosts[:3], self.network.hosts[3:]
        self.cluster = Cluster(home, self._servers)
        self.gateways = [self.cluster.gateway("up", **SETTINGS) for _ in gateway_hosts]
        for gateway, host in zip(self.gateways, gateway_hosts, strict=True):
            gateway.host = host
        self._hosts = dict(zip(("n1", "n2", "n3", "gateway-1", "gateway-2"), self.network.hosts, strict=True))
        self._probers: list[Prober] = []
        self._probing: list[asyncio.Task[None]] = []
        self.outages: list[tuple[float, str]] = []  # seconds, and where

    async def start(self) -> None:
        await super().start()
        await eventually(self._has_queue, _SERVES_SECONDS)
        self._probers = [Prober(gateway, self.headers()) for gateway in self.gateways]
        self._probing = [asyncio.create_task(prober.run()) for prober in self._probers]

    async def _has_queue(self) -> bool:
        async with (
            aiohttp.ClientSession(headers=self.headers()) as session,
            session.put(f"{self.gateways[0].url}/v1/queues/{_QUEUE}", json={"maxAttempts": 0}) as answer,
        ):
            return answer.status < 300

    async def inject(self, fault: Fault) -> None:
        if fault.what not in CUTS:
            await super().inject(fault)
            return
        await self._all_serve()
        server = self._hosts[next((victim for victim in fault.victims if victim.startswith("n")), "n1")]
        others = [one for one in self._servers if one != server]
        self.is_partitioned = True
        cut_off = self._cut(fault, server, others)
        began = time.monotonic()
        await asyncio.sleep(fault.lasting)
        self.network.heal()
        healed = time.monotonic()
        await self._all_serve()
        self.is_partitioned = False
        self._measure(fault, cut_off, began, healed)

    def _cut(self, fault: Fault, server: Host, others: Sequence[Host]) -> set[str]:
        """Returns the gateways that do not reach a majority meanwhile."""
        first, second = self._hosts["gateway-1"], self._hosts["gateway-2"]
        if fault.what == "isolate":
            self.network.cut([server], [*others, first, second])
        elif fault.what == "minority":
            self.network.cut([server], others)
        elif fault.what == "one-way":
            self.network.cut_one_way(server, first)
        else:
            self.network.cut([server, first], [*others, second])
            return {"gateway-1"}
        return set()

    async def _all_serve(self) -> None:
        """Every gateway has served a probe that began after this call."""
        now = time.monotonic()

        def are_serving() -> bool:
            return all(prober.succeeded and prober.succeeded[-1] > now for prober in self._probers)

        with contextlib.suppress(AssertionError):  # the gap is a violation
            await eventually(are_serving, _SERVES_SECONDS)

    def _measure(self, fault: Fault, cut_off: set[str], began: float, healed: float) -> None:
        now = time.monotonic()
        for name, prober in zip(("gateway-1", "gateway-2"), self._probers, strict=True):
            if name not in cut_off:
                self.outages.append((prober.longest_gap(began, healed), f"{name} during {fault}"))
            self.outages.append((prober.longest_gap(healed, now), f"{name} after {fault}"))

    def summary(self) -> str:
        if not self.outages:
            return "no partitions"
        longest = sorted(self.outages, reverse=True)[:5]
        served = sorted(seconds for seconds, _ in self.outages)
        within = sum(seconds <= 10 for seconds in served)
        lines = "; ".join(f"{seconds:.1f} s {where}" for seconds, where in longest)
        return (
            f"{len(served)} times a gateway could reach a majority; median {served[len(served) // 2]:.1f} s until it served, "
            f"{within} within 10 s; longest: {lines}; "
            f"failed probes {', '.join(str(dict(prober.failures)) for prober in self._probers)}"
        )

    def violations(self) -> list[str]:
        late = [f"{where}: not served for {seconds:.0f} s" for seconds, where in self.outages if seconds >= _SERVES_SECONDS]
        return [*super().violations(), *late]

    async def heal(self) -> None:
        self.network.heal()
        await super().heal()
        await self._all_serve()
        for task in self._probing:
            task.cancel()
        await asyncio.gather(*self._probing, return_exceptions=True)

    def end(self) -> None:
        self.network.heal()
        super().end()
        self.network.close()
