"""Gateways, and workers: the stream objects of a process on their own connection."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway import Tenant
from tests.gateway_fixtures import both_paths, clock, gateway, second_gateway, tenant
from tests.streams.readers import Stream
from tests.streams.workers import OpenWorker, Worker, open_worker

__all__ = ["both_paths", "clock", "gateway", "second_gateway", "tenant"]


@pytest.fixture
async def new_worker(engine_url: str) -> AsyncIterator[OpenWorker]:
    """Opens workers, which are closed after the test."""
    opened: list[Worker] = []

    async def open_one() -> Worker:
        opened.append(await open_worker(engine_url))
        return opened[-1]

    yield open_one
    for worker in opened:
        await worker.close()


@pytest.fixture
async def worker(new_worker: OpenWorker) -> Worker:
    return await new_worker()


@pytest.fixture
async def other(new_worker: OpenWorker) -> Worker:
    """A second worker that shares only the server with the first."""
    return await new_worker()


@pytest.fixture
async def stream(tenant: Tenant) -> Stream:
    """A stream that does not exist yet, with the tenant's key."""
    return Stream(tenant.client, "/v1/stream/some/stream")
