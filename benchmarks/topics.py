"""Processor time of a publish to a topic beside one to a queue, of the worker and of the engine.

    .venv/bin/python -m benchmarks.topics [requests per measurement]

64 connections publish 200 bytes of JSON to one installation. The kinds take turns, so that other processes on the machine affect
all of them. `keyed`: each message has an idempotency key; `1 % repeated`: one of a hundred keys was used before, by a message
that is stored.
"""

import asyncio
import contextlib
import random
import statistics
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD

CONNECTIONS = 64
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to publish: the path, and the body of the next message."""

    name: str
    path: str
    body: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Cost:
    worker: float
    engine: float


def kinds() -> Iterator[Kind]:
    queue, topic = "/v1/queues/bench/messages", "/v1/topics/bench/messages"
    plain = f'"payload":{PAYLOAD}'
    used, chance = list[str](), random.Random(1)

    def key() -> str:
        return f'"idempotencyKey":"{uuid.uuid4()}"'

    def mostly_new() -> bytes:
        if used and chance.random() < 0.01:
            return f'{{"subject":"a.b",{chance.choice(used)},{plain}}}'.encode()
        used.append(key())
        del used[:-1000]
        return f'{{"subject":"a.b",{used[-1]},{plain}}}'.encode()

    yield Kind("queue", queue, f"{{{plain}}}".encode)
    yield Kind("topic", topic, f'{{"subject":"a.b",{plain}}}'.encode)
    yield Kind("queue, keyed", queue, lambda: f"{{{key()},{plain}}}".encode())
    yield Kind("topic, keyed", topic, lambda: f'{{"subject":"a.b",{key()},{plain}}}'.encode())
    yield Kind("topic, 1 % repeated", topic, mostly_new)


def processes(supervisor: int) -> dict[str, list[int]]:
    """The worker and the engine among the children of the supervisor."""
    children = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in children}
    return {
        "worker": [pid for pid, line in lines.items() if "postroad.runtime.worker\0gateway" in line],
        "engine": [pid for pid, line in lines.items() if "nats-server" in line],
    }


def processor_seconds(pids: list[int]) -> float:
    """Of all threads, to the nanosecond: ticks of 10 ms would be too coarse for short rounds."""
    found = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9


async def publish(session: aiohttp.ClientSession, kind: Kind, count: int) -> None:
    left = [count]

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            async with session.post(kind.path, data=kind.body()) as answer:
                if answer.status != 201:
                    raise SystemExit(f"{kind.name}: {answer.status} {await answer.text()}")
                msgspec.json.decode(await answer.read())

    await asyncio.gather(*[client() for _ in range(CONNECTIONS)])


async def measure(server: Server, count: int) -> list[list[object]]:
    found = processes(server.pid)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    every = list(kinds())
    costs: dict[str, list[Cost]] = {kind.name: [] for kind in every}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        for kind in every:
            await publish(session, kind, 500)
        for number in range(ROUNDS):
            for kind in every if number % 2 == 0 else every[::-1]:
                before = {name: processor_seconds(pids) for name, pids in found.items()}
                await publish(session, kind, count)
                used = {name: (processor_seconds(pids) - before[name]) / count * 1e6 for name, pids in found.items()}
                costs[kind.name].append(Cost(used["worker"], used["engine"]))
    return [
        [name, f"{statistics.median(one.worker for one in some):.0f}", f"{statistics.median(one.engine for one in some):.0f}"]
        for name, some in costs.items()
    ]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    with postroad() as server:
        rows = uvloop.run(measure(server, count))
    print(table(["publish", "worker µs", "engine µs"], rows))


if __name__ == "__main__":
    main()
