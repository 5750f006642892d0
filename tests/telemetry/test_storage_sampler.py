"""What is told of what tenants have stored."""

import asyncio
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms
from postroad.telemetry import storage_sampler
from postroad.telemetry.outbox import Outbox
from postroad.telemetry.storage_sampler import StorageSampler
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import OpenConnection, Server
from tests.waiting import eventually


class Watcher:
    def __init__(self, gateway: Gateway, *tenants: Tenant, connection: Connection | None = None) -> None:
        self.connection, self.outbox = (
            connection or gateway.node.platform.connection,
            Outbox(gateway.node.platform.committers, now_ms),
        )
        self.tenants = [tenant.id for tenant in tenants]
        self.sampler = StorageSampler(self.connection, self.outbox, lambda: self.tenants)
        self.sampler.count(("Q", "D", "S"))

    async def tell(self) -> None:
        await self.sampler.tell()
        await self.outbox.drain()


async def told(tenant: Tenant) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("TELEMETRY") if one["event"] == "storage.sampled"]


async def append(tenant: Tenant, stream: str) -> None:
    headers = {"Content-Type": "text/plain"}
    assert (await tenant.client.call("PUT", f"/v1/stream/{stream}", headers=headers)).status in (200, 201)
    (await tenant.client.call("POST", f"/v1/stream/{stream}", headers=headers, data=b"x" * 1000)).ok(204)


async def stored(connection: Connection, *streams: str) -> tuple[int, int]:
    infos = [await stream_info(connection, name) for name in streams]
    return sum(one.state.bytes for one in infos if one), sum(one.state.messages for one in infos if one)


async def test_all_that_a_tenant_has_is_added_up(gateway: Gateway, tenant: Tenant) -> None:
    watcher = Watcher(gateway, tenant)
    for name in ("a", "b_c"):
        queue = await tenant.queue(name)
        for number in range(3):
            await tenant.publish(queue, number)
    [message] = await tenant.pull(queue)
    (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq"})).ok()
    for stream in ("one", "two/three", "two"):
        await append(tenant, stream)
    await watcher.tell()
    [found] = await told(tenant)
    names = (f"Q_{tenant.id}__a", f"Q_{tenant.id}__b_uc", f"D_{tenant.id}", f"S_{tenant.id}")
    assert (found["bytes"], found["messages"]) == await stored(watcher.connection, *names)
    assert (found["queues"], found["streams"]) == (2, 3)
    assert found["messages"] == 6 + 6 and found["bytes"] > 3000


async def test_streams_are_counted_as_they_come_and_go(gateway: Gateway, tenant: Tenant) -> None:
    watcher = Watcher(gateway, tenant)
    await append(tenant, "a")
    await watcher.tell()
    await append(tenant, "b")
    await append(tenant, "b")
    await watcher.tell()
    (await tenant.client.delete("/v1/stream/a")).ok(204)
    await watcher.tell()
    assert [one["streams"] for one in await told(tenant)] == [1, 2, 1]


async def test_one_pass_is_for_all_tenants(
    gateway: Gateway, open_connection: OpenConnection, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [await gateway.tenant() for _ in range(5)]
    for tenant in tenants:
        await append(tenant, "a")
    connection = await open_connection(engine_url)  # its own: other parts of the gateway ask too
    watcher = Watcher(gateway, *tenants, connection=connection)
    api, asked = Connection.api, list[str]()

    async def noting(self: Connection, call: str, *more: Any, **others: Any) -> bytes:
        asked.extend([call] if self is connection else [])
        return await api(self, call, *more, **others)

    monkeypatch.setattr(Connection, "api", noting)
    await watcher.tell()
    pages = asked.count("STREAM.LIST")
    assert sorted(call for call in asked if call != "STREAM.LIST") == sorted(f"STREAM.INFO.S_{one.id}" for one in tenants)
    await append(tenants[0], "a")
    asked.clear()
    await watcher.tell()
    assert [call for call in asked if call != "STREAM.LIST"] == [f"STREAM.INFO.S_{tenants[0].id}"], "what has changed alone"
    assert asked.count("STREAM.LIST") <= pages + 1
    assert [len(await told(one)) for one in tenants] == [2] * 5


async def test_who_has_nothing_is_not_told_of_and_who_has_nothing_any_more_once(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    watcher = Watcher(gateway, tenant, other)
    await append(tenant, "a")
    await watcher.tell()
    await gateway.node.platform.connection.api(f"STREAM.DELETE.S_{tenant.id}")
    for _ in range(3):
        await watcher.tell()
    assert [(one["bytes"], one["messages"], one["streams"]) for one in (await told(tenant))[1:]] == [(0, 0, 0)]
    assert await told(other) == []


async def test_of_a_deleted_tenant_nothing_is_told(gateway: Gateway, tenant: Tenant) -> None:
    watcher = Watcher(gateway, tenant)
    await append(tenant, "a")
    await watcher.tell()
    watcher.tenants = []
    await watcher.tell()
    assert len(await told(tenant)) == 1


async def test_the_control_role_tells_every_while_and_a_sample_counts_for_the_time_before_it(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage_sampler.EVERY_SECONDS == 60
    monkeypatch.setattr(StorageSampler.__init__, "__kwdefaults__", {"seconds": 0.3})
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        await append(tenant, "a")

        async def two() -> list[dict[str, Any]]:
            found = await told(tenant)
            return found if len(found) > 1 else []

        found = await eventually(two, 10)
        assert all(one["seconds"] >= 0.3 for one in found)
        assert sum(one["seconds"] for one in found) <= loop.time() - started
        assert [one["streams"] for one in found] == [1] * len(found)
