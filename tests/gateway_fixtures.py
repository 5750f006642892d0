"""Gateways as pytest fixtures; the conftest of a folder imports those that its tests use."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway

_running: dict[str, Gateway] = {}


@asynccontextmanager
async def _shared(name: str, engine_url: str) -> AsyncIterator[Gateway]:
    """Folders that import a fixture have their own instance, but share one gateway. The instance that started it stops it."""
    if name in _running:
        yield _running[name]
        return
    async with running_gateway(gateway_settings(engine_url)) as running:
        _running[name] = running
        yield running
    del _running[name]


@pytest.fixture(scope="session")
async def gateway(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway that tests share."""
    async with _shared("first", engine_url) as running:
        yield running


@pytest.fixture(scope="session")
async def second_gateway(engine_url: str) -> AsyncIterator[Gateway]:
    """Another gateway on the same engine, as a second worker would be."""
    async with _shared("second", engine_url) as running:
        yield running


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    """A new tenant with a key of all scopes."""
    return await gateway.tenant()


@pytest.fixture
def clock(gateway: Gateway) -> Iterator[ShiftedClock]:
    """The clock of the gateway, which tests can move."""
    yield gateway.clock
    gateway.clock.ahead_ms = 0


@pytest.fixture(params=["callbacks", "handlers"])
def both_paths(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[str]:
    """Serve ordinary requests of busy routes with callbacks, then as all others in a task by their handlers."""
    app = gateway.node.app
    app.has_callbacks = request.param == "callbacks"
    yield request.param
    app.has_callbacks = True
