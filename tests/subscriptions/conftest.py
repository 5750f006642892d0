"""A node that serves the API and delivers, and a receiver."""

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.subscriptions.receiver import Receiver, receiving

LOOPBACK = "127.0.0.0/8"


@pytest.fixture(scope="session")
async def node(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, outbound_allow=LOOPBACK), Role.ALL) as running:
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "node" in request.fixturenames:
        request.getfixturevalue("node").clock.ahead_ms = 0
