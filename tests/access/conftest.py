"""Gateways for the tests of this folder."""

from collections.abc import AsyncIterator

import pytest

from postroad.container import Role
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.gateway_fixtures import clock, gateway, second_gateway, tenant

__all__ = ["clock", "control", "gateway", "second_gateway", "tenant"]


@pytest.fixture(scope="session")
async def control(engine_url: str) -> AsyncIterator[Gateway]:
    """A process of the role `all` beside the two gateways. It runs background jobs, such as the deletion of tenants."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running
