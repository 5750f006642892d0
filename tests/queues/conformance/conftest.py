"""Each test of this folder runs with queues of both backends, through two gateways."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from postroad.api.queues import RABBITMQ
from postroad.container import Role
from postroad.kernel.configuration import Secret
from postroad.queues.capability import QueuesCapability
from postroad.queues.rabbitmq.receiving import QueueReceiver
from postroad.queues.rabbitmq.service import RabbitService
from postroad.queues.settings import QueuesSettings
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.settings import Settings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.rabbitmq_server import BACKENDS, RabbitServer, rabbit_server
from tests.servers import Server

__all__ = ["rabbit_server"]

PREFIX = "tests"


def rabbit_of(gateway: Gateway) -> RabbitService:
    found = gateway.node.platform.use(QueuesCapability).rabbit
    assert found is not None
    return found


def _settings(engine_url: str, rabbit: RabbitServer) -> Settings:
    return gateway_settings(engine_url, rabbitmq_url=Secret(rabbit.url), rabbitmq_prefix=PREFIX)


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of this folder: work of the leader, such as schedules, needs RabbitMQ, which gateways of other tests lack."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine"))).start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
async def gateway(engine_url: str, rabbit_server: RabbitServer) -> AsyncIterator[Gateway]:
    """A gateway that also runs tasks, such as redrives."""
    async with running_gateway(_settings(engine_url, rabbit_server), Role.ALL) as running:
        yield running


@pytest.fixture(scope="session")
async def second_gateway(engine_url: str, rabbit_server: RabbitServer) -> AsyncIterator[Gateway]:
    async with running_gateway(_settings(engine_url, rabbit_server)) as running:
        yield running


@pytest.fixture
async def third_gateway(engine_url: str, rabbit_server: RabbitServer) -> AsyncIterator[Gateway]:
    """One that a test can make unusable."""
    async with running_gateway(_settings(engine_url, rabbit_server)) as running:
        yield running


@dataclass
class Case:
    """A tenant with queues of one backend, seen through two gateways."""

    backend: str
    tenant: Tenant
    elsewhere: Tenant
    created: list[str] = field(default_factory=list)
    features: frozenset[str] = frozenset()

    def supports(self, feature: str) -> bool:
        """As the first queue of the case says. A test of an operation that is not supported expects its exact error."""
        assert self.features, "there is no queue yet"
        return feature in self.features

    async def queue(self, name: str = "q", **settings: object) -> str:
        self.created.append(await self.tenant.queue(name, backend=self.backend, **settings))
        if not self.features:
            self.features = frozenset((await self.tenant.client.get(self.created[-1])).ok()["features"])
        return self.created[-1]

    def receiver(self, name: str = "q") -> QueueReceiver:
        """That of the first gateway, for a queue in RabbitMQ."""
        wanted = f"{PREFIX}.{self.tenant.id}.{name}"
        [found] = [one for one in self.rabbit.backend.owned.receivers.values() if one.queue == wanted]
        return found

    @property
    def rabbit_url(self) -> str:
        url = self.tenant.gateway.settings.section(QueuesSettings).rabbitmq_url
        assert url is not None
        return url.reveal()

    @property
    def rabbit(self) -> RabbitService:
        return rabbit_of(self.tenant.gateway)

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


@pytest.fixture(params=BACKENDS)
async def case(request: pytest.FixtureRequest, gateway: Gateway, second_gateway: Gateway) -> AsyncIterator[Case]:
    async with _case(request.param, gateway, second_gateway) as made:
        yield made


@pytest.fixture
async def rabbit_case(gateway: Gateway, second_gateway: Gateway) -> AsyncIterator[Case]:
    async with _case(RABBITMQ, gateway, second_gateway) as made:
        yield made


@asynccontextmanager
async def _case(backend: str, gateway: Gateway, second_gateway: Gateway) -> AsyncIterator[Case]:
    tenant = await gateway.tenant()
    made = Case(backend, tenant, second_gateway.seen_by(tenant))
    yield made
    await made.delete()
