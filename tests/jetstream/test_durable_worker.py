"""Durable background work on real streams."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.jetstream.streams import new_message
from tests.servers import OpenConnection
from tests.waiting import eventually

from postroad.jetstream import durable_worker
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import DurableWorker, work_stream
from postroad.jetstream.management import ensure_stream, stream_info
from postroad.kernel.errors import EngineUnavailable

Handler = Callable[[str], Awaitable[object]]


class WorkQueue:
    """A work stream whose requests are `do <work>`."""

    def __init__(self, connection: Connection, committers: Committers, name: str) -> None:
        self.connection, self._committers, self.name = connection, committers, name
        self.spec = work_stream(name, name, 1)

    async def request(self, payload: str) -> None:
        await self._committers.of(self.name).append(new_message(f"{self.name}.request", payload.encode()))

    async def is_drained(self) -> bool:
        """All requests are removed. (The counts of a consumer are 0 for a moment when it is created.)"""
        info = await stream_info(self.connection, self.name)
        return info is not None and info.state.messages == 0

    @asynccontextmanager
    async def consuming(self, handler: Handler, connection: Connection | None = None) -> AsyncIterator[None]:
        worker = DurableWorker(connection or self.connection, self.spec, "worker", _decode)
        task = asyncio.create_task(worker.consume(handler))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _decode(payload: bytes) -> str | None:
    verb, _, work = payload.decode().partition(" ")
    return work if verb == "do" else None


@pytest.fixture
async def queue(connection: Connection, committers: Committers, name: str) -> WorkQueue:
    made = WorkQueue(connection, committers, name)
    await ensure_stream(connection, made.spec)
    return made


async def test_each_request_is_handled_and_removed(queue: WorkQueue) -> None:
    handled: list[str] = []

    async def handle(work: str) -> None:
        handled.append(work)

    async with queue.consuming(handle):
        for number in range(20):
            await queue.request(f"do {number}")
        await eventually(queue.is_drained)
    assert sorted(handled, key=int) == [str(number) for number in range(20)]


async def test_requests_for_the_same_work_are_handled_by_one_call(queue: WorkQueue) -> None:
    handled: list[str] = []

    async def handle(work: str) -> None:
        handled.append(work)

    for _ in range(5):
        await queue.request("do a")
    async with queue.consuming(handle):
        await eventually(queue.is_drained)
    assert handled == ["a"]


async def test_failed_work_is_retried(queue: WorkQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_worker, "_RETRY_MS", 30)
    attempts = 0

    async def handle(_work: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise EngineUnavailable("not yet")

    await queue.request("do a")
    async with queue.consuming(handle):
        await eventually(queue.is_drained)
    assert attempts == 3


async def test_an_invalid_request_is_dropped(queue: WorkQueue) -> None:
    handled: list[str] = []

    async def handle(work: str) -> None:
        handled.append(work)

    await queue.request("what?")
    await queue.request("do a")
    async with queue.consuming(handle):
        await eventually(queue.is_drained)
    assert handled == ["a"]


async def test_work_of_a_cancelled_worker_is_done_by_another(
    queue: WorkQueue, engine_url: str, open_connection: OpenConnection
) -> None:
    started = asyncio.Event()
    handled: list[str] = []

    async def block(_work: str) -> None:
        started.set()
        await asyncio.Event().wait()

    async def handle(work: str) -> None:
        handled.append(work)

    await queue.request("do a")
    async with queue.consuming(block):
        await asyncio.wait_for(started.wait(), 30)
    async with queue.consuming(handle, await open_connection(engine_url)):
        await eventually(queue.is_drained)
    assert handled == ["a"]
