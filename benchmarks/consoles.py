"""Cost of open consoles to publishers, and a search over many queues.

    .venv/bin/python -m benchmarks.consoles [--consoles 50] [--queues 200] [--messages 20000] [--publishes 3000] [--rounds 4]

Publishes of 32 connections are measured in turns without and with open streams of `GET /v1/live`, each of which shows a page of
queues. The numbers are processor time of the gateway per publish, which other load on the machine distorts least. The search
looks for one message among all queues, without and with publishers beside it.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Meter

CONNECTIONS = 32
BATCH = 500
SHOWN = 20  # queues on the screen of a console


async def fill(session: aiohttp.ClientSession, queues: int, messages: int) -> None:
    each = max(1, messages // queues)
    for number in range(queues):
        async with session.put(f"/v1/queues/q{number:04d}", data=b"{}") as answer:
            if answer.status not in (200, 201):
                raise SystemExit(await answer.text())
        for start in range(0, each, BATCH):
            count = min(BATCH, each - start)
            batch = [{"payload": {"order": number * each + start + one, "text": "x" * 200}} for one in range(count)]
            async with session.post(
                f"/v1/queues/q{number:04d}/messages/batch", data=msgspec.json.encode({"messages": batch})
            ) as answer:
                if answer.status != 200:
                    raise SystemExit(await answer.text())


async def publish(session: aiohttp.ClientSession, count: int, latencies: list[float]) -> None:
    body, left = msgspec.json.encode({"payload": {"order": 0, "text": "x" * 200}}), iter(range(count))

    async def one_connection() -> None:
        for number in left:
            started = time.perf_counter()
            async with session.post(f"/v1/queues/q{number % SHOWN:04d}/messages", data=body) as answer:
                if answer.status != 201:
                    raise SystemExit(await answer.text())
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))


async def open_consoles(stack: AsyncExitStack, session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[int]]:
    names = ";".join(f"q{number:04d}" for number in range(SHOWN))

    async def read(answer: aiohttp.ClientResponse) -> int:
        size = 0
        async for chunk in answer.content.iter_any():
            size += len(chunk)
        return size

    readers = []
    for _ in range(count):
        answer = await stack.enter_async_context(session.get(f"/v1/live?watch=queues:*;{names},tasks,health,flow"))
        if answer.status != 200:
            raise SystemExit(await answer.text())
        readers.append(asyncio.create_task(read(answer)))
    return readers


async def measure_consoles(session: aiohttp.ClientSession, server: Server, consoles: int, publishes: int, rounds: int) -> None:
    meter, costs, latencies = Meter(server), dict[int, list[float]](), dict[int, list[float]]()
    await publish(session, publishes // 2, [])
    for _ in range(rounds):
        for count in (0, consoles):
            async with AsyncExitStack() as stack:
                readers = await open_consoles(stack, session, count)
                await asyncio.sleep(2)
                before = meter.read()
                await publish(session, publishes, latencies.setdefault(count, []))
                costs.setdefault(count, []).append((meter.read() - before).gateway / publishes * 1e6)
                for reader in readers:
                    reader.cancel()
    rows: list[list[object]] = [
        [f"{count} consoles", f"{statistics.median(some):.0f}", f"{statistics.quantiles(latencies[count], n=100)[98] * 1000:.1f}"]
        for count, some in costs.items()
    ]
    print(table(["open", "gateway processor time per publish (µs)", "p99 (ms)"], rows))
    pairs = [with_ / without for without, with_ in zip(costs[0], costs[consoles], strict=True)]
    print(f"ratio, median of {rounds} pairs: {statistics.median(pairs):.3f} ({', '.join(f'{one:.3f}' for one in pairs)})\n")


async def search(session: aiohttp.ClientSession, text: str) -> tuple[float, float, int, int]:
    """Seconds to the first hit and to the end, messages compared, requests."""
    started, first, scanned, requests, cursor = time.perf_counter(), 0.0, 0, 0, ""
    while True:
        async with session.get(f"/v1/messages?search={text}{cursor}") as answer:
            page = await answer.json()
        requests, scanned = requests + 1, scanned + page["scanned"]
        if page["messages"] and not first:
            first = time.perf_counter() - started
        if page["nextCursor"] is None:
            return first, time.perf_counter() - started, scanned, requests
        cursor = f"&cursor={page['nextCursor']}"


async def measure_search(session: aiohttp.ClientSession, queues: int, messages: int, publishes: int) -> None:
    each = max(1, messages // queues)
    rows: list[list[object]] = []
    for name, queue in (("first queue", 0), ("middle", queues // 2), ("last queue", queues - 1)):
        first, whole, scanned, requests = await search(session, f'"order":{queue * each + each // 2},')
        rows.append([name, f"{first:.2f}", f"{whole:.2f}", f"{scanned:,}", requests])
    print(table(["the message is in the", "first hit (s)", "whole search (s)", "compared", "requests"], rows))
    alone, beside = list[float](), list[float]()
    await publish(session, publishes, alone)
    searching = asyncio.create_task(search(session, "nothing-like-this"))
    await publish(session, publishes, beside)
    await searching
    p99 = [statistics.quantiles(some, n=100)[98] * 1000 for some in (alone, beside)]
    print(f"p99 of publishes: {p99[0]:.1f} ms alone, {p99[1]:.1f} ms beside a search\n")


async def main(arguments: argparse.Namespace, server: Server) -> None:
    timeout = aiohttp.ClientTimeout(total=600)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, headers=headers, timeout=timeout, connector=connector) as session:
        await fill(session, arguments.queues, arguments.messages)
        await measure_consoles(session, server, arguments.consoles, arguments.publishes, arguments.rounds)
        await measure_search(session, arguments.queues, arguments.messages, arguments.publishes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--consoles", type=int, default=50)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--publishes", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    with postroad() as running:
        uvloop.run(main(chosen, running))
