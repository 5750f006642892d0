"""Many subscriptions of a topic, of which one matches: what they cost a publish, the first byte at the receiver, and memory.

    .venv/bin/python -m benchmarks.many_subscriptions [subscriptions] [messages]

First with the one subscription that matches, then with all (10,000). `publish`: processor µs of worker and engine per message,
64 connections. `first byte`: from the start of a publish to the arrival of its delivery, one message at a time. `memory`: of the
delivery process, after a restart, per subscription. `loaded`: the time from the restart to the first delivery.
"""

import asyncio
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD
from benchmarks.processor_time import Meter
from benchmarks.push import Counted, _pid

CONNECTIONS = 64
_DELIVERY = "postroad.runtime.worker delivery"
_PATH = "/v1/topics/bench/messages"


def memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


async def subscribe(session: aiohttp.ClientSession, url: str, first: int, count: int) -> None:
    """Subscriptions to subjects that are not published."""
    numbers = iter(range(first, first + count))

    async def client() -> None:
        for number in numbers:
            new = {"delivery_type": "http_push", "url": url, "filter": f"never.n{number}.>"}
            async with session.post("/v1/topics/bench/subscriptions", json=new) as answer:
                answer.raise_for_status()

    await asyncio.gather(*(client() for _ in range(16)))


async def publish(session: aiohttp.ClientSession, count: int, subject: str) -> None:
    left, body = [count], f'{{"subject":"{subject}","payload":{PAYLOAD}}}'.encode()

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            async with session.post(_PATH, data=body) as answer:
                answer.raise_for_status()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


async def first_byte_ms(session: aiohttp.ClientSession, receiver: Counted, count: int) -> float:
    times = []
    body = f'{{"subject":"a.b","payload":{PAYLOAD}}}'.encode()
    for _ in range(count):
        before, started = receiver.count(), time.perf_counter()
        async with session.post(_PATH, data=body) as answer:
            answer.raise_for_status()
        while receiver.count() == before:  # noqa: ASYNC110  # another process counts
            await asyncio.sleep(0.0002)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def restarted(session: aiohttp.ClientSession, server: Server, receiver: Counted) -> tuple[float, int]:
    """Seconds from a kill of the delivery process to the next delivery, and the memory of the new process."""
    killed = _pid(server, _DELIVERY)
    os.kill(killed, signal.SIGKILL)
    before, started = receiver.count(), time.perf_counter()
    await publish(session, 1, "a.b")
    while receiver.count() == before:  # noqa: ASYNC110  # another process counts
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - started
    await asyncio.sleep(5)  # all the others are taken over, too
    return seconds, memory_bytes(_pid(server, _DELIVERY))


async def measure(server: Server, subscriptions: int, messages: int) -> list[list[object]]:
    receiver = Counted()
    url = f"http://127.0.0.1:{receiver.port}/"
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    rows: list[list[object]] = []
    memory_of_one = 0
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(server.url, headers=headers, connector=connector) as session:
            async with session.put("/v1/topics/bench", json={}) as answer:
                answer.raise_for_status()
            async with session.post(
                "/v1/topics/bench/subscriptions", json={"delivery_type": "http_push", "url": url, "filter": "a.>"}
            ) as answer:
                answer.raise_for_status()
            for count in (1, subscriptions):
                await subscribe(session, url, len(rows), count - 1)
                loaded, memory = await restarted(session, server, receiver)
                memory_of_one = memory_of_one or memory
                await publish(session, messages // 4, "b.c")
                meter = Meter(server)
                await meter.measure_idle(3)
                cost = await meter.measure(messages, lambda: publish(session, messages, "b.c"))
                first = await first_byte_ms(session, receiver, 50)
                each = f"{(memory - memory_of_one) / (count - 1):,.0f}" if count > 1 else ""
                costs = f"{cost.gateway * 1e6:.0f}", f"{cost.engine * 1e6:.0f}"
                rows.append([f"{count:,}", *costs, f"{first:.1f}", f"{memory / 1e6:.0f}", each, f"{loaded:.1f}"])
    finally:
        receiver.end()
    return rows


def main() -> None:
    subscriptions = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    messages = int(sys.argv[2]) if len(sys.argv) > 2 else 3_000
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8", POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        rows = uvloop.run(measure(server, subscriptions, messages))
    head = ["subscriptions", "publish: worker µs", "engine µs", "first byte ms", "memory MB", "bytes each", "loaded s"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
