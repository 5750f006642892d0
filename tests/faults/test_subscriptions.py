"""kill -9 of every process while messages of a topic are pushed: each is delivered at least once, in order per key, and again
after a kill at most."""

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import aiohttp

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.subscriptions.receiver import Receiver, receiving
from tests.waiting import eventually

MESSAGES = 600
KEYS = 5
KILLS = 5


class Publisher:
    """Publishes until it has been answered for all messages; a message without an answer is sent again with its key."""

    def __init__(self, running: Installation) -> None:
        self._running = running
        self.acknowledged: dict[int, int] = {}  # number of the message to its sequence

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            for number in range(MESSAGES):
                await eventually(lambda number=number: self._publish(session, number), 120)  # type: ignore[misc]

    async def _publish(self, session: aiohttp.ClientSession, number: int) -> bool:
        message = {"subject": f"key.{number % KEYS}", "payload": number, "idempotencyKey": f"n{number}"}
        try:
            async with session.post(
                f"{self._running.url}/v1/topics/orders/messages", json=message, headers=self._running.headers
            ) as answer:
                if answer.status == 201:
                    self.acknowledged[number] = (await answer.json())["sequence"]
                return answer.status == 201
        except (aiohttp.ClientError, TimeoutError):
            return False


async def _call(running: Installation, method: str, path: str, body: Any) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, running.url + path, json=body, headers=running.headers) as answer,
    ):
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def _kill_at_times(running: Installation, receiver: Receiver) -> None:
    """The delivery process, the engine, a gateway, all of them, and the delivery process again."""
    for step in range(1, KILLS + 1):
        due = MESSAGES * step // (KILLS + 2)
        await eventually(lambda due=due: len(set(receiver.sequences)) >= due, 120)  # type: ignore[misc]
        await eventually(lambda: len(running.background_pids) == 2 and running.children("nats-server") and running.worker_pids)
        delivery, engine = running.background_pids[1:], running.children("nats-server")
        everything = [*running.worker_pids, *running.background_pids, *engine]
        for pid in {1: delivery, 2: engine, 3: running.worker_pids[:1], 4: everything}.get(step, delivery):
            os.kill(pid, signal.SIGKILL)


async def test_each_message_is_delivered_through_kills(install: Install) -> None:
    running = await install(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8").start().ready()
    async with receiving() as receiver:
        await _call(running, "PUT", "/v1/topics/orders", {})
        subscription = {"delivery_type": "http_push", "url": receiver.url, "ordering": "key", "retryDelaysMs": [100]}
        await _call(running, "POST", "/v1/topics/orders/subscriptions", subscription)
        publisher = Publisher(running)
        await asyncio.gather(publisher.run(), _kill_at_times(running, receiver))
        assert len(publisher.acknowledged) == MESSAGES
        await eventually(lambda: set(receiver.sequences) >= set(publisher.acknowledged.values()), 120)

    first_deliveries: dict[str, list[int]] = {}
    seen: set[int] = set()
    for one in receiver.received:
        if one.sequence not in seen:
            seen.add(one.sequence)
            first_deliveries.setdefault(one.headers["x-mq-published-subject"], []).append(one.sequence)
    assert all(sequences == sorted(sequences) for sequences in first_deliveries.values())
    assert max(Counter(receiver.sequences).values()) <= 1 + KILLS
    assert sorted(Counter(one.body for one in receiver.received)) == sorted(str(number).encode() for number in range(MESSAGES))
