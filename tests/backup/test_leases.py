"""Leases of the installation that was backed up end with the restore."""

import asyncio

from postroad.backup.leases import end_leases
from tests.gateway import gateway_settings, running_gateway
from tests.servers import OpenConnection, Server
from tests.waiting import eventually


async def test_a_lease_that_was_ended_stays_so_after_a_restart(own_server: Server, open_connection: OpenConnection) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue("orders", maxAttempts=9)
        for number in range(3):
            await tenant.publish(queue, number)
        first, done = await tenant.pull(queue, 2, visibilityTimeoutMs=3_600_000)
        (await tenant.ack(queue, done["receiptId"])).ok()
        connection = await open_connection(own_server.url)
        assert await end_leases(connection, f"Q_{tenant.id}__orders") == 1
        assert own_server.process is not None
        own_server.process.terminate()
        await asyncio.to_thread(own_server.process.wait, 30)
        own_server.start()
        found: dict[str, int] = {}

        async def has_both() -> bool:
            answer = await tenant.client.post(f"{queue}/pull", {"maxMessages": 5, "visibilityTimeoutMs": 3_600_000})
            if answer.status == 200:
                found.update({one["messageId"]: one["attempt"] for one in answer.json["messages"]})
            return len(found) == 2

        await eventually(has_both)
        assert found[first["messageId"]] == 2 and done["messageId"] not in found
