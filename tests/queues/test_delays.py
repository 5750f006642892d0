"""Delayed messages arrive, none of them early, also across a restart of the engine or of RabbitMQ, and a slow one never delays a
fast one.

`DELAYED=1000 SPREAD_MS=30000 LATE_MS_MAX=1000 pytest tests/queues/test_delays.py --timeout 600 -s` is the long run, on a quiet
machine: it prints how late they were, and without a restart none may be later than that.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from postroad.api.queues import ENGINE, RABBITMQ
from postroad.kernel.clock import now_ms
from postroad.kernel.configuration import Secret
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import gateway_settings, running_gateway
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = int(os.environ.get("DELAYED", "400"))
SPREAD_MS = int(os.environ.get("SPREAD_MS", "2000"))
SHORTEST_MS, LEAD_MS = 100, 1500
BATCH, LATE_SECONDS_MAX = 100, 60
LATE_MS_MAX = int(os.environ.get("LATE_MS_MAX", "0"))  # 0: not checked

CASES = [
    pytest.param(ENGINE, "", id="engine-steady"),
    pytest.param(ENGINE, ENGINE, id="engine-restarted"),
    pytest.param(RABBITMQ, "", id="rabbitmq-steady", marks=needs_rabbitmq),
    pytest.param(RABBITMQ, ENGINE, id="rabbitmq-engine-restarted", marks=needs_rabbitmq),
    pytest.param(RABBITMQ, RABBITMQ, id="rabbitmq-restarted", marks=needs_rabbitmq),
]


def restarted(server: Server) -> Server:
    server.stop()
    return Server(server.settings).start(60)


@pytest.mark.parametrize(("backend", "restarts"), CASES)
async def test_delayed_messages_are_delivered_and_none_early(tmp_path: Path, backend: str, restarts: str) -> None:
    server, rabbit = Server(EmbeddedServerSettings(tmp_path, sync="always")).start(60), RabbitServer(tmp_path / "rabbitmq")
    chance, shortest_ms = random.Random(7), LEAD_MS if restarts else SHORTEST_MS
    late_ms: list[int] = []
    seen: set[str] = set()
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
                    if restarts and not is_restarted and len(late_ms) >= COUNT // 2:
                        is_restarted = True
                        if restarts == ENGINE:
                            server = await asyncio.to_thread(restarted, server)
                        else:
                            await asyncio.to_thread(rabbit.restart)
                    wanted = {"maxMessages": 100, "waitMs": 1000, "visibilityTimeoutMs": 600_000}
                    response = await tenant.client.post(f"{queue}/pull", wanted)
                    assert response.status == 200 or (is_restarted and response.status == 503), response.body
                    for message in response.json.get("messages", []):
                        if message["messageId"] not in seen:  # a restart of RabbitMQ ends the leases
                            seen.add(message["messageId"])
                            late_ms.append(now_ms() - message["payload"])
                await publishing
    finally:
        await asyncio.to_thread(rabbit.stop)
        server.stop()
    late_ms.sort()
    print(f"{backend}: {COUNT} delays of {shortest_ms} to {shortest_ms + SPREAD_MS} ms; {late_ms[0]} to {late_ms[-1]} ms late,")
    print(f"99 % at most {late_ms[COUNT * 99 // 100 - 1]} ms, {sum(one > 1000 for one in late_ms)} more than a second")
    assert late_ms[0] >= -2, "the clocks of the gateway and of the engine differ by less"
    assert restarts or not LATE_MS_MAX or late_ms[-1] <= LATE_MS_MAX
