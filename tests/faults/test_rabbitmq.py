"""kill -9 of gateways, of RabbitMQ and of the engine under a queue in RabbitMQ: nothing acknowledged is lost, no answered ack is
delivered again, counts and jobs add up.

`POSTROAD_TEST_RABBITMQ_SECONDS=120 pytest tests/faults/test_rabbitmq.py -s` is the long run.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.cluster import PLATFORM_KEY
from tests.faults.rabbitmq_load import QUEUE, RabbitLoad
from tests.installation import Installation
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq
from tests.servers import Server
from tests.waiting import eventually

SECONDS = float(os.environ.get("POSTROAD_TEST_RABBITMQ_SECONDS", "20"))
CLIENTS = 32
QUEUE_SECONDS_MIN = 15  # RabbitMQ 3.10 may lose a younger queue when it is killed: rabbitmq-server#10070
START_SECONDS = 300.0

pytestmark = [pytest.mark.slow, needs_rabbitmq, pytest.mark.timeout(1200 + 5 * SECONDS)]


@dataclass(frozen=True, slots=True)
class Deployment:
    engine: Server
    rabbit: RabbitServer
    gateways: list[Installation]

    async def kill(self, what: str) -> None:
        """Kill and, unless a supervisor does, start again."""
        if what == "rabbitmq":
            await asyncio.to_thread(self.rabbit.kill)
            await asyncio.to_thread(self.rabbit.start)
        elif what == "engine":
            await asyncio.to_thread(self.engine.kill)
            await asyncio.to_thread(self.engine.start, START_SECONDS)
        else:
            for pid in self.gateways[int(what[-1]) - 1].worker_pids:
                os.kill(pid, signal.SIGKILL)

    async def ready(self) -> None:
        for gateway in self.gateways:
            await gateway.ready(START_SECONDS)


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    engine, rabbit = Server(EmbeddedServerSettings(tmp_path / "engine", sync="always")), RabbitServer(tmp_path / "rabbitmq")
    made = Deployment(engine, rabbit, [])
    try:
        await asyncio.gather(asyncio.to_thread(engine.start, START_SECONDS), asyncio.to_thread(rabbit.start))
        given = {"POSTROAD_PLATFORM_KEY": PLATFORM_KEY, "POSTROAD_RABBITMQ_URL": rabbit.url, "POSTROAD_WORKERS": "1"}
        for number in (1, 2):
            home = tmp_path / f"gateway-{number}"
            home.mkdir()
            made.gateways.append(Installation(home, POSTROAD_NATS_URL=engine.url, **given))
            await made.gateways[-1].start().ready(START_SECONDS)
        yield made
    finally:
        for gateway in made.gateways:
            gateway.end()
        await asyncio.to_thread(rabbit.stop)
        engine.stop()


async def test_nothing_is_lost_or_repeated_when_parts_are_killed(deployment: Deployment) -> None:
    urls, headers = [one.url for one in deployment.gateways], deployment.gateways[0].headers
    load, chance = RabbitLoad(urls, headers, clients=CLIENTS), random.Random(30)
    order = ["gateway-1", "gateway-2", "rabbitmq", "engine"]
    killed: list[str] = []
    setup = RabbitLoad(urls, headers, clients=0)
    async with setup.running():  # before the first publish, which would create a queue of the default backend
        settings = {"backend": "rabbitmq", "maxAttempts": 0, "retryDelaysMs": [100]}
        await eventually(lambda: setup.call("PUT", QUEUE, settings), START_SECONDS)
    created_at = time.monotonic()
    async with load.running():
        await load.progresses(50, START_SECONDS)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or len(killed) < len(order):
            what = order[len(killed)] if len(killed) < len(order) else chance.choice(order)
            if what == "rabbitmq":
                await asyncio.sleep(max(0.0, created_at + QUEUE_SECONDS_MIN - time.monotonic()))
            await deployment.kill(what)
            killed.append(what)
            await load.progresses(20, START_SECONDS)
        await deployment.ready()
        await load.drained(START_SECONDS)
        await load.check()
        ledger = load.ledger
        print(f"killed {killed}; published {len(ledger.published)}, acked {len(ledger.acked)}, dead {len(ledger.dead)}")
        print(f"responses by status: {dict(ledger.statuses)}")
        # A worker that dies between a marker and its event leaves a job that the reconciler ends, after a minute without events.
        unended = await load.unended_jobs()
        print(f"jobs for the reconciler: {len(unended)}")
        if SECONDS >= 60:
            await eventually(lambda: _are_ended(load), 600)
        else:
            assert len(unended) <= len(killed) * CLIENTS


async def _are_ended(load: RabbitLoad) -> bool:
    return not await load.unended_jobs()


async def test_the_leases_of_a_dead_owner_return_soon(deployment: Deployment) -> None:
    first, second = deployment.gateways
    owner, other = (RabbitLoad([one.url], first.headers, clients=0) for one in (first, second))
    async with owner.running(), other.running():
        await eventually(lambda: owner.call("PUT", QUEUE, {"backend": "rabbitmq"}), START_SECONDS)
        await eventually(lambda: owner.call("POST", f"{QUEUE}/messages", {"payload": 1}), START_SECONDS)
        wanted = {"waitMs": 5000, "visibilityTimeoutMs": 600_000}
        [message] = await eventually(lambda: _pulled(owner, wanted), START_SECONDS)
        await deployment.kill("gateway-1")
        killed_at = time.monotonic()
        [again] = await eventually(lambda: _pulled(other, wanted), 60)
        print(f"the lease of the dead owner returned after {1000 * (time.monotonic() - killed_at):.0f} ms")
        assert (again["messageId"], again["attempt"]) == (message["messageId"], 2)
        assert await other.call("POST", f"{QUEUE}/ack", {"receiptId": message["receiptId"]}) is None
        assert other.ledger.statuses[409] == 1


async def _pulled(load: RabbitLoad, wanted: dict[str, int]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = ((await load.call("POST", f"{QUEUE}/pull", wanted)) or {}).get("messages", [])
    return messages
