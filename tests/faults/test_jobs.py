"""kill -9 of every process while jobs with unique keys are published, cancelled and retried: none is doubled, none returns."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

KEYS = 6


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


KILLS: tuple[Callable[[Installation], None], ...] = (
    lambda running: kill(*running.worker_pids),
    lambda running: kill(running.engine_pid),
    lambda running: kill(*running.worker_pids, *running.background_pids, running.engine_pid),
)


async def test_unique_keys_and_cancellations_survive_kill_9(install: Install) -> None:
    running = await install().start().ready()
    cancelled: set[str] = set()
    is_over = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(running.url, headers=running.headers, timeout=timeout) as session:

        async def post(path: str, body: object) -> tuple[int, Any]:
            """A request that may fail with its worker or its engine."""
            try:
                async with session.post(path, json=body) as answer:
                    return answer.status, await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                return 0, None

        async with session.put("/v1/queues/orders", json={}) as answer:
            assert answer.status == 201

        async def publish(number: int) -> None:
            while not is_over.is_set():
                key = f"k-{number % KEYS}"
                number += 1
                body = {"payload": key, "uniqueKey": key, "delayMs": 3_600_000 if number % 3 == 0 else 0}
                status, published = await post("/v1/queues/orders/messages", body)
                if status == 201 and number % 2 == 0:
                    status, _ = await post(f"/v1/jobs/{published['jobId']}/cancel", {})
                    if status == 200:
                        cancelled.add(published["jobId"])
                await asyncio.sleep(0.01)

        publishers = [asyncio.create_task(publish(number)) for number in range(4)]
        for one in KILLS:
            count = len(cancelled)
            one(running)
            await eventually(lambda count=count: len(cancelled) > count + 5, 90)  # type: ignore[misc]
        is_over.set()
        await asyncio.gather(*publishers)

        async def messages(state: str) -> list[dict[str, Any]]:
            async with session.get(f"/v1/queues/orders/messages?state={state}&limit=1000") as answer:
                found: list[dict[str, Any]] = (await answer.json())["messages"]
                return found

        left = [*await messages("ready"), *await messages("delayed")]
        assert max(Counter(message["payload"] for message in left).values(), default=0) <= 1
        assert not cancelled & {message["jobId"] for message in left}
        for job_id in sorted(cancelled)[-20:]:
            async with session.get(f"/v1/jobs/{job_id}") as answer:
                assert (await answer.json())["status"] == "cancelled"
