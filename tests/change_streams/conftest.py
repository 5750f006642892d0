"""A node that serves the API, copies change streams and delivers, on an engine of its own."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway import Gateway, Tenant
from tests.subscriptions.conftest import engine_url, node, receiver

__all__ = ["engine_url", "node", "receiver"]


@pytest.fixture(scope="session")
async def gateway(node: Gateway) -> AsyncIterator[Gateway]:
    yield node


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    return await gateway.tenant()
