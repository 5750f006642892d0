"""The gateway as pytest fixtures; a folder's conftest imports those that its tests use."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway

_running: dict[str, Gateway] = {}


@asynccontextmanager
async def _shared(name: str, engine_url: str) -> AsyncIterator[Gateway]:
    """Each folder that imports a fixture has it anew, but the gateway behind them is one. Who started it leaves last."""
    if name in _running:
        yield _running[name]
        return
    async with running_gateway(gateway_settings(engine_url)) as running:
        _running[name] = running
        yield running
    del _running[name]


@pytest.fixture(scope="session")
async def gateway(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway that many tests share."""
    async with _shared("first", engine_url) as running:
        yield running


@pytest.fixture(scope="session")
async def second_gateway(engine_url: str) -> AsyncIterator[Gateway]:
    """Another gateway on the same engine, as a second worker would be."""
    async with _shared("second", engine_url) as running:
        yield running


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    """A fresh tenant whose key may do everything."""
    return await gateway.tenant()


@pytest.fixture
def clock(gateway: Gateway) -> Iterator[ShiftedClock]:
    """The gateway's clock, which a test may move."""
    yield gateway.clock
    gateway.clock.ahead_ms = 0
