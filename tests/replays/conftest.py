"""A node with all roles for the tests of this folder: it runs tasks."""

from collections.abc import AsyncIterator

import pytest

from postroad.platform import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway


@pytest.fixture(scope="session")
async def gateway(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    return await gateway.tenant()
