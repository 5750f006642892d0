"""kill -9 of gateways and of the engine while messages of noisy groups are deferred and moved back: nothing is lost, and nothing
that was acknowledged comes back.

`POSTROAD_TEST_FAIR=50000` runs it with that many messages.
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

MESSAGES = int(os.environ.get("POSTROAD_TEST_FAIR", "3000"))
CONSUMERS, KILLS, NOISY, QUIET = 12, 6, 3, 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


async def test_deferred_messages_survive_kill_9(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="3").start().ready(120)
    rng = random.Random(63)
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    done: dict[int, float] = {}  # when the ack was answered
    lost_answers: set[int] = set()  # perhaps only the response to the ack was lost
    faults: list[str] = []
    copies: dict[int, set[str]] = {}  # messages that were published again, since the response was lost
    async with aiohttp.ClientSession(running.url, headers=running.headers, timeout=timeout, connector=connector) as session:

        async def send(path: str, body: object) -> tuple[int, dict[str, object]]:
            """Status 0 if there was no response."""
            try:
                async with session.post(f"/v1/queues/q{path}", json=body) as answer:
                    return answer.status, await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                return 0, {}

        async def post(path: str, body: object) -> dict[str, object] | None:
            """None if it did not succeed, or perhaps not."""
            status, answer = await send(path, body)
            return answer if status in (200, 201) else None

        async with session.put("/v1/queues/q", json={"maxAttempts": 0, "retryDelaysMs": [0]}) as answer:
            assert answer.status == 201

        def message(number: int) -> dict[str, object]:
            kind = number % (NOISY * 3 + QUIET)
            group = f"noisy-{kind % NOISY}" if kind < NOISY * 3 else f"quiet-{kind}"
            return {"payload": number, "groupId": group, "idempotencyKey": str(number)}

        async def publish() -> None:
            for start in range(0, MESSAGES, 100):
                messages = [message(number) for number in range(start, min(start + 100, MESSAGES))]
                while True:
                    result = await post("/messages/batch", {"messages": messages})
                    if result is not None and result["failed"] == 0:
                        break
                    await asyncio.sleep(0.1)

        async def consume() -> None:
            while True:  # also messages whose ack had no response, which come again after their lease
                asked_at = time.monotonic()
                body = {"maxMessages": rng.choice((1, 5, 10)), "waitMs": 1000, "visibilityTimeoutMs": 10_000}
                pulled = await post("/pull", body)
                received_at = time.monotonic()
                for one in (pulled or {}).get("messages", ()):  # type: ignore[attr-defined]
                    number = one["payload"]
                    copies.setdefault(number, set()).add(one["messageId"])
                    if done.get(number, asked_at) < asked_at:
                        faults.append(f"{number} was acknowledged and came back")
                    sent_at = time.monotonic()
                    status, _ = await send("/ack", {"receiptId": one["receiptId"]})
                    if status == 200:
                        done[number] = time.monotonic()
                    elif not 400 <= status < 500 or sent_at <= received_at + 10:
                        lost_answers.add(number)

        consumers = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
        publishing = asyncio.create_task(publish())
        for kill in range(KILLS):
            target = (kill + 1) * MESSAGES // (KILLS + 2)
            await eventually(lambda target=target: len(done) + len(faults) >= target, 300)  # type: ignore[misc]
            victims = running.worker_pids if kill % 3 else [running.engine_pid]
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
        await publishing

        async def is_drained() -> bool:
            try:
                async with session.get("/v1/queues/q") as answer:
                    stats = (await answer.json())["stats"] if answer.status == 200 else {}
            except (aiohttp.ClientError, TimeoutError):
                return False
            return bool(stats) and stats["ready"] + stats["leased"] + stats["retrying"] == 0

        await eventually(is_drained, 300)
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    assert not faults, faults[:10]
    assert done.keys() | lost_answers == set(range(MESSAGES))
    assert all(len(ids) == 1 for ids in copies.values()), "a message exists twice"
