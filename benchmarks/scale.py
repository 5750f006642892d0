"""Cost of a publish, pull, ack and append with little and with much in the installation: it should not grow.

    .venv/bin/python -m benchmarks.scale [--quick] [--only depth queues sessions registry repeats]

Each part runs two installations at the same time, one almost empty and one filled, and measures them in turns. The cost is the
processor time of the gateway and of nats-server per operation, less what they use without requests; that is the row "idle". The
target is a ratio of at most 1.2. Full sizes take about an hour; `--quick` takes about five minutes.
"""

import argparse
import asyncio
import itertools
import json
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Cost, Meter
from benchmarks.publish import BODY
from benchmarks.registry import fill as fill_registry

CONNECTIONS = 64
PAYLOAD = json.loads(BODY)["payload"]


@dataclass(frozen=True, slots=True)
class Size:
    """Of the filled installation, and of a measurement."""

    waiting: int = 1_000_000
    queues: int = 2_000
    sessions: int = 100_000
    registry: int = 1_000_000
    operations: int = 3_000
    rounds: int = 5


QUICK = Size(waiting=20_000, queues=200, sessions=1_000, registry=20_000, operations=1_000, rounds=3)


@dataclass(slots=True)
class Site:
    """An installation, a client of it, and what was measured, by operation."""

    server: Server
    session: aiohttp.ClientSession
    meter: Meter
    costs: dict[str, list[Cost]] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def post(self, path: str, body: object, *, content_type: str = "application/json") -> object:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=data, headers={"Content-Type": content_type}) as answer:
            if answer.status >= 300:
                raise SystemExit(f"{path} was answered {answer.status}: {await answer.text()}")
            return await answer.json() if "json" in answer.headers.get("Content-Type", "") else None

    async def put(self, path: str) -> None:
        async with self.session.put(path, headers={"Content-Type": "application/json"}) as answer:
            answer.raise_for_status()

    async def measure(self, operation: str, count: int, work: Callable[[], Awaitable[object]]) -> None:
        cost = await self.meter.measure(count, lambda: concurrently(count, work))
        self.costs.setdefault(operation, []).append(cost)


async def concurrently(count: int, work: Callable[[], Awaitable[object]]) -> None:
    """Call `work` `count` times, from as many tasks as there are connections."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*[worker() for _ in range(CONNECTIONS)])


# Operations


async def publish(site: Site) -> None:
    await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD})


async def publish_with_key(site: Site, share: float) -> None:
    """A share of the keys, evenly spread, repeats an earlier one."""
    number = next(site.numbers)
    is_repeated = int((number + 1) * share) > int(number * share)
    key = f"used-{number % 47}" if is_repeated else f"new-{number}"
    await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD, "idempotencyKey": key})


async def pull(site: Site) -> None:
    answer = await site.post("/v1/queues/bench/pull", {"maxMessages": 1})
    assert isinstance(answer, dict)
    site.receipts += [message["receiptId"] for message in answer["messages"]]


async def ack(site: Site) -> None:
    await site.post("/v1/queues/bench/ack", {"receiptId": site.receipts.pop()})


async def append(site: Site) -> None:
    await site.post("/v1/stream/bench", PAYLOAD)


async def queue_round(site: Site, count: int) -> None:
    await site.measure("publish", count, lambda: publish(site))
    await site.measure("pull", count, lambda: pull(site))
    await site.measure("ack", len(site.receipts), lambda: ack(site))


async def append_round(site: Site, count: int) -> None:
    await site.measure("append", count, lambda: append(site))


# Parts: what the second installation is filled with


async def fill_queue(site: Site, name: str, count: int) -> None:
    body = json.dumps({"messages": [{"payload": PAYLOAD}] * 1000}).encode()
    for _ in range(count // 1000):
        await site.post(f"/v1/queues/{name}/messages/batch", body)


async def depth(few: Site, many: Site, size: Size) -> None:
    await fill_queue(few, "bench", 1000)
    await fill_queue(many, "bench", size.waiting)


async def queues(few: Site, many: Site, size: Size) -> None:
    numbers = itertools.count()
    await concurrently(size.queues, lambda: many.post(f"/v1/queues/q{next(numbers)}/messages", {"payload": PAYLOAD}))


async def sessions(few: Site, many: Site, size: Size) -> None:
    """A hundred streams with as many subscribers each; the stream that is measured has none."""
    numbers = itertools.count()

    async def subscribe(site: Site) -> None:
        number = next(numbers)
        body = {"sessionId": f"s{number:08d}", "streamId": f"source{number % max(1, size.sessions // 100)}"}
        await site.post("/v1/default/subscribe", body)

    for number in range(max(1, size.sessions // 100)):
        await many.put(f"/v1/stream/source{number}")
    await concurrently(size.sessions, lambda: subscribe(many))


async def registry(few: Site, many: Site, size: Size) -> None:
    await fill_registry(many.server.engine, size.registry // 1000, 1000)


async def repeats(few: Site, many: Site, size: Size) -> None:
    for site in (few, many):
        await concurrently(47, lambda site=site: publish_with_key(site, 1))  # type: ignore[misc]
        site.numbers = itertools.count(1000)


# Measuring


async def measured(few: Site, many: Site, fill: Callable[[Site, Site, Size], Awaitable[None]], size: Size) -> list[list[object]]:
    for site in (few, many):
        await site.put("/v1/stream/bench")
        await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD})
    await fill(few, many, size)
    await asyncio.gather(*[concurrently(200, lambda site=site: publish(site)) for site in (few, many)])  # type: ignore[misc]
    await asyncio.sleep(5)  # for what follows from filling it
    idle = await asyncio.gather(*[site.meter.measure_idle(10) for site in (few, many)])
    for _ in range(size.rounds):
        for site, share in ((few, 0.0), (many, 0.1)):
            if fill is repeats:
                await site.measure(
                    "publish with keys",
                    size.operations,
                    lambda site=site, share=share: publish_with_key(site, share),  # type: ignore[misc]
                )
                continue
            await queue_round(site, size.operations)
            await append_round(site, size.operations)
    rows = [row(name, few.costs[name], many.costs[name]) for name in few.costs]
    return [*rows, row("idle, per ms", [idle[0].per(1000)], [idle[1].per(1000)])]


def row(name: str, few: Sequence[Cost], many: Sequence[Cost]) -> list[object]:
    def medians(costs: Sequence[Cost]) -> tuple[float, float]:
        return (
            statistics.median(cost.gateway for cost in costs) * 1e6,
            statistics.median(cost.engine for cost in costs) * 1e6,
        )

    (few_gateway, few_engine), (many_gateway, many_engine) = medians(few), medians(many)
    ratio = (many_gateway + many_engine) / max(few_gateway + few_engine, 0.1)
    return [name, f"{few_gateway:.0f} + {few_engine:.0f}", f"{many_gateway:.0f} + {many_engine:.0f}", f"{ratio:.2f}"]


async def part(name: str, few: Server, many: Server, size: Size) -> list[list[object]]:
    async with _session(few) as one, _session(many) as other:
        sites = Site(few, one, Meter(few)), Site(many, other, Meter(many))
        return [[name, *cells] for cells in await measured(*sites, PARTS[name], size)]


def _session(server: Server) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {server.key}"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    return aiohttp.ClientSession(server.url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(120))


PARTS = {"depth": depth, "queues": queues, "sessions": sessions, "registry": registry, "repeats": repeats}


def run(names: Iterable[str], size: Size) -> None:
    head = ["filled", "operation", "few: gateway + engine µs", "many: gateway + engine µs", "ratio"]
    rows: list[list[object]] = []
    for name in names:
        with ExitStack() as stack:
            limits = {"POSTROAD_QUEUES_PER_TENANT_MAX": str(size.queues + 10)}
            few, many = (stack.enter_context(postroad(**limits)) for _ in range(2))
            rows += uvloop.run(part(name, few, many, size))
        print(table(head, rows[-6:]), flush=True)
    print(size)
    print(table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some of the parts")
    chosen = parser.parse_args()
    run(chosen.only, QUICK if chosen.quick else Size())


if __name__ == "__main__":
    main()
