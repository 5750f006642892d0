"""A node that serves the API and delivers, and a receiver."""

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.container import Role
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.receiver import Receiver, receiving

LOOPBACK = "127.0.0.0/8"


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of this folder: nodes of other tests with all roles would deliver, too, and may not call this machine."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine")))
    try:
        yield server.start().url
    finally:
        server.stop()


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
        clock = request.getfixturevalue("node").clock
        clock.ahead_ms, clock.frozen_ms = 0, None
