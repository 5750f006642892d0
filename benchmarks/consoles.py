"""Cost of open consoles to publishers, and a search over many queues.

    .venv/bin/python -m benchmarks.consoles [--consoles 50] [--queues 200] [--messages 20000] [--publishes 3000] [--rounds 4]

Publishes of 32 connections are measured in turns without and with open streams of `GET /v1/live`, each of which shows a page of
queues. The numbers are processor time of the gateway per publish, which other load on the machine distorts least. Searches look
for one message among all queues; then publishers and consumers work in turns without and with a search beside them, which
matches nothing and so compares every message.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Meter

CONNECTIONS = 32
BATCH = 500
SHOWN = 20  # queues on the screen of a console, to which publishers send
CONSUMED = 8  # further queues, from which consumers pull
CONSUMERS = 8


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
    shown = ", ".join(f"{one:.3f}" for one in pairs)
    print(f"ratio, median of {rounds} pairs: {statistics.median(pairs):.3f} ({shown}) (goal: below 1.10)\n")


@dataclass(slots=True)
class Search:
    """Seconds to the first hit, to the end, and the longest wait for a page; messages compared and requests."""

    first: float = 0.0
    whole: float = 0.0
    longest: float = 0.0
    scanned: int = 0
    requests: int = 0


async def search(session: aiohttp.ClientSession, text: str) -> Search:
    found, started, cursor = Search(), time.perf_counter(), ""
    while True:
        asked = time.perf_counter()
        async with session.get(f"/v1/messages?search={text}{cursor}") as answer:
            page = await answer.json()
        now = time.perf_counter()
        found.longest = max(found.longest, now - asked)
        found.requests, found.scanned = found.requests + 1, found.scanned + page["scanned"]
        if page["messages"] and not found.first:
            found.first = now - started
        if page["nextCursor"] is None:
            found.whole = now - started
            return found
        cursor = f"&cursor={page['nextCursor']}"


async def consume(session: aiohttp.ClientSession, count: int, latencies: list[float]) -> None:
    """Pull and acknowledge single messages of the queues that nobody publishes to."""
    left = iter(range(count))

    async def one_connection() -> None:
        for number in left:
            queue = f"/v1/queues/q{SHOWN + number % CONSUMED:04d}"
            started = time.perf_counter()
            async with session.post(f"{queue}/pull", data=b"{}") as answer:
                messages = (await answer.json())["messages"]
            latencies.append(time.perf_counter() - started)
            for message in messages:
                async with session.post(f"{queue}/ack", data=msgspec.json.encode({"receiptId": message["receiptId"]})) as answer:
                    if answer.status != 200:
                        raise SystemExit(await answer.text())

    await asyncio.gather(*(one_connection() for _ in range(CONSUMERS)))


async def measure_search(session: aiohttp.ClientSession, queues: int, messages: int, publishes: int, rounds: int) -> None:
    each = max(1, messages // queues)
    rows: list[list[object]] = []
    for name, text in (
        ("the newest of the last queue", f'"order":{queues * each - 1},'),
        ("the middle of the first queue", f'"order":{each // 2},'),
        ("every message", '"order"'),
    ):
        one = await search(session, text) if name != "every message" else await first_page(session, text)
        rows.append([name, f"{one.first:.2f}", f"{one.whole:.2f}", f"{one.longest:.2f}", f"{one.scanned:,}", one.requests])
    print(table(["it matches", "first hit (s)", "whole search (s)", "longest page (s)", "compared", "requests"], rows))
    await publish(session, publishes, [])
    ratios: dict[str, list[float]] = {"publish": [], "pull": []}
    for _ in range(rounds):
        p99s = []
        for is_beside in (False, True):
            searching = asyncio.create_task(search_on(session)) if is_beside else None
            latencies: dict[str, list[float]] = {"publish": [], "pull": []}
            await asyncio.gather(
                publish(session, publishes, latencies["publish"]), consume(session, publishes // 4, latencies["pull"])
            )
            if searching is not None:
                searching.cancel()
                await asyncio.gather(searching, return_exceptions=True)
            p99s.append({name: statistics.quantiles(some, n=100)[98] * 1000 for name, some in latencies.items()})
        for name, values in ratios.items():
            values.append(p99s[1][name] / p99s[0][name])
            print(f"p99 of {name}: {p99s[0][name]:.1f} ms alone, {p99s[1][name]:.1f} ms beside a search")
    for name, values in ratios.items():
        print(f"ratio of p99 of {name}, median of {rounds} pairs: {statistics.median(values):.3f} (goal: at most 1.20)")


async def first_page(session: aiohttp.ClientSession, text: str) -> Search:
    started = time.perf_counter()
    async with session.get(f"/v1/messages?search={text}") as answer:
        page = await answer.json()
    seconds = time.perf_counter() - started
    return Search(seconds if page["messages"] else 0.0, seconds, seconds, page["scanned"], 1)


async def search_on(session: aiohttp.ClientSession) -> None:
    while True:
        await search(session, "nothing-like-this")


async def main(arguments: argparse.Namespace, server: Server) -> None:
    timeout = aiohttp.ClientTimeout(total=600)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, headers=headers, timeout=timeout, connector=connector) as session:
        await fill(session, arguments.queues, arguments.messages)
        await measure_consoles(session, server, arguments.consoles, arguments.publishes, arguments.rounds)
        await measure_search(session, arguments.queues, arguments.messages, arguments.publishes, arguments.rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--consoles", type=int, default=50)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--publishes", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    if chosen.queues < SHOWN + CONSUMED:
        parser.error(f"--queues must be at least {SHOWN + CONSUMED}")
    with postroad() as running:
        uvloop.run(main(chosen, running))
