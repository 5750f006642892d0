"""kill -9 of anything while clients publish: what was acknowledged is there afterwards, once."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable

import aiohttp
import msgspec
import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 64


def kill_engine(running: Installation) -> None:
    os.kill(running.engine_pid, signal.SIGKILL)


def kill_worker(running: Installation) -> None:
    os.kill(running.worker_pids[0], signal.SIGKILL)


def kill_both(running: Installation) -> None:
    kill_worker(running)
    kill_engine(running)


class Publishers:
    """Clients that publish distinct numbers and remember which were acknowledged."""

    def __init__(self, running: Installation) -> None:
        self._running = running
        self._next = 0
        self.acknowledged: set[int] = set()
        self.refused: Counter[int] = Counter()

    async def publish(self, stop: asyncio.Event) -> None:
        url = f"{self._running.url}/v1/queues/orders/messages"
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(headers=self._running.headers, timeout=timeout) as session:
            while not stop.is_set():
                self._next += 1
                number = self._next
                try:
                    async with session.post(url, json={"payload": number}) as answer:
                        if answer.status == 201:
                            self.acknowledged.add(number)
                        else:
                            self.refused[answer.status] += 1
                except (aiohttp.ClientError, TimeoutError):
                    await asyncio.sleep(0.01)


async def stored_numbers(running: Installation) -> Counter[int]:
    connection = Connection(running.engine)
    await connection.open()
    found: Counter[int] = Counter()
    try:
        position = 1
        while True:
            page = await stream_reader.read(connection, "Q_default__orders", "q.default.orders.ready", position, 1000)
            found.update(msgspec.json.decode(entry.payload)["payload"] for entry in page.entries)
            position = page.next_sequence
            if page.is_end:
                return found
    finally:
        await connection.close()


@pytest.mark.parametrize("kill", [kill_engine, kill_worker, kill_both])
async def test_every_acknowledged_message_survives_kill_9_once(install: Install, kill: Callable[[Installation], None]) -> None:
    running = await install().start().ready()
    publishers = Publishers(running)
    stop = asyncio.Event()
    clients = [asyncio.create_task(publishers.publish(stop)) for _ in range(CLIENTS)]
    try:
        for kills in range(1, 4):
            await eventually(lambda wanted=kills * 300: len(publishers.acknowledged) >= wanted)  # type: ignore[misc]
            kill(running)
            before = len(publishers.acknowledged)
            await eventually(lambda wanted=before + 100: len(publishers.acknowledged) >= wanted)  # type: ignore[misc]
    finally:
        stop.set()
        await asyncio.gather(*clients)
    await running.ready()

    stored = await stored_numbers(running)

    assert publishers.acknowledged <= stored.keys(), f"lost: {sorted(publishers.acknowledged - stored.keys())[:10]}"
    assert [number for number, count in stored.items() if count > 1] == []
    assert "store_damaged" not in running.log()
    assert set(publishers.refused) <= {503}, [line for line in running.log().splitlines() if "crashed" in line][:3]
