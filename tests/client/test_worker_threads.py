"""The worker for plain functions, which run in threads that cannot be cancelled."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.client import AsyncPostroad, Message, Postroad
from postroad.client.worker import DeadLetter, Ended, LeaseLost, Retry, SyncWorker, current_lease, run_worker
from tests.client.test_worker import QUICK, left, outcomes, publish
from tests.gateway import ShiftedClock, Tenant
from tests.waiting import eventually


@pytest.fixture
async def client(tenant: Tenant) -> AsyncIterator[AsyncPostroad]:
    async with AsyncPostroad(tenant.client.url, tenant.key) as opened:
        await opened.queues.put("orders", retry_delays_ms=[0])
        yield opened


@asynccontextmanager
async def working(tenant: Tenant, handler: Callable[[Message], Any], **options: Any) -> AsyncIterator[list[Ended]]:
    """Run a worker in a thread during the block, and check that it stops."""
    ended: list[Ended] = []
    with Postroad(tenant.client.url, tenant.key) as client:
        worker = SyncWorker(client, "orders", handler, on_end=ended.append, **{**QUICK, **options})
        running = asyncio.create_task(asyncio.to_thread(worker.run))
        try:
            yield ended
        finally:
            worker.stop()
            async with asyncio.timeout(30):
                await running


async def test_plain_functions_run_in_threads(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 8)
    run_together = threading.Barrier(4)
    names: set[str] = set()

    def handle(message: Message) -> None:
        run_together.wait(5)  # passes only if four run at once
        names.add(threading.current_thread().name)

    async with working(tenant, handle, concurrency=4) as ended:
        await eventually(lambda: len(ended) == 8)
    assert set(outcomes(ended)) == {"done"}
    assert len(names) == 8 and all("orders" in name for name in names)
    assert await left(client) == 0


async def test_a_function_may_run_longer_than_the_lease(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 1)
    go, attempts = threading.Event(), list[int]()

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        lease, first = current_lease(), current_lease().until
        while lease.until < first + 3 * 0.6:
            lease.check()
            go.wait(0.01)

    async with working(tenant, handle, visibility_timeout_ms=600) as ended:
        await eventually(lambda: ended)
    assert (attempts, outcomes(ended)) == ([1], ["done"])


async def test_every_exception_of_a_function_costs_one_attempt(client: AsyncPostroad, tenant: Tenant) -> None:
    problems: list[BaseException] = [
        ValueError("plain"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        asyncio.CancelledError(),
        Retry(0, "again"),
        DeadLetter("never"),
    ]
    await publish(client, len(problems))

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise problems[message.payload]

    async with working(tenant, handle) as ended:
        await eventually(lambda: len(ended) == 2 * len(problems) - 1)
    assert sorted(outcomes(ended)) == ["dead"] + ["done"] * 6 + ["retried"] * 6
    assert {"ValueError: plain", "RuntimeError: the handler raised SystemExit(3)", "again"} <= {one.reason for one in ended}


async def test_check_raises_when_the_lease_is_lost(client: AsyncPostroad, tenant: Tenant, clock: ShiftedClock) -> None:
    await publish(client, 1)
    started, raised = threading.Event(), list[str]()

    def handle(message: Message) -> None:
        if message.attempt > 1:
            return
        started.set()
        try:
            while True:
                current_lease().check()
                threading.Event().wait(0.01)
        except LeaseLost as lost:
            raised.append(str(lost))
            raise

    async with working(tenant, handle, visibility_timeout_ms=1000) as ended:
        await eventually(started.is_set)
        clock.ahead_ms = 600_000
        await eventually(lambda: outcomes(ended)[:1] == ["lost"])
        clock.ahead_ms = 0
    assert "has ended" in raised[0]


async def test_a_thread_whose_lease_is_lost_counts_towards_the_concurrency(
    client: AsyncPostroad, tenant: Tenant, clock: ShiftedClock
) -> None:
    """Otherwise threads could accumulate."""
    await publish(client, 1)
    leases: list[Any] = []
    go = threading.Event()

    def handle(message: Message) -> None:
        leases.append(current_lease())
        go.wait(10)

    async with working(tenant, handle, visibility_timeout_ms=1000, concurrency=1) as ended:
        await eventually(lambda: leases)
        clock.ahead_ms = 600_000
        await eventually(lambda: leases[0].is_lost)
        clock.ahead_ms = 0
        assert ended == []
        go.set()
        await eventually(lambda: outcomes(ended)[:1] == ["lost"])


async def test_a_running_thread_does_not_keep_the_worker_from_ending(
    client: AsyncPostroad, tenant: Tenant, clock: ShiftedClock
) -> None:
    await publish(client, 1)
    leases: list[Any] = []
    endless = threading.Event()

    def handle(message: Message) -> None:
        leases.append(current_lease())
        endless.wait(30)

    async with working(tenant, handle, visibility_timeout_ms=1000, drain_seconds=0.1, cancel_seconds=0.2) as ended:
        await eventually(lambda: leases)
        clock.ahead_ms = 600_000
        await eventually(lambda: leases[0].is_lost)
        clock.ahead_ms = 0
    assert outcomes(ended) == ["lost"]  # without waiting for its function
    endless.set()


async def test_a_function_can_stop_its_worker(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 1)
    with Postroad(tenant.client.url, tenant.key) as own:
        worker = SyncWorker(own, "orders", lambda _message: worker.stop(), **QUICK)
        async with asyncio.timeout(30):
            await asyncio.to_thread(worker.run)
        worker.stop()
        again = SyncWorker(own, "orders", lambda _message: None, **QUICK)
        again.stop()
        await asyncio.to_thread(again.run)  # stopped before it started
    assert await left(client) == 0


async def test_run_worker_runs_a_worker(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 3)
    ended: list[Ended] = []
    with Postroad(tenant.client.url, tenant.key) as own:
        options: dict[str, Any] = {**QUICK, "once": True}
        await asyncio.to_thread(lambda: run_worker(own, "orders", lambda _message: None, on_end=ended.append, **options))
        with pytest.raises(ValueError, match="at least 1"):
            SyncWorker(own, "orders", print, concurrency=0)
    assert outcomes(ended) == ["done"] * 3


PROGRAM = """
import sys, threading
from postroad.client import Postroad
from postroad.client.worker import run_worker

def handle(message):
    print("started", flush=True)
    if message.payload == "quick":
        sys.stdin.readline()
    else:
        threading.Event().wait()
    print("finished", flush=True)

with Postroad() as postroad:
    run_worker(postroad, "orders", handle, drain_seconds=float(sys.argv[1]), cancel_seconds=1)
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("payload", ["quick", "endless"])
async def test_a_signal_drains_the_worker_and_ends_the_process(
    client: AsyncPostroad, tenant: Tenant, tmp_path: Path, number: signal.Signals, payload: str
) -> None:
    await client.queues.publish("orders", payload)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", PROGRAM, "30" if payload == "quick" else "0.1"],
        env={"PATH": "/usr/bin:/bin", "POSTROAD_URL": tenant.client.url, "POSTROAD_KEY": tenant.key},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"started\n"
            process.send_signal(number)
            output, _ = await process.communicate(b"\n" if payload == "quick" else None)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert output == (b"finished\nended\n" if payload == "quick" else b"ended\n")
    again = (await client.queues.pull("orders", wait_ms=0 if payload == "quick" else 3000)).messages
    assert len(again) == (payload != "quick")
