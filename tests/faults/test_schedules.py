"""kill -9 of every process while a schedule fires each second: no tick is lost, none is published twice."""

import os
import signal
from collections.abc import Callable
from datetime import datetime
from functools import partial

import aiohttp

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


KILLS: tuple[Callable[[Installation], None], ...] = (
    lambda running: kill(*running.background_pids),
    lambda running: kill(running.engine_pid),
    lambda running: kill(*running.worker_pids, *running.background_pids, running.engine_pid),
)


async def test_no_tick_is_lost_or_doubled_by_kill_9(install: Install) -> None:
    running = await install().start().ready()
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        async with session.put("/v1/queues/ticks", json={}) as answer:
            assert answer.status == 201
        settings = {"queue": "ticks", "everyMs": 1000, "catchUp": "all"}
        async with session.put("/v1/schedules/each-second", json=settings) as answer:
            assert answer.status == 201

        async def ticks() -> list[int]:
            try:
                async with session.get("/v1/queues/ticks/messages?limit=1000") as answer:
                    found = (await answer.json())["messages"] if answer.status == 200 else []
            except aiohttp.ClientError:
                return []
            times = [datetime.fromisoformat(one["headers"]["postroad-scheduled-at"]) for one in found]
            return [int(time.timestamp() * 1000) for time in times]

        async def has_ticks(count: int) -> bool:
            return len(await ticks()) >= count

        count = 2
        await eventually(partial(has_ticks, count))
        for one in KILLS:
            one(running)
            count += 3
            await eventually(partial(has_ticks, count), 60)
            count = len(await ticks())
        await running.stop(signal.SIGKILL)
        await running.start().ready()
        await eventually(partial(has_ticks, count + 2), 60)
        found = await ticks()

    assert found == list(range(found[0], found[0] + len(found) * 1000, 1000))
