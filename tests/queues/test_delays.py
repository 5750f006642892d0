"""Delayed messages are delivered on time, none early, also across a restart of the NATS server.

`DELAYED=10000 SPREAD_MS=30000 pytest tests/queues/test_delays.py --timeout 300` is the long run.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from postroad.kernel.clock import now_ms
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import gateway_settings, running_gateway
from tests.servers import Server

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("DELAYED", "400"))
SPREAD_MS = int(os.environ.get("SPREAD_MS", "4000"))
LEAD_MS = 2000


async def test_delayed_messages_are_delivered_on_time_and_none_early(tmp_path: Path) -> None:
    server = Server(EmbeddedServerSettings(tmp_path, sync="always")).start()
    chance = random.Random(7)
    async with running_gateway(gateway_settings(server.url)) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue()
        started = now_ms()
        offsets = [LEAD_MS + chance.randrange(SPREAD_MS) for _ in range(COUNT)]
        for first in range(0, COUNT, 500):
            some = offsets[first : first + 500]
            batch = []
            for offset in some:
                delay = max(1, started + offset - now_ms())
                batch.append({"payload": now_ms() + delay, "delayMs": delay})
            (await tenant.client.post(f"{queue}/messages/batch", {"messages": batch})).ok()
        restart_at = started + LEAD_MS + SPREAD_MS // 2
        is_restarted = False
        late: list[int] = []
        early: list[int] = []
        seen = 0
        while seen < COUNT:
            if not is_restarted and now_ms() >= restart_at:
                await asyncio.to_thread(server.stop)
                server = Server(server.settings)
                await asyncio.to_thread(server.start)
                is_restarted = True
            for message in await tenant.pull(queue, 500, waitMs=1000, visibilityTimeoutMs=600_000):
                seen += 1
                off = now_ms() - message["payload"]
                (early if off < -2 else late).append(off)
            assert now_ms() < started + LEAD_MS + SPREAD_MS + 20_000, f"{seen} of {COUNT} were delivered"
    server.stop()
    assert early == []
    assert max(late) < 10_000, "includes the restart, on a busy machine"
    assert sorted(late)[len(late) * 9 // 10] < 1000
