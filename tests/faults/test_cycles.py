"""Publish, pull, ack, over and over by 32 clients, while workers and the engine are killed: nothing is lost, nothing whose ack
was answered comes back, and counts and jobs add up.

`CYCLES=50000 pytest tests/faults/test_cycles.py --timeout 900` is the long run.
"""

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import aiohttp

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 32
CYCLES = int(os.environ.get("CYCLES", "3000"))
KILLS = 4
LEASE_MS = 10_000
QUEUE = "/v1/queues/cycles"


class Cyclers:
    """Clients that share one queue; what they saw is what the test knows."""

    def __init__(self, running: Installation) -> None:
        self._running = running
        self._next = 0
        self.published: set[int] = set()
        self.processed: Counter[int] = Counter()
        self.acked: set[str] = set()
        self.came_back: list[str] = []
        self.refused: Counter[int] = Counter()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._cycle())

    async def _cycle(self) -> None:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(self._running.url, headers=self._running.headers, timeout=timeout) as session:
            while self._next < CYCLES:
                self._next += 1
                await self._publish(session, self._next)
                await self._work(session, 2)

    async def _publish(self, session: aiohttp.ClientSession, number: int) -> None:
        """Until it is acknowledged: the key makes repeating it harmless."""
        while number not in self.published:
            if await self._call(session, "messages", {"payload": number, "idempotencyKey": str(number)}) is not None:
                self.published.add(number)

    async def _work(self, session: aiohttp.ClientSession, count: int) -> int:
        known = set(self.acked)  # what comes after this was asked for and is in it, has come back
        pulled = await self._call(session, "pull", {"maxMessages": count, "visibilityTimeoutMs": LEASE_MS})
        messages = [] if pulled is None else pulled["messages"]
        for message in messages:
            self.came_back += [message["messageId"]] if message["messageId"] in known else []
            self.processed[message["payload"]] += 1
            if await self._ack(session, message["receiptId"]):
                self.acked.add(message["messageId"])
        return len(messages)

    async def _ack(self, session: aiohttp.ClientSession, receipt: str) -> bool:
        """Repeated when its answer was lost, as the SDK does: whether it was carried out only the answer tells."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEASE_MS / 1000
        while loop.time() < until:
            if await self._call(session, "ack", {"receiptId": receipt}) is not None:
                return True
        return False

    async def _call(self, session: aiohttp.ClientSession, what: str, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            async with session.post(f"{QUEUE}/{what}", json=body) as answer:
                if answer.status in (200, 201):
                    found: dict[str, Any] = await answer.json()
                    return found
                self.refused[answer.status] += 1
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(0.02)
        return None

    async def drain(self) -> None:
        """Until the queue is empty: leases of those that were killed run out first."""
        async with aiohttp.ClientSession(self._running.url, headers=self._running.headers) as session:

            async def is_empty() -> bool:
                while await self._work(session, 100):
                    pass
                async with session.get(QUEUE) as answer:
                    stats = (await answer.json()).get("stats", {})
                return bool(stats.get("ready") == stats.get("leased") == stats.get("delayed") == 0)

            await eventually(is_empty, 60)

    async def done_jobs(self) -> int:
        async with aiohttp.ClientSession(self._running.url, headers=self._running.headers) as session:
            count, cursor = 0, ""
            while True:
                async with session.get(f"/v1/jobs?queue=cycles&status=done&limit=1000{cursor}") as answer:
                    page = await answer.json()
                    assert answer.status == 200, page
                count += len(page["jobs"])
                if page["nextCursor"] is None:
                    return count
                cursor = f"&cursor={page['nextCursor']}"


async def kill_at_times(running: Installation, cyclers: Cyclers) -> None:
    """A worker, the engine, control and delivery, and a worker again, spread over the run."""
    for number in range(1, KILLS + 1):
        due = CYCLES * number // (KILLS + 1)
        await eventually(lambda due=due: len(cyclers.published) >= due, 600)  # type: ignore[misc]
        victims = {2: [running.engine_pid], 3: running.background_pids}
        for pid in victims.get(number, running.worker_pids[:1]):
            os.kill(pid, signal.SIGKILL)


async def test_nothing_is_lost_or_comes_back_through_kills(install: Install) -> None:
    running = await install().start().ready()
    cyclers = Cyclers(running)
    async with asyncio.TaskGroup() as both:
        both.create_task(cyclers.run())
        both.create_task(kill_at_times(running, cyclers))
    await cyclers.drain()
    assert cyclers.published == set(range(1, CYCLES + 1))
    assert set(cyclers.processed) == cyclers.published, "every message was processed"
    assert cyclers.came_back == [], "none whose ack was answered came back"
    assert set(cyclers.refused) <= {409, 503}, "the rest was refused as the docs say"

    async def adds_up() -> bool:
        return await cyclers.done_jobs() == CYCLES

    await eventually(adds_up)
