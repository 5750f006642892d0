"""A collector, and a node with all roles that traces to it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.container import Role
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.receiver import Receiver, receiving
from tests.tracing.collector import Collector, collecting


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of this folder: nodes of other tests with all roles would deliver, too, without spans."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine")))
    try:
        yield server.start().url
    finally:
        server.stop()


@pytest.fixture(scope="session")
async def session_collector() -> AsyncIterator[Collector]:
    async with collecting() as running:
        yield running


@pytest.fixture(scope="session")
async def node(engine_url: str, session_collector: Collector) -> AsyncIterator[Gateway]:
    settings = gateway_settings(
        engine_url,
        outbound_allow="127.0.0.0/8",
        otel_exporter_otlp_endpoint=session_collector.url,
        otel_traces_sampler="parentbased_always_off",
        otel_bsp_schedule_delay=50,
        otel_resource_attributes="deployment.environment.name=test",
    )
    async with running_gateway(settings, Role.ALL) as running:
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """A collector of one test."""
    async with collecting() as running:
        yield running


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
