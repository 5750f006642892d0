"""kill -9 of workers and of the engine while senders saturate a route with a limit and strict deduplication."""

import asyncio
import os
import signal
import time
from collections import Counter

import aiohttp
import pytest

from postroad.client.command_signer import NewCommand, envelope
from tests.faults.conftest import Install
from tests.faults.test_commands import register
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 12
MAX, BURST = 60, 30


async def limited(running: Installation) -> str:
    """Returns the secret of the sender."""
    secret = await register(running)
    body = {"queue": "bot", "dedupe_mode": "strict", "rate_limit": {"max": MAX, "interval_seconds": 1, "burst": BURST}}
    async with (
        aiohttp.ClientSession(running.url, headers=running.headers) as session,
        session.put("/v1/routes/bot/post", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
    return secret


async def stored_ids(running: Installation) -> list[str]:
    """The command ids of all messages in the queue."""
    found: list[str] = []
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        cursor = ""
        while True:
            async with session.get(f"/v1/queues/bot/messages?limit=1000{cursor}") as answer:
                assert answer.status == 200, await answer.text()
                page = await answer.json()
            found += [one["headers"]["Snavio-Command-Id"] for one in page["messages"]]
            if page["nextCursor"] is None:
                return found
            cursor = f"&cursor={page['nextCursor']}"


@pytest.mark.parametrize("workers", [2, 3])
async def test_no_run_of_intervals_exceeds_the_limit_and_no_id_is_delivered_twice(install: Install, workers: int) -> None:
    """Requirements 113, 130: nothing acknowledged is lost, each id is in the queue once, and the limit holds."""
    running = await install(POSTROAD_WORKERS=str(workers)).start().ready()
    secret = await limited(running)
    accepted: set[str] = set()
    statuses: Counter[int] = Counter()
    stop = asyncio.Event()

    async def send() -> None:
        headers = {**running.headers, "X-Postroad-Service": "sender", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(running.url, headers=headers, timeout=aiohttp.ClientTimeout(total=20)) as session:
            while not stop.is_set():
                command = NewCommand(target="bot", name="post", payload=1)
                while not stop.is_set():  # the same id, signed again, until it is accepted
                    try:
                        async with session.post("/v1/commands", data=envelope(command, secret, "hmac-v1")) as answer:
                            statuses[answer.status] += 1
                            if answer.status in (200, 202):
                                accepted.add(command.id)
                                break
                    except (aiohttp.ClientError, TimeoutError):
                        pass
                    await asyncio.sleep(0.01)

    started = time.time()
    working = [asyncio.create_task(send()) for _ in range(CLIENTS)]
    await eventually(lambda: len(accepted) > 2 * MAX, 60)
    for kill in ("worker", "engine", "worker"):
        os.kill(running.engine_pid if kill == "engine" else running.worker_pids[0], signal.SIGKILL)
        more = len(accepted) + MAX
        await eventually(lambda more=more: len(accepted) > more, 60)  # type: ignore[misc]
    stop.set()
    await asyncio.gather(*working)
    intervals = int(time.time()) - int(started) + 1

    stored = await stored_ids(running)
    assert len(stored) == len(set(stored)), "no id twice"
    assert accepted <= set(stored), "nothing acknowledged is lost"
    assert len(stored) <= intervals * MAX + BURST, "the limit holds over the whole run"
    assert statuses[429] > 0 and set(statuses) <= {200, 202, 429, 502, 503}
