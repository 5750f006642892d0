"""kill -9 of gateways, dispatchers included, and of the engine under an ordered queue: order holds, nothing is lost.

`POSTROAD_TEST_ORDERED=50000` runs it with that many messages.
"""

import asyncio
import os
import random
import signal
import time

import aiohttp
import pytest

from tests.faults.conftest import Install
from tests.waiting import eventually

MESSAGES = int(os.environ.get("POSTROAD_TEST_ORDERED", "3000"))
GROUPS, CONSUMERS, KILLS = 50, 24, 6
LEASE_MS = 3000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Ledger:
    """What consumers saw. A group is held until the ack of its message is sent, or its lease may have ended."""

    def __init__(self) -> None:
        self.acked: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
        self.maybe_acked: set[tuple[int, int]] = set()  # the response to the ack was lost
        self.held: dict[int, tuple[int, float]] = {}  # group: consumer, end of its lease
        self.faults: list[str] = []

    @property
    def done(self) -> int:
        return sum(len(numbers) for numbers in self.acked.values())

    def deliver(self, consumer: int, group: int, number: int, asked_at: float) -> None:
        holder, until = self.held.get(group, (consumer, 0.0))
        if holder != consumer and asked_at < until and time.monotonic() < until:
            self.faults.append(f"group {group} is held by {holder} and was delivered to {consumer}")
        if number in self.acked[group]:
            self.faults.append(f"{group}/{number} was acknowledged and returned")
        earlier = set(range(number)) - set(self.acked[group])
        if any((group, one) not in self.maybe_acked for one in earlier):
            self.faults.append(f"{group}/{number} came before {min(earlier)}")


async def test_order_and_exclusivity_hold_through_kill_9(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="4").start().ready(120)
    rng, ledger = random.Random(27), Ledger()
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(running.url, headers=running.headers, timeout=timeout, connector=connector) as session:

        async def post(path: str, body: object) -> dict[str, object] | None:
            """None if there was no certain response."""
            try:
                async with session.post(f"/v1/queues/q{path}", json=body) as answer:
                    return await answer.json() if answer.status in (200, 201) else None
            except (aiohttp.ClientError, TimeoutError):
                return None

        settings = {"ordered": True, "maxAttempts": 0, "retryDelaysMs": [0]}
        async with session.put("/v1/queues/q", json=settings) as answer:
            assert answer.status == 201

        async def publish() -> None:
            for start in range(0, MESSAGES, 100):
                messages = [
                    {"payload": [n % GROUPS, n // GROUPS], "groupId": str(n % GROUPS), "dedupeId": str(n)}
                    for n in range(start, min(start + 100, MESSAGES))
                ]
                while True:
                    result = await post("/messages/batch", {"messages": messages})
                    if result is not None and result["failed"] == 0:
                        break
                    await asyncio.sleep(0.1)

        async def consume(consumer: int) -> None:
            while ledger.done < MESSAGES:
                asked_at = time.monotonic()
                count = rng.choice((1, 3, 10))
                body = {"maxMessages": count, "maxPerGroup": 1, "waitMs": 1000, "visibilityTimeoutMs": LEASE_MS}
                pulled = await post("/pull", body)
                for message in (pulled or {}).get("messages", ()):  # type: ignore[attr-defined]
                    group, number = message["payload"]
                    ledger.deliver(consumer, group, number, asked_at)
                    ledger.held[group] = consumer, asked_at + LEASE_MS / 1000
                for message in (pulled or {}).get("messages", ()):  # type: ignore[attr-defined]
                    group, number = message["payload"]
                    ledger.maybe_acked.add((group, number))
                    ledger.held.pop(group, None)  # the next message may be delivered before the response arrives
                    acked = await post("/ack", {"receiptId": message["receiptId"]})
                    if acked is not None:
                        ledger.acked[group].append(number)

        consumers = [asyncio.create_task(consume(number)) for number in range(CONSUMERS)]
        publishing = asyncio.create_task(publish())
        for kill in range(KILLS):
            target = (kill + 1) * MESSAGES // (KILLS + 2)
            await eventually(lambda target=target: ledger.done + len(ledger.faults) >= target, 300)  # type: ignore[misc]
            victims = running.worker_pids if kill % 3 else [running.engine_pid]
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
        await publishing

        async def is_drained() -> bool:
            if ledger.faults:
                return True
            result = await post("/pull", {"maxMessages": 1, "waitMs": 0, "visibilityTimeoutMs": 0})
            stats: dict[str, int] = {}
            try:
                async with session.get("/v1/queues/q") as answer:
                    stats = (await answer.json())["stats"] if answer.status == 200 else {}
            except (aiohttp.ClientError, TimeoutError):
                return False
            return result is not None and bool(stats) and stats["ready"] + stats["leased"] + stats["retrying"] == 0

        await eventually(is_drained, 600)
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    assert not ledger.faults, ledger.faults[:10]
    seen = {(group, number) for group, numbers in ledger.acked.items() for number in numbers} | ledger.maybe_acked
    assert seen == {(n % GROUPS, n // GROUPS) for n in range(MESSAGES)}
    for group, numbers in ledger.acked.items():
        assert len(numbers) == len(set(numbers)), f"a message of group {group} was acknowledged twice"
