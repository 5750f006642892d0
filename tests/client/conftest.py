"""Gateways for the tests of this folder, and both clients on them behind one face."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from postroad.client import AsyncPostroad, Postroad
from tests.gateway import Tenant
from tests.gateway_fixtures import clock, gateway, tenant

__all__ = ["clock", "gateway", "sdk", "tenant"]

Sdk = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["sync", "async"])
async def sdk(request: pytest.FixtureRequest, tenant: Tenant) -> AsyncIterator[Sdk]:
    """`await sdk("queues.publish", …)` calls that method of the synchronous client, in a thread, or of the asynchronous one."""
    if request.param == "sync":
        with Postroad(tenant.client.url, tenant.key) as waiting:

            async def call(name: str, *args: Any, **kwargs: Any) -> Any:
                def carry_out() -> Any:
                    result = _method(waiting, name)(*args, **kwargs)
                    return list(result) if name.endswith(".list") else result

                return await asyncio.to_thread(carry_out)

            yield call
        return
    async with AsyncPostroad(tenant.client.url, tenant.key) as awaited:

        async def call_async(name: str, *args: Any, **kwargs: Any) -> Any:
            result = _method(awaited, name)(*args, **kwargs)
            return [item async for item in result] if name.endswith(".list") else await result

        yield call_async


def _method(client: object, name: str) -> Any:
    for part in name.split("."):
        client = getattr(client, part)
    return client
