"""A node of all roles whose load tests call its own port."""

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.container import Role
from postroad.loadtests.capability import LoadTestsCapability
from postroad.loadtests.runner import Address
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of this folder: other nodes with all roles would run the tasks, too."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine")))
    try:
        yield server.start().url
    finally:
        server.stop()


@pytest.fixture(scope="session")
async def node(engine_url: str) -> AsyncIterator[Gateway]:
    settings = gateway_settings(engine_url, loadtest_seconds_max=20, loadtest_rate_max=400, loadtest_consumers_max=4)
    async with running_gateway(settings, Role.ALL) as running:
        runner = running.node.platform.use(LoadTestsCapability).runner
        runner.address = lambda: Address.of(running.url, workers=1, is_local=True)
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()
