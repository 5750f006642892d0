"""What filters cost: 150 alternatives of each operator, and 1,000 filtered subscriptions of a topic, of which one matches.

    .venv/bin/python -m benchmarks.filters [messages]

The first table has processor µs of the matcher alone, for a value that none of the alternatives matches. Targets are 20 µs for
150 combinations, 3 µs for an exact match, and 5 ms for 1,000 policies. The second has processor µs per published message over 16
connections, in workers and engine (`publish`) and in control and delivery (`delivery`), with one subscription and with 1,000.
Without an argument 2,000 messages are published; 0 skips the second table.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Meter
from postroad.subscriptions.filter_policy import FilterPolicy
from postroad.subscriptions.value_tests import MISSING

SUBSCRIPTIONS = 1_000
CONNECTIONS = 16
_ROUNDS = 7
_PATH = "/v1/topics/bench/messages"
MANY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "150 texts": ({"a": [f"t{n}" for n in range(150)]}, {"a": "x"}),
    "150 numbers": ({"a": list(range(150))}, {"a": -1.5}),
    "150 prefixes": ({"a": [{"prefix": f"p{n:03}"} for n in range(150)]}, {"a": "p15"}),
    "150 suffixes": ({"a": [{"suffix": f"{n:03}s"} for n in range(150)]}, {"a": "15s"}),
    "150 without case": ({"a": [{"equals-ignore-case": f"T{n}"} for n in range(150)]}, {"a": "x"}),
    "150 ranges": ({"a": [{"numeric": [">", 2 * n, "<", 2 * n + 1]} for n in range(150)]}, {"a": 100.0}),
    "150 networks": ({"a": [{"cidr": f"10.0.{n}.0/25"} for n in range(150)]}, {"a": "10.0.75.200"}),
    "150 networks, IPv6": ({"a": [{"cidr": f"2001:db8:{n}::/64"} for n in range(150)]}, {"a": "2001:db8:4b:1::7"}),
    "150 anything-but": ({"a": [{"anything-but": ["x", f"t{n}"]} for n in range(150)]}, {"a": "x"}),
    "15 prefixes and 10 suffixes": (
        {"a": [{"prefix": f"p{n:02}"} for n in range(15)], "b": [{"suffix": f"s{n}"} for n in range(10)]},
        {"a": "p14x", "b": "x"},
    ),
    "$or of 150 objects with one key": ({"$or": [{"a": [f"t{n}"]} for n in range(150)]}, {"a": "x"}),
    "$or of 150 objects with two keys": ({"$or": [{"a": [f"t{n}"], "b": ["x"]} for n in range(150)]}, {"a": "x", "b": "x"}),
    "$or of 150 objects with two prefixes": (
        {"$or": [{"a": [{"prefix": f"p{n:03}"}], "b": [{"prefix": "x"}]} for n in range(150)]},
        {"a": "p15", "b": "x"},
    ),
    "$or of 150 objects, one of which almost matches": (
        {"$or": [{"a": [{"prefix": f"p{n:03}"}], "b": [{"suffix": f"{n:03}s"}]} for n in range(150)]},
        {"a": "p015", "b": "016s"},
    ),
    "an exact match": ({"a": ["x"]}, {"a": "x"}),
}


def microseconds(run: Callable[[], object], count: int = 2_000) -> float:
    """Processor time of one run: of several rounds, the least."""
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.process_time()
        for _ in range(count):
            run()
        best = min(best, (time.process_time() - started) / count * 1e6)
    return best


def matcher_rows() -> list[list[object]]:
    rows: list[list[object]] = []
    for name, (definition, message) in MANY.items():
        policy = FilterPolicy(json.dumps(definition), "MessageAttributes")
        rows.append([name, f"{microseconds(lambda p=policy, m=message: p.matches(MISSING, m)):.2f}"])  # type: ignore[misc]
    policies = [FilterPolicy(json.dumps({"a": [f"x{n}"]}), "MessageAttributes") for n in range(SUBSCRIPTIONS)]
    rows.append(["1,000 policies", f"{microseconds(lambda: [one.matches(MISSING, {'a': 'x5'}) for one in policies], 20):.0f}"])
    return rows


async def publish(session: aiohttp.ClientSession, count: int) -> None:
    left, body = [count], json.dumps({"subject": "a.b", "payload": {"kind": "x", "n": 1}}).encode()

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            async with session.post(_PATH, data=body) as answer:
                answer.raise_for_status()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


async def subscribe(session: aiohttp.ClientSession, first: int, last: int) -> None:
    """Subscriptions whose subjects match, and whose content filters do, of the first, or do not."""
    for number in range(first, last):
        kind = "x" if number == 0 else f"k{number}"
        new = {"delivery_type": "queue", "queue": "bench", "contentFilter": {"payload": {"kind": kind}}}
        async with session.post("/v1/topics/bench/subscriptions", json=new) as answer:
            answer.raise_for_status()


async def measure(server: Server, messages: int) -> list[list[object]]:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    rows: list[list[object]] = []
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        for path in ("/v1/topics/bench", "/v1/queues/bench"):
            async with session.put(path, json={}) as answer:
                answer.raise_for_status()
        for first, last in ((0, 1), (1, SUBSCRIPTIONS)):
            await subscribe(session, first, last)
            await asyncio.sleep(5)  # they are taken over
            await publish(session, messages // 4)
            meter = Meter(server)
            await meter.measure_idle(3)
            cost = await meter.measure(messages, lambda: _settled(session, messages))
            rows.append([f"{last:,}", f"{(cost.gateway + cost.engine) * 1e6:.0f}", f"{cost.background * 1e6:.0f}"])
    return rows


async def _settled(session: aiohttp.ClientSession, messages: int) -> None:
    """Publish, and wait until all are in the queue."""
    before = await _ready(session)
    await publish(session, messages)
    while await _ready(session) < before + messages:  # noqa: ASYNC110  # another process delivers
        await asyncio.sleep(0.1)


async def _ready(session: aiohttp.ClientSession) -> int:
    async with session.get("/v1/queues/bench") as answer:
        return int((await answer.json())["stats"]["ready"])


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    print(table(["policy", "µs"], matcher_rows()))
    if messages:
        with postroad(POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
            rows = uvloop.run(measure(server, messages))
        print(table(["filtered subscriptions", "publish µs", "delivery µs"], rows))


if __name__ == "__main__":
    main()
