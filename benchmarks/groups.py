"""Ordered queues beside a plain queue, over HTTP, with one installation and one process of consumers.

python -m benchmarks.groups [--seconds 4] [--rounds 2] [--groups 100 10000]

Prints messages per second and ratios to the plain queue of the same round. Other load changes the rates; the ratios
of interleaved rounds much less.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
from tests.installation import Installation

from benchmarks.processor_time import process_seconds

CONNECTIONS = 64
_FILLED_PER_SECOND = {1: 5000, 10: 20_000}  # by the size of pulls: more than any kind of queue delivers


async def fill(session: aiohttp.ClientSession, queue: str, count: int, groups: int) -> None:
    async def batch(start: int) -> None:
        messages = [
            {"payload": {"n": n}} | ({"groupId": str(n % groups)} if groups else {})
            for n in range(start, min(start + 500, count))
        ]
        async with session.post(f"/v1/queues/{queue}/messages/batch", json={"messages": messages}) as answer:
            assert answer.status == 200, await answer.text()

    for start in range(0, count, 4000):
        await asyncio.gather(*(batch(one) for one in range(start, min(start + 4000, count), 500)))


class Meter:
    """Processor time of the gateways and of the engine."""

    def __init__(self, running: Installation) -> None:
        self._pids = running.worker_pids, [running.engine_pid]
        self._before = self._read()

    def _read(self) -> list[float]:
        return [sum(map(process_seconds, pids)) for pids in self._pids]

    def micros(self, count: float) -> tuple[float, float]:
        """Since the last call, for each of `count`: gateways, engine."""
        before, self._before = self._before, self._read()
        gateway, engine = [(now - then) * 1e6 / max(count, 1) for now, then in zip(self._before, before, strict=True)]
        return gateway, engine


async def consume(session: aiohttp.ClientSession, queue: str, size: int, seconds: float) -> tuple[float, int]:
    """Messages that are pulled, `size` at a time, and acknowledged: per second until the last one, and their number."""
    ends, done, last = time.monotonic() + seconds, 0, time.monotonic()

    async def one() -> None:
        nonlocal done, last
        while time.monotonic() < ends:
            async with session.post(f"/v1/queues/{queue}/pull", json={"maxMessages": size, "waitMs": 200}) as answer:
                messages = (await answer.json())["messages"]
            if messages:
                receipts = [message["receiptId"] for message in messages]
                async with session.post(f"/v1/queues/{queue}/ack", json={"receiptIds": receipts}) as answer:
                    done += sum(result["ok"] for result in (await answer.json())["results"])
                last = time.monotonic()

    started = time.monotonic()
    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return done / max(last - started, 0.001), done


async def publish(session: aiohttp.ClientSession, queue: str, seconds: float, *, is_ordered: bool) -> tuple[float, int]:
    """Messages that are published one at a time, with an idempotency key or a `dedupeId`: per second, and their number."""
    ends, done, started = time.monotonic() + seconds, 0, time.monotonic_ns()

    async def one(number: int) -> None:
        nonlocal done
        while time.monotonic() < ends:
            done += 1
            key = f"{started}-{done}"
            body = {"payload": {"n": done}, "groupId": str(done % 100), "dedupeId": key} if is_ordered else None
            body = body or {"payload": {"n": done}, "idempotencyKey": key}
            async with session.post(f"/v1/queues/{queue}/messages", json=body) as answer:
                assert answer.status == 201, (number, await answer.text())

    begun = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    return done / (time.monotonic() - begun), done


async def measure(session: aiohttp.ClientSession, running: Installation, seconds: float, rounds: int, groups: list[int]) -> None:
    meter = Meter(running)
    costs: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        queues = {"plain": 0} | {f"ordered-{count}": count for count in (1, *groups)}
        rates: dict[str, float] = {}
        cost: dict[str, tuple[float, float]] = {}
        for kind, count in queues.items():
            name = f"{kind}-{number}"
            async with session.put(f"/v1/queues/{name}", json={"ordered": bool(count)}) as answer:
                assert answer.status == 201
            meter.micros(1)
            rates[f"{kind} publish"], done = await publish(session, name, seconds / 2, is_ordered=bool(count))
            cost[f"{kind} publish"] = meter.micros(done)
            async with session.post(f"/v1/queues/{name}/purge", json={}) as answer:
                assert answer.status == 200
            for size, per_second in _FILLED_PER_SECOND.items():
                await fill(session, name, int(seconds * per_second), count)
                meter.micros(1)
                rates[f"{kind} pull({size})+ack"], done = await consume(session, name, size, seconds)
                cost[f"{kind} pull({size})+ack"] = meter.micros(done)
            async with session.delete(f"/v1/queues/{name}") as answer:
                assert answer.status == 204
        for label, rate in rates.items():
            kind, _, operation = label.partition(" ")
            ratio = rate / rates[f"plain {operation}"]
            ratios.setdefault(label, []).append(ratio)
            gateway, engine = cost[label]
            of_plain = sum(cost[f"plain {operation}"]) / max(gateway + engine, 1)
            costs.setdefault(label, []).append(of_plain)
            print(
                f"round {number + 1}: {label:28} {rate:8.0f}/s  {ratio:5.2f} of plain; processor time gateway {gateway:5.0f} µs, "
                f"engine {engine:5.0f} µs, so {of_plain:.2f} of plain's messages for the same time",
                flush=True,
            )
    for label, found in ratios.items():
        by_time = statistics.median(costs[label])
        print(f"median: {label:28} {statistics.median(found):5.2f} of plain, {by_time:5.2f} by processor time")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--groups", type=int, nargs="*", default=[100, 10_000])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        running = Installation(Path(home))
        try:
            await running.start().ready(120)
            connector = aiohttp.TCPConnector(limit=CONNECTIONS)
            async with aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session:
                await measure(session, running, chosen.seconds, chosen.rounds, chosen.groups)
        finally:
            running.end()


if __name__ == "__main__":
    asyncio.run(main())
