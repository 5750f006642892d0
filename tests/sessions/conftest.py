"""Gateways, and processes: the session objects of a gateway on their own connection."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway import ShiftedClock
from tests.gateway_fixtures import gateway, second_gateway, tenant
from tests.sessions.processes import OpenProcess, Process, open_process

__all__ = ["gateway", "second_gateway", "tenant"]


@pytest.fixture
def clock() -> ShiftedClock:
    """The clock of the processes, which a test may move."""
    return ShiftedClock()


@pytest.fixture
async def new_process(engine_url: str, name: str, clock: ShiftedClock) -> AsyncIterator[OpenProcess]:
    """Opens processes of one tenant, which are closed after the test."""
    opened: list[Process] = []

    async def open_one(url: str = engine_url, **more: Any) -> Process:
        opened.append(await open_process(url, name, clock, **more))
        return opened[-1]

    yield open_one
    for process in opened:
        await process.close()


@pytest.fixture
async def one(new_process: OpenProcess) -> Process:
    return await new_process()


@pytest.fixture
async def other(new_process: OpenProcess) -> Process:
    """A second gateway that shares only the server with the first."""
    return await new_process()
