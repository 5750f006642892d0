"""kill -9 of anything while clients publish to a topic: what was acknowledged is there afterwards, once, with its sequence."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import pytest

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 32
TOPIC = "/v1/topics/orders"


def kill_engine(running: Installation) -> None:
    os.kill(running.engine_pid, signal.SIGKILL)


def kill_worker(running: Installation) -> None:
    os.kill(running.worker_pids[0], signal.SIGKILL)


def kill_all(running: Installation) -> None:
    for pid in (*running.worker_pids, *running.background_pids, running.engine_pid):
        os.kill(pid, signal.SIGKILL)


class Publishers:
    """Clients that publish distinct numbers, each again with its key until it is acknowledged."""

    def __init__(self, running: Installation) -> None:
        self._running, self._next = running, 0
        self.acknowledged: dict[int, int] = {}  # sequence by number
        self.sent: set[int] = set()
        self.other_statuses: Counter[int] = Counter()

    async def publish(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(self._running.url, headers=self._running.headers, timeout=timeout) as session:
            while not stop.is_set():
                self._next += 1
                await self._publish_once(session, self._next, stop)

    async def _publish_once(self, session: aiohttp.ClientSession, number: int, stop: asyncio.Event) -> None:
        body = {"subject": f"number.{number % 7}", "payload": number, "idempotencyKey": str(number)}
        self.sent.add(number)
        while not stop.is_set():
            try:
                async with session.post(f"{TOPIC}/messages", json=body) as answer:
                    if answer.status == 201:
                        self.acknowledged[number] = (await answer.json())["sequence"]
                        return
                    self.other_statuses[answer.status] += 1
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.02)


async def stored(running: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        while True:
            async with session.get(f"{TOPIC}/messages?limit=1000{cursor}") as answer:
                assert answer.status == 200, await answer.text()
                page = await answer.json()
            found += page["messages"]
            if page["nextCursor"] is None:
                return found
            cursor = f"&cursor={page['nextCursor']}"


@pytest.mark.parametrize("kill", [kill_engine, kill_worker, kill_all])
async def test_every_acknowledged_message_survives_kill_9_once(install: Install, kill: Callable[[Installation], None]) -> None:
    running = await install().start().ready()
    publishers, stop = Publishers(running), asyncio.Event()
    working = [asyncio.create_task(publishers.publish(stop)) for _ in range(CLIENTS)]
    await eventually(lambda: len(publishers.acknowledged) > 200)
    for _ in range(2):
        kill(running)
        more = len(publishers.acknowledged) + 300
        await eventually(partial(lambda count: len(publishers.acknowledged) > count, more), 60)
    stop.set()
    await asyncio.gather(*working)

    messages = await stored(running)
    assert [one["sequence"] for one in messages] == list(range(1, len(messages) + 1)), "no gaps"
    sequences = {one["payload"]: one["sequence"] for one in messages}
    assert len(sequences) == len(messages), "none twice"
    assert set(sequences) <= publishers.sent
    assert {number: sequences.get(number) for number in publishers.acknowledged} == publishers.acknowledged
    assert set(publishers.other_statuses) <= {502, 503}


async def test_a_killed_creation_or_deletion_leaves_a_usable_topic(install: Install) -> None:
    running = await install().start().ready()
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:

        async def change(method: str) -> None:
            try:
                async with session.request(method, TOPIC, json={} if method == "PUT" else None) as answer:
                    await answer.read()
            except aiohttp.ClientError:
                return

        async def is_usable() -> bool:
            try:
                async with session.put(TOPIC, json={}) as answer:
                    if answer.status not in (200, 201):
                        return False
                async with session.post(f"{TOPIC}/messages", json={"subject": "a", "payload": 1}) as answer:
                    return answer.status == 201
            except aiohttp.ClientError:
                return False

        for round_number in range(6):
            pending = [asyncio.create_task(change(method)) for method in ("PUT", "DELETE") * 2]
            await asyncio.sleep(0.004 * round_number)
            kill_worker(running)
            await asyncio.gather(*pending)
            await eventually(is_usable, 60)
