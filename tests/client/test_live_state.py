"""Live state with both clients."""

import asyncio
from contextlib import aclosing, closing
from itertools import islice

import pytest

from postroad.client import AsyncPostroad, Postroad
from postroad.client.errors import Forbidden
from tests.client.conftest import Sdk
from tests.gateway import Gateway, Tenant


async def test_the_state_and_its_changes_are_followed(tenant: Tenant) -> None:
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        await client.queues.put("orders")
        async with aclosing(client.live_state.follow("queues:orders", "tasks")) as updates:
            first = await anext(updates)
            assert first.kind == "snapshot" and first.message.sections["queues"].rows["orders"]["ready"] == 0
            await client.queues.publish("orders", 1)
            async for update in updates:
                rows = update.message.sections["queues"].rows
                if "orders" in rows and rows["orders"]["ready"] == 1:
                    break


async def test_the_synchronous_client_follows(gateway: Gateway, tenant: Tenant) -> None:
    def follow() -> list[str]:
        with Postroad(tenant.client.url, tenant.key) as client, closing(client.live_state.follow("health")) as updates:
            return [one.kind for one in islice(updates, 1)]

    assert await asyncio.to_thread(follow) == ["snapshot"]
    async with (
        AsyncPostroad(gateway.url, gateway.admin_key) as client,
        aclosing(client.live_state.follow("tenants", platform=True)) as updates,
    ):
        assert tenant.id in (await anext(updates)).message.sections["tenants"].rows
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        with pytest.raises(Forbidden):
            await anext(client.live_state.follow("tenants", platform=True))


async def test_the_topology_is_shown_to_the_platform(platform: Sdk) -> None:
    assert (await platform("live_state.topology")).streams_total > 0
