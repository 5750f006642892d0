"""Samples of the storage of tenants."""

import asyncio
from typing import Any

import pytest

from postroad.container import Role, described_assembly
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms
from postroad.telemetry import storage_sampler
from postroad.telemetry.outbox import Outbox
from postroad.telemetry.storage_sampler import StorageSampler
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import OpenConnection, Server
from tests.waiting import eventually


class Sampling:
    def __init__(self, gateway: Gateway, *tenants: Tenant, connection: Connection | None = None) -> None:
        self.connection, self.outbox = (
            connection or gateway.node.platform.connection,
            Outbox(gateway.node.platform.committers, now_ms),
        )
        self.tenants = [tenant.id for tenant in tenants]
        self.sampler = StorageSampler(self.connection, self.outbox, lambda: self.tenants)
        self.sampler.set_kinds(described_assembly().resources)

    async def sample(self) -> None:
        await self.sampler.sample()
        await self.outbox.drain()


async def samples(tenant: Tenant) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("TELEMETRY") if one["event"] == "storage.sampled"]


async def append(tenant: Tenant, stream: str) -> None:
    headers = {"Content-Type": "text/plain"}
    assert (await tenant.client.call("PUT", f"/v1/stream/{stream}", headers=headers)).status in (200, 201)
    (await tenant.client.call("POST", f"/v1/stream/{stream}", headers=headers, data=b"x" * 1000)).ok(204)


async def stored(connection: Connection, *streams: str) -> tuple[int, int]:
    infos = [await stream_info(connection, name) for name in streams]
    return sum(one.state.bytes for one in infos if one), sum(one.state.messages for one in infos if one)


async def test_the_storage_of_a_tenant_is_the_sum_of_its_queues_and_streams(gateway: Gateway, tenant: Tenant) -> None:
    sampling = Sampling(gateway, tenant)
    for name in ("a", "b_c"):
        queue = await tenant.queue(name)
        for number in range(3):
            await tenant.publish(queue, number)
    [message] = await tenant.pull(queue)
    (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq"})).ok()
    for stream in ("one", "two/three", "two"):
        await append(tenant, stream)
    await sampling.sample()
    [found] = await samples(tenant)
    names = (f"Q_{tenant.id}__a", f"Q_{tenant.id}__b_uc", f"D_{tenant.id}", f"S_{tenant.id}")
    assert (found["bytes"], found["messages"]) == await stored(sampling.connection, *names)
    assert (found["queues"], found["streams"]) == (2, 3)
    per_stream = 3  # its record, its entry in the directory and the message
    assert found["messages"] == 6 + 3 * per_stream and found["bytes"] > 3000


async def test_created_and_deleted_streams_are_counted(gateway: Gateway, tenant: Tenant) -> None:
    sampling = Sampling(gateway, tenant)
    await append(tenant, "a")
    await sampling.sample()
    await append(tenant, "b")
    await append(tenant, "b")
    await sampling.sample()
    (await tenant.client.delete("/v1/stream/a")).ok(204)
    await sampling.sample()
    assert [one["streams"] for one in await samples(tenant)] == [1, 2, 1]


async def test_one_listing_covers_all_tenants_and_unchanged_streams_are_not_counted_again(
    gateway: Gateway, open_connection: OpenConnection, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [await gateway.tenant() for _ in range(5)]
    for tenant in tenants:
        await append(tenant, "a")
    connection = await open_connection(engine_url)  # a separate one: other parts of the gateway send requests, too
    sampling = Sampling(gateway, *tenants, connection=connection)
    api, requests = Connection.api, list[str]()

    async def recording(self: Connection, call: str, *more: Any, **others: Any) -> bytes:
        requests.extend([call] if self is connection else [])
        return await api(self, call, *more, **others)

    monkeypatch.setattr(Connection, "api", recording)
    await sampling.sample()
    pages = requests.count("STREAM.LIST")
    assert sorted(call for call in requests if call != "STREAM.LIST") == sorted(f"STREAM.INFO.S_{one.id}" for one in tenants)
    await append(tenants[0], "a")
    requests.clear()
    await sampling.sample()
    assert [call for call in requests if call != "STREAM.LIST"] == [f"STREAM.INFO.S_{tenants[0].id}"], "only the changed stream"
    assert requests.count("STREAM.LIST") <= pages + 1
    assert [len(await samples(one)) for one in tenants] == [2] * 5


async def test_a_tenant_without_storage_is_sampled_once_after_it_lost_its_storage(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    sampling = Sampling(gateway, tenant, other)
    await append(tenant, "a")
    await sampling.sample()
    await gateway.node.platform.connection.api(f"STREAM.DELETE.S_{tenant.id}")
    for _ in range(3):
        await sampling.sample()
    assert [(one["bytes"], one["messages"], one["streams"]) for one in (await samples(tenant))[1:]] == [(0, 0, 0)]
    assert await samples(other) == []


async def test_a_deleted_tenant_is_not_sampled(gateway: Gateway, tenant: Tenant) -> None:
    sampling = Sampling(gateway, tenant)
    await append(tenant, "a")
    await sampling.sample()
    sampling.tenants = []
    await sampling.sample()
    assert len(await samples(tenant)) == 1


async def test_the_control_role_samples_periodically_and_a_sample_covers_the_time_before_it(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage_sampler.INTERVAL_SECONDS == 60
    monkeypatch.setattr(StorageSampler.__init__, "__kwdefaults__", {"seconds": 0.3, "usage_seconds": 10.0})
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        await append(tenant, "a")

        async def two() -> list[dict[str, Any]]:
            found = await samples(tenant)
            return found if len(found) > 1 else []

        found = await eventually(two)
        assert all(one["seconds"] >= 0.3 for one in found)
        assert sum(one["seconds"] for one in found) <= loop.time() - started
        assert [one["streams"] for one in found] == [1] * len(found)
