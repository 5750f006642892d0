"""Delayed messages arrive, none of them early, also across a restart of the engine, and a slow one never delays a fast one.

`DELAYED=1000 SPREAD_MS=30000 pytest tests/queues/test_delays.py --timeout 600 -s` is the long run: it prints how late they were.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from postroad.api.queues import RABBITMQ
from postroad.kernel.clock import now_ms
from postroad.kernel.configuration import Secret
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import gateway_settings, running_gateway
from tests.rabbitmq_server import BACKENDS, RabbitServer
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = int(os.environ.get("DELAYED", "400"))
SPREAD_MS = int(os.environ.get("SPREAD_MS", "2000"))
SHORTEST_MS, LEAD_MS = 100, 1500
BATCH, LATE_SECONDS_MAX = 100, 60


def restarted(server: Server) -> Server:
    server.stop()
    return Server(server.settings).start(60)


@pytest.mark.parametrize("has_restart", [False, True], ids=["steady", "restarted"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_delayed_messages_are_delivered_and_none_early(tmp_path: Path, backend: str, has_restart: bool) -> None:
    server, rabbit = Server(EmbeddedServerSettings(tmp_path, sync="always")).start(60), RabbitServer(tmp_path / "rabbitmq")
    chance, shortest_ms = random.Random(7), LEAD_MS if has_restart else SHORTEST_MS
    late_ms: list[int] = []
    try:
        if backend == RABBITMQ:
            await asyncio.to_thread(rabbit.start)
        async with running_gateway(gateway_settings(server.url, rabbitmq_url=Secret(rabbit.url))) as gateway:
            tenant = await gateway.tenant()
            queue = await tenant.queue(backend=backend)
            # The slowest are published first: each of the others has slower ones before it.
            delays = sorted((shortest_ms + chance.randrange(SPREAD_MS) for _ in range(COUNT)), reverse=True)

            async def publish() -> None:
                for first in range(0, COUNT, BATCH):
                    now = now_ms()
                    batch = [{"payload": now + delay, "delayMs": delay} for delay in delays[first : first + BATCH]]
                    (await tenant.client.post(f"{queue}/messages/batch", {"messages": batch})).ok()

            publishing, is_restarted = asyncio.create_task(publish()), False
            async with asyncio.timeout((LEAD_MS + SPREAD_MS) / 1000 + LATE_SECONDS_MAX):
                while len(late_ms) < COUNT:
                    if has_restart and not is_restarted and len(late_ms) >= COUNT // 2:
                        server, is_restarted = await asyncio.to_thread(restarted, server), True
                    pulled = await tenant.pull(queue, 100, waitMs=1000, visibilityTimeoutMs=600_000)
                    late_ms += [now_ms() - message["payload"] for message in pulled]
                await publishing
    finally:
        await asyncio.to_thread(rabbit.stop)
        server.stop()
    late_ms.sort()
    print(f"{backend}: {COUNT} delays of {shortest_ms} to {shortest_ms + SPREAD_MS} ms; {late_ms[0]} to {late_ms[-1]} ms late,")
    print(f"99 % at most {late_ms[COUNT * 99 // 100 - 1]} ms, {sum(one > 1000 for one in late_ms)} more than a second")
    assert late_ms[0] >= -2, "the clocks of the gateway and of the engine differ by less"
