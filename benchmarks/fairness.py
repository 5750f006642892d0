"""Dwell times of quiet groups beside noisy ones, and throughput, of a fair queue and of a plain one, over HTTP.

python -m benchmarks.fairness [--messages 100000] [--noisy 1 20] [--seconds 10] [--consumers 32] [--sync always]

For each number of noisy groups: publish `--messages` of them, then ten quiet groups publish 10 messages a second each, while
consumers take messages one at a time and work 20 ms on each. The plain queue has the same load without `groupId`. At last,
messages without `groupId` are published to both, in turns.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
from tests.installation import Installation

WORK_SECONDS, QUIET_GROUPS, QUIET_PER_SECOND = 0.02, 10, 10
_PUBLISH_ROUNDS = 5


async def fill(session: aiohttp.ClientSession, queue: str, count: int, groups: int) -> None:
    async def batch(start: int) -> None:
        messages = [
            {"payload": {"noisy": n}} | ({"groupId": f"noisy-{n % groups}"} if groups else {})
            for n in range(start, min(start + 500, count))
        ]
        async with session.post(f"/v1/queues/{queue}/messages/batch", json={"messages": messages}) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["failed"] == 0

    for start in range(0, count, 4000):
        await asyncio.gather(*(batch(one) for one in range(start, min(start + 4000, count), 500)))


async def run(
    session: aiohttp.ClientSession, queue: str, seconds: float, consumers: int, *, has_groups: bool
) -> tuple[float, list[float]]:
    """Messages per second, and the dwell times of quiet messages in milliseconds. Those not delivered count with their age."""
    ends, done, dwell = time.monotonic() + seconds, 0, list[float]()
    open_messages: dict[str, float] = {}

    async def consume() -> None:
        nonlocal done
        while time.monotonic() < ends:
            async with session.post(f"/v1/queues/{queue}/pull", json={"maxMessages": 1, "waitMs": 200}) as answer:
                messages = (await answer.json())["messages"]
            for message in messages:
                published = open_messages.pop(str(message["payload"].get("quiet")), None)
                if published is not None:
                    dwell.append((time.monotonic() - published) * 1000)
                await asyncio.sleep(WORK_SECONDS)
                async with session.post(f"/v1/queues/{queue}/ack", json={"receiptId": message["receiptId"]}) as answer:
                    assert answer.status == 200
                done += 1

    async def publish(group: int) -> None:
        await asyncio.sleep(group / QUIET_GROUPS / QUIET_PER_SECOND)
        number = 0
        while time.monotonic() < ends - 1:
            key = f"{group}-{number}"
            body = {"payload": {"quiet": key}} | ({"groupId": f"quiet-{group}"} if has_groups else {})
            open_messages[key] = time.monotonic()
            async with session.post(f"/v1/queues/{queue}/messages", json=body) as answer:
                assert answer.status == 201, await answer.text()
            number += 1
            await asyncio.sleep(1 / QUIET_PER_SECOND)

    started = time.monotonic()
    await asyncio.gather(*(consume() for _ in range(consumers)), *(publish(group) for group in range(QUIET_GROUPS)))
    rate = done / (time.monotonic() - started)
    return rate, dwell + [(time.monotonic() - at) * 1000 for at in open_messages.values()]


async def publish_rate(session: aiohttp.ClientSession, queue: str, seconds: float) -> float:
    ends, done = time.monotonic() + seconds, 0

    async def one() -> None:
        nonlocal done
        while time.monotonic() < ends:
            async with session.post(f"/v1/queues/{queue}/messages", json={"payload": done}) as answer:
                assert answer.status == 201
            done += 1

    started = time.monotonic()
    await asyncio.gather(*(one() for _ in range(32)))
    return done / (time.monotonic() - started)


async def measure(session: aiohttp.ClientSession, chosen: argparse.Namespace) -> None:
    for noisy in chosen.noisy:
        rates: dict[str, float] = {}
        for kind, groups in (("plain", 0), ("fair", noisy)):
            queue = f"{kind}-{noisy}"
            async with session.put(f"/v1/queues/{queue}", json={}) as answer:
                assert answer.status == 201
            started = time.monotonic()
            await fill(session, queue, chosen.messages, groups)
            filled = chosen.messages / (time.monotonic() - started)
            rates[kind], dwell = await run(session, queue, chosen.seconds, chosen.consumers, has_groups=bool(groups))
            found = sorted(dwell)
            p50, p99 = statistics.median(found), found[min(len(found) - 1, int(len(found) * 0.99))]
            print(
                f"{noisy} noisy, {kind:5}: {rates[kind]:6.0f}/s ({rates[kind] / rates['plain']:.2f} of plain), "
                f"filled at {filled:.0f}/s; dwell of {len(found)} quiet messages p50 {p50:.0f} ms, p99 {p99:.0f} ms",
                flush=True,
            )
        ratios = []
        for _ in range(_PUBLISH_ROUNDS):
            plain = await publish_rate(session, f"plain-{noisy}", chosen.seconds / 5)
            ratios.append(await publish_rate(session, f"fair-{noisy}", chosen.seconds / 5) / plain)
        print(f"{noisy} noisy: publishing without a group {statistics.median(ratios):.2f} of plain", flush=True)
        for kind in rates:
            async with session.delete(f"/v1/queues/{kind}-{noisy}") as answer:
                assert answer.status == 204


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--noisy", type=int, nargs="*", default=[1, 20])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--consumers", type=int, default=32)
    parser.add_argument("--sync", default="")
    chosen = parser.parse_args()
    environment = {"POSTROAD_SYNC": chosen.sync} if chosen.sync else {}
    with tempfile.TemporaryDirectory() as home:
        running = Installation(Path(home), **environment)
        try:
            await running.start().ready(120)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session:
                await measure(session, chosen)
        finally:
            running.end()


if __name__ == "__main__":
    asyncio.run(main())
