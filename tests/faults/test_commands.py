"""kill -9 of anything while a service sends commands: each one that got a response has one outcome event, and is in the queue."""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import pytest

from postroad.client.command_signer import NewCommand, envelope
from postroad.jetstream.connection import Connection
from tests.faults.conftest import Install
from tests.gateway import events_of
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 16


def kill_engine(running: Installation) -> None:
    os.kill(running.engine_pid, signal.SIGKILL)


def kill_worker(running: Installation) -> None:
    os.kill(running.worker_pids[0], signal.SIGKILL)


class Senders:
    """Clients that send commands, each again with the same envelope until it is accepted."""

    def __init__(self, running: Installation, secret: str) -> None:
        self._running, self._secret, self._next = running, secret, 0
        self.accepted: dict[str, str] = {}  # message id by command id
        self.other_statuses: Counter[int] = Counter()

    async def send(self, stop: asyncio.Event) -> None:
        headers = {**self._running.headers, "X-Postroad-Service": "sender", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(self._running.url, headers=headers, timeout=timeout) as session:
            while not stop.is_set():
                self._next += 1
                command = NewCommand(target="bot", name="post", payload=self._next)
                await self._send_once(session, command.id, envelope(command, self._secret, "hmac-v1"), stop)

    async def _send_once(self, session: aiohttp.ClientSession, command_id: str, body: bytes, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with session.post("/v1/commands", data=body) as answer:
                    if answer.status == 202:
                        self.accepted[command_id] = (await answer.json())["messageId"]
                        return
                    if answer.status == 400:  # the engine was away for so long that the timestamp has left the window
                        return
                    self.other_statuses[answer.status] += 1
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.02)


async def register(running: Installation) -> str:
    """Returns the secret of the sender."""
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:

        async def put(path: str, **body: object) -> None:
            async with session.put(path, json=body) as answer:
                assert answer.status in (200, 201), await answer.text()

        async with session.get("/v1/whoami") as answer:
            key_id = (await answer.json())["keyId"]
        await put("/v1/services/sender", trustedKeys=[key_id])
        await put("/v1/services/bot")
        await put("/v1/queues/bot", maxAttempts=5)
        await put("/v1/routes/bot/post", queue="bot")
        await put("/v1/grants/bot/post/sender")
        async with session.get("/v1/tenant-config") as answer:
            secret: str = (await answer.json())["services"][0]["secrets"][0]["secret"]
            return secret


async def delivered_messages(running: Installation) -> set[str]:
    found: set[str] = set()
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        cursor = ""
        while True:
            async with session.get(f"/v1/queues/bot/messages?limit=1000{cursor}") as answer:
                assert answer.status == 200, await answer.text()
                page = await answer.json()
            found |= {one["messageId"] for one in page["messages"]}
            if page["nextCursor"] is None:
                return found
            cursor = f"&cursor={page['nextCursor']}"


async def outcome_events(running: Installation) -> list[dict[str, Any]]:
    connection = Connection(running.engine)
    await connection.open()
    try:
        found = await events_of(connection, "COMMANDS", "default")
    finally:
        await connection.close()
    return [one for one in found if one["event"].startswith("snavio.command.")]


@pytest.mark.parametrize("kill", [kill_engine, kill_worker])
async def test_each_answered_command_has_one_outcome_event_and_is_in_the_queue(
    install: Install, kill: Callable[[Installation], None]
) -> None:
    """Requirements 4, 175, 226"""
    running = await install().start().ready()
    senders, stop = Senders(running, await register(running)), asyncio.Event()
    working = [asyncio.create_task(senders.send(stop)) for _ in range(CLIENTS)]
    await eventually(lambda: len(senders.accepted) > 100)
    for _ in range(2):
        kill(running)
        more = len(senders.accepted) + 150
        await eventually(partial(lambda count: len(senders.accepted) > count, more), 60)
    stop.set()
    await asyncio.gather(*working)

    events: dict[str, set[str]] = defaultdict(set)
    for event in await outcome_events(running):
        assert event["event"] == "snavio.command.delivered", event
        events[event["command_id"]].add(event["event_id"])
    assert all(len(events[command_id]) == 1 for command_id in senders.accepted)
    assert set(senders.accepted.values()) <= await delivered_messages(running)
    assert set(senders.other_statuses) <= {502, 503}
