"""Gateways for the tests of this folder, and both clients on them behind one face."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.client import AsyncPostroad, Postroad
from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.gateway_fixtures import clock, gateway, tenant

__all__ = ["anonymous", "clock", "control", "gateway", "kind", "opened", "platform", "sdk", "tenant"]

Sdk = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client: every test that takes one of the fixtures below runs with both."""
    return str(request.param)


@pytest.fixture(scope="session")
async def control(engine_url: str) -> AsyncIterator[Gateway]:
    """A process of the role `all` beside the gateway: it carries tasks out, and answers for jobs."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


@pytest.fixture
async def sdk(kind: str, tenant: Tenant) -> AsyncIterator[Sdk]:
    """The client of a fresh tenant's key that may do everything."""
    async with opened(kind, tenant.client.url, tenant.key) as call:
        yield call


@pytest.fixture
async def platform(kind: str, gateway: Gateway) -> AsyncIterator[Sdk]:
    async with opened(kind, gateway.url, gateway.admin_key) as call:
        yield call


@pytest.fixture
async def anonymous(kind: str, gateway: Gateway) -> AsyncIterator[Sdk]:
    async with opened(kind, gateway.url, anonymous=True) as call:
        yield call


@asynccontextmanager
async def opened(kind: str, *args: Any, **kwargs: Any) -> AsyncIterator[Sdk]:
    """`await sdk("queues.publish", …)` calls that method of the synchronous client, in a thread, or of the asynchronous one."""
    if kind == "sync":
        with Postroad(*args, **kwargs) as waiting:

            async def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
                def execute() -> Any:
                    result = _method(waiting, name)(*args, **kwargs)
                    return list(result) if isinstance(result, Iterator) else result

                return await asyncio.to_thread(execute)

            yield call
        return
    async with AsyncPostroad(*args, **kwargs) as awaited:

        async def call_async(name: str, /, *args: Any, **kwargs: Any) -> Any:
            result = _method(awaited, name)(*args, **kwargs)
            return [item async for item in result] if isinstance(result, AsyncIterator) else await result

        yield call_async


def _method(client: object, name: str) -> Any:
    for part in name.split("."):
        client = getattr(client, part)
    return client
