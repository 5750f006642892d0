"""The stream `JOBS` on the shared engine, a way to send events to it, and projections that are stopped after the test."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from postroad.governance.audit import audit_stream
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.jobs.archive import Budget, JobArchive
from postroad.jobs.capability import JobsCapability
from postroad.jobs.projection import Projection
from postroad.jobs.rpc import JobsRpcClient
from postroad.jobs.service import JobService
from postroad.kernel.clock import now_ms
from postroad.kernel.event import Event
from postroad.queues.capability import QueuesCapability
from postroad.regions.capability import RegionsCapability
from postroad.telemetry.frames import frame_streams
from postroad.telemetry.outbox import Outbox
from tests.jobs.lifecycles import Lifecycle
from tests.platforms import platform_on


async def make_streams(connection: Connection) -> None:
    for spec in (*frame_streams(1), audit_stream(1)):
        await ensure_stream(connection, spec)


def outbox_on(connection: Connection) -> Outbox:
    return Outbox(Committers(connection, CommitPolicy(), WriteBufferLimit(256 * 1024 * 1024)), now_ms)


def jobs_on(connection: Connection, folder: Path, keep_days: int, budget: Budget | None = None) -> JobsCapability:
    """The capability on this connection, with its projection in `folder`."""
    platform = platform_on(connection, data_dir=folder, jobs_keep_days=keep_days)
    platform.add(RegionsCapability)
    platform.add(QueuesCapability)
    jobs = platform.add(JobsCapability)
    if budget is not None:
        jobs.archive = JobArchive(connection, now_ms, budget)
        jobs.service = JobService(JobsRpcClient(connection), jobs.archive)
    return jobs


async def send(outbox: Outbox, *events: Event) -> None:
    """Stored when this returns; events of many tenants go in frames of their own."""
    for tenant in sorted({event.tenant for event in events}):
        await outbox.commit(None, *(event for event in events if event.tenant == tenant))


@pytest.fixture
async def outbox(connection: Connection) -> Outbox:
    await make_streams(connection)
    return outbox_on(connection)


@pytest.fixture
def tenant_id() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def lifecycle(tenant_id: str) -> Callable[..., Lifecycle]:
    """Jobs of a fresh tenant, from now on."""

    def make(queue: str = "q", **more: object) -> Lifecycle:
        return Lifecycle(tenant_id, queue, t0=now_ms(), **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def background() -> AsyncIterator[Callable[[Awaitable[None]], "asyncio.Task[None]"]]:
    """Runs things until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    def start(work: Awaitable[None]) -> "asyncio.Task[None]":
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Background = Callable[[Awaitable[None]], "asyncio.Task[None]"]


@pytest.fixture
def following(connection: Connection, tmp_path: Path, background: Background) -> Callable[..., Projection]:
    """A projection that runs."""

    def start(folder: str = "jobs", on: Connection | None = None) -> Projection:
        projection = Projection(on or connection, now_ms, tmp_path / folder, 30, poll_seconds=0.1, sweep_seconds=0.05)
        background(projection.run())
        return projection

    return start
