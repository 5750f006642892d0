from collections.abc import AsyncIterator

import pytest

from postroad.container import Role
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.http.schemathesis_run import PARTS, SETTINGS, schemathesis
from tests.servers import Server

pytestmark = pytest.mark.slow


@pytest.fixture
async def own_gateway(own_server: Server) -> AsyncIterator[Gateway]:
    """On a separate engine, since the requests change everything, including platform settings."""
    async with running_gateway(gateway_settings(own_server.url, **SETTINGS), Role.ALL) as running:
        yield running


@pytest.mark.timeout(300)  # thousands of requests, on a machine that may be busy with other tests
@pytest.mark.parametrize("part", PARTS)
async def test_every_operation_of_a_tenant_conforms_to_the_document(own_gateway: Gateway, part: str) -> None:
    outcome = await schemathesis(own_gateway, is_platform=False, examples=5, is_same_each_time=True, part=part)
    assert outcome.code == 0, outcome.output


@pytest.mark.timeout(300)
async def test_every_operation_of_the_platform_conforms_to_the_document(own_gateway: Gateway) -> None:
    outcome = await schemathesis(own_gateway, is_platform=True, examples=5, is_same_each_time=True)
    assert outcome.code == 0, outcome.output
