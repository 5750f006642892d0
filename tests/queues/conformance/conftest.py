"""Each test of this folder runs with queues of both backends, through two gateways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.configuration import Secret
from postroad.kernel.ids import new_request_id
from postroad.queues.capability import QueuesCapability
from postroad.queues.rabbitmq.backend import RabbitBackend
from postroad.queues.rabbitmq.broker_dead_letters import BrokerDeadLetters
from postroad.queues.rabbitmq.connection import RabbitConnection
from postroad.queues.rabbitmq.outbox import OutboxPublisher
from postroad.queues.records import ENGINE, RABBITMQ
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.gateway_fixtures import second_gateway
from tests.rabbitmq_server import RabbitServer, is_installed, needs_rabbitmq

__all__ = ["second_gateway"]
PREFIX = "tests"


@pytest.fixture(scope="session")
async def gateway(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway that also runs tasks, such as redrives."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


@pytest.fixture(scope="session")
async def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RabbitServer]:
    """The RabbitMQ that the tests of one worker share."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"))
    try:
        if is_installed():
            await asyncio.to_thread(server.start)  # seconds, during which the gateways run
        yield server
    finally:
        await asyncio.to_thread(server.stop)


@dataclass
class Rabbit:
    """The backend of a gateway, and the mover of what RabbitMQ dead-letters."""

    backend: RabbitBackend
    dead_letters: BrokerDeadLetters
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.backend.close()


async def attach(gateway: Gateway, url: str) -> Rabbit:
    """Give a gateway queues in RabbitMQ."""
    platform = gateway.node.platform
    queues = platform.use(QueuesCapability)
    rabbit = RabbitConnection([Secret(url)])
    backend = RabbitBackend(
        platform.connection,
        platform.committers,
        rabbit,
        queues.backend.engine,
        queues.table,
        queues.lease_log,
        platform.outbox,
        platform.clock,
        prefix=PREFIX,
        owner=bytes.fromhex(new_request_id()),
        held_max=1000,
        marker_ttl_ms=3_600_000,
    )
    dead_letters = BrokerDeadLetters(rabbit, queues.table, queues.dead_letters, platform.outbox, platform.clock, prefix=PREFIX)
    queues.backend.others[RABBITMQ] = backend
    publisher = OutboxPublisher(platform.connection, queues.table, backend)
    tasks = [asyncio.create_task(backend.routing.run()), asyncio.create_task(publisher.run())]
    return Rabbit(backend, dead_letters, tasks)


@dataclass
class Case:
    """A tenant with queues of one backend, seen through two gateways."""

    backend: str
    tenant: Tenant
    elsewhere: Tenant
    rabbit: Rabbit | None
    other_rabbit: Rabbit | None
    url: str
    created: list[str] = field(default_factory=list)

    async def queue(self, name: str = "q", **settings: object) -> str:
        lifecycle = self.tenant.gateway.node.platform.use(QueuesCapability).lifecycle
        lifecycle.new_backend = self.backend
        try:
            self.created.append(await self.tenant.queue(name, **settings))
            return self.created[-1]
        finally:
            lifecycle.new_backend = ENGINE

    async def delete(self) -> None:
        for queue in self.created:
            (await self.tenant.client.delete(queue)).ok(204)

    async def nack(self, queue: str, message: dict[str, Any], action: str, **more: object) -> Any:
        body = {"receiptId": message["receiptId"], "action": action, **more}
        return (await self.tenant.client.post(f"{queue}/nack", body)).ok()

    async def dead(self, queue: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.tenant.client.get(f"{queue}/dlq")).ok()["messages"]
        return found

    async def stats(self, queue: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.tenant.client.get(queue)).ok()["stats"]
        return found


@asynccontextmanager
async def attached(gateways: list[Gateway], url: str) -> AsyncIterator[list[Rabbit]]:
    rabbits = [await attach(one, url) for one in gateways]
    try:
        yield rabbits
    finally:
        for one, rabbit in zip(gateways, rabbits, strict=True):
            one.node.platform.use(QueuesCapability).backend.others.pop(RABBITMQ, None)
            with contextlib.suppress(Exception):
                await rabbit.stop()


_BACKENDS = [ENGINE, pytest.param(RABBITMQ, marks=needs_rabbitmq)]


@pytest.fixture(params=_BACKENDS)
async def case(
    request: pytest.FixtureRequest, gateway: Gateway, second_gateway: Gateway, rabbit_server: RabbitServer
) -> AsyncIterator[Case]:
    tenant = await gateway.tenant()
    elsewhere = second_gateway.seen_by(tenant)
    if request.param == ENGINE:
        yield Case(ENGINE, tenant, elsewhere, None, None, "")
        return
    async with attached([gateway, second_gateway], rabbit_server.url) as [first, second]:
        made = Case(RABBITMQ, tenant, elsewhere, first, second, rabbit_server.url)
        yield made
        await made.delete()


@pytest.fixture
async def rabbit_case(rabbit_server: RabbitServer, gateway: Gateway, second_gateway: Gateway) -> AsyncIterator[Case]:
    tenant = await gateway.tenant()
    async with attached([gateway, second_gateway], rabbit_server.url) as [first, second]:
        made = Case(RABBITMQ, tenant, second_gateway.seen_by(tenant), first, second, rabbit_server.url)
        yield made
        await made.delete()
