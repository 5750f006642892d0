"""kill -9 of engine and workers while clients write to a bucket: every acknowledged revision is there afterwards."""

import asyncio
from collections.abc import Callable
from functools import partial

import aiohttp
import pytest

from tests.faults.conftest import Install
from tests.faults.test_topics import kill_all, kill_engine
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 16
BUCKET = "/v1/buckets/cart"


@pytest.mark.parametrize("kill", [kill_engine, kill_all])
async def test_every_acknowledged_value_survives_kill_9(install: Install, kill: Callable[[Installation], None]) -> None:
    running = await install().start().ready()
    acknowledged: dict[int, int] = {}
    stop = asyncio.Event()

    async def write(session: aiohttp.ClientSession, client: int) -> None:
        number = client
        while not stop.is_set():
            try:
                async with session.put(f"{BUCKET}/keys/n.{number}", data=str(number)) as answer:
                    if answer.status == 200:
                        acknowledged[number] = (await answer.json())["revision"]
                        number += CLIENTS
                        continue
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.02)

    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        async with session.post("/v1/buckets", json={"name": "cart"}) as answer:
            assert answer.status == 201
        writing = [asyncio.create_task(write(session, client)) for client in range(CLIENTS)]
        await eventually(lambda: len(acknowledged) > 100)
        kill(running)
        await eventually(partial(lambda count: len(acknowledged) > count, len(acknowledged) + 100), 60)
        stop.set()
        await asyncio.gather(*writing)
        found: dict[int, int] = {}
        cursor = ""
        while True:
            async with session.get(f"{BUCKET}/keys?limit=1000{cursor}") as answer:
                page = await answer.json()
            found |= {int(one["key"].removeprefix("n.")): one["revision"] for one in page["entries"]}
            if "nextCursor" not in page:
                break
            cursor = f"&cursor={page['nextCursor']}"
    assert {number: found.get(number) for number in acknowledged} == acknowledged
