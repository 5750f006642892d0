"""Delayed messages arrive, none of them early, also across a restart of the engine.

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
SPREAD_MS = int(os.environ.get("SPREAD_MS", "2000"))
LEAD_MS = 1500


async def test_delayed_messages_are_delivered_across_a_restart_and_none_early(tmp_path: Path) -> None:
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
        is_restarted = False
        early: list[int] = []
        seen = 0
        async with asyncio.timeout((LEAD_MS + SPREAD_MS) / 1000 + 60):
            while seen < COUNT:
                if not is_restarted and seen >= COUNT // 2:
                    await asyncio.to_thread(server.stop)
                    server = Server(server.settings)
                    await asyncio.to_thread(server.start)
                    is_restarted = True
                for message in await tenant.pull(queue, 100, waitMs=1000, visibilityTimeoutMs=600_000):
                    seen += 1
                    if (off := now_ms() - message["payload"]) < -2:
                        early.append(off)
    server.stop()
    assert is_restarted and early == []
