"""Completion of unfinished fan-outs: circuit breaker, queue and reconciler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.jetstream import durable_worker
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_stream, ensure_stream, stream_info
from postroad.kernel.circuit_breaker import BreakerState
from postroad.kernel.errors import EngineUnavailable
from postroad.sessions.fanout import Fanout, FanoutResult
from postroad.sessions.fanout_queue import queue_stream
from postroad.sessions.reconciler import SessionReconciler
from postroad.sessions.rules import CopyBatch, FanoutLimits, FanoutMode
from postroad.sessions.service import BREAKER_RECOVERY_MS
from postroad.streams.store import StreamName
from tests.gateway import ShiftedClock
from tests.sessions.processes import QUEUE, OpenProcess, Process, numbered
from tests.waiting import eventually

QUEUED = FanoutLimits(queue_threshold=1, inline_max=2, has_queue=True)
SKIPPED = FanoutLimits(queue_threshold=1, inline_max=2, has_queue=False)


@pytest.fixture(autouse=True)
async def empty_queue(connection: Connection) -> None:
    """Jobs of earlier tests would be delivered again only after their lease."""
    await delete_stream(connection, QUEUE)
    await ensure_stream(connection, queue_stream(1, QUEUE))


@pytest.fixture
def broken(one: Process, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the fan-outs of the first gateway fail; the returned function ends that."""
    make, connection = Fanout._store_batch, one.connection
    is_broken = True

    async def fails(self: Fanout, step: CopyBatch, media: str) -> None:
        if is_broken and self._connection is connection:
            raise EngineUnavailable("away")
        await make(self, step, media)

    def repair() -> None:
        nonlocal is_broken
        is_broken = False

    monkeypatch.setattr(Fanout, "_store_batch", fails)
    return repair


async def create_chat(process: Process, *sessions: str) -> None:
    await process.create("chat")
    for session in sessions:
        await process.subscribe(session, "chat")


# Circuit breaker


async def test_five_failures_open_the_breaker_and_the_reconciler_completes(
    one: Process, other: Process, broken: Callable[[], None]
) -> None:
    await create_chat(one, "a", "b")
    for number in range(5):
        published = await one.publish("chat", b"%d" % number)
        assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(2, 0)), "the publish itself succeeds"
    for number in range(5, 8):
        published = await one.publish("chat", b"%d" % number)
        assert (published.mode, published.fanout) == (FanoutMode.CIRCUIT_OPEN, FanoutResult(2, 0))
    assert (await one.sessions.fanout_progress(one.name("chat"))).breaker is BreakerState.OPEN
    assert (await one.sessions.fanout_progress(one.name("chat"))).outstanding == 8
    assert (await other.sessions.fanout_progress(one.name("chat"))).breaker is BreakerState.CLOSED, (
        "each gateway has its own breaker"
    )
    assert await one.read("a") == []
    assert await other.complete_all() == 8
    assert await one.read("a") == await one.read("b") == numbered(range(8))


async def test_the_breaker_of_another_stream_stays_closed(one: Process, broken: Callable[[], None]) -> None:
    await create_chat(one, "a")
    for _ in range(5):
        await one.publish("chat", b"1")
    await one.create("news")
    await one.subscribe("a", "news")
    broken()
    assert (await one.publish("chat", b"2")).mode is FanoutMode.CIRCUIT_OPEN
    assert (await one.publish("news", b"1")).mode is FanoutMode.INLINE


async def test_after_a_minute_one_publish_retries_and_completes_the_rest(
    one: Process, broken: Callable[[], None], clock: ShiftedClock
) -> None:
    await create_chat(one, "a")
    for number in range(6):
        await one.publish("chat", b"%d" % number)
    clock.ahead_ms = BREAKER_RECOVERY_MS + 1
    assert (await one.sessions.fanout_progress(one.name("chat"))).breaker is BreakerState.HALF_OPEN
    assert (await one.publish("chat", b"6")).mode is FanoutMode.INLINE, "it fails"
    assert (await one.publish("chat", b"7")).mode is FanoutMode.CIRCUIT_OPEN
    broken()
    clock.ahead_ms *= 2
    clock.ahead_ms += 1000
    published = await one.publish("chat", b"8")
    assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(1, 1))
    assert await one.read("a") == numbered(range(9))
    assert (await one.sessions.fanout_progress(one.name("chat"))).breaker is BreakerState.CLOSED
    assert (await one.publish("chat", b"9")).mode is FanoutMode.INLINE


async def test_a_half_open_breaker_allows_one_of_many_publishes(
    one: Process, broken: Callable[[], None], clock: ShiftedClock
) -> None:
    await create_chat(one, "a")
    for _ in range(5):
        await one.publish("chat", b"1")
    clock.ahead_ms = BREAKER_RECOVERY_MS + 1
    published = await asyncio.gather(*(one.publish("chat", b"2") for _ in range(8)))
    assert sorted(answer.mode for answer in published) == [FanoutMode.CIRCUIT_OPEN] * 7 + [FanoutMode.INLINE]


async def test_a_success_between_failures_keeps_the_breaker_closed(
    one: Process, broken: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_chat(one, "a")
    for _ in range(4):
        await one.publish("chat", b"1")
    broken()
    assert (await one.publish("chat", b"2")).fanout == FanoutResult(1, 1)
    assert one.sessions._breakers == {}, "a stream without failures has no breaker"


async def test_a_fan_out_is_stopped_at_its_time_limit(one: Process, other: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_chat(one, "a")
    await one.publish("chat", b"1")

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr("postroad.sessions.service._INLINE_SECONDS_MAX", 0.05)
        patched.setattr(Fanout, "_store_batch", hangs)
        async with asyncio.timeout(30):
            published = await one.publish("chat", b"2")
    assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(1, 0))
    await other.publish("chat", b"3")
    await one.publish("chat", b"4")
    assert await one.read("a") == numbered([1, 2, 3, 4])


# Without a queue


async def test_without_a_queue_a_large_fan_out_is_skipped_and_completed_later(new_process: OpenProcess) -> None:
    one = await new_process(limits=SKIPPED)
    await create_chat(one, "a", "b")
    assert (await one.publish("chat", b"1")).mode is FanoutMode.INLINE, "up to the maximum it is inline"
    await one.subscribe("c", "chat")
    for number in (2, 3, 4):
        published = await one.publish("chat", b"%d" % number)
        assert (published.mode, published.fanout) == (FanoutMode.SKIPPED, FanoutResult(3, 0))
    assert await one.read("a") == numbered([1])
    view = await one.sessions.fanout_progress(one.name("chat"))
    assert (view.subscribers, view.outstanding) == (3, 3)
    assert await one.complete_all() == 3
    assert await one.read("a") == numbered([1, 2, 3, 4])
    assert await one.read("c") == numbered([2, 3, 4])
    view = await one.sessions.fanout_progress(one.name("chat"))
    assert (view.outstanding, view.done) == (0, published.outcome.next_offset)


# Queue


@asynccontextmanager
async def consuming(process: Process, work: Callable[[StreamName], Awaitable[object]]) -> AsyncIterator[None]:
    """Consume the queue like the delivery role."""
    task = asyncio.create_task(process.queue.consume(work))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_large_fan_out_is_queued_and_done_by_the_consumer(new_process: OpenProcess, other: Process) -> None:
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")
    published = await one.publish("chat", b"1")
    assert (published.mode, published.fanout) == (FanoutMode.QUEUED, FanoutResult(2, 0))
    await one.publish("chat", b"2")
    assert await one.read("a") == []
    async with consuming(other, other.sessions.complete):

        async def is_there() -> bool:
            return await one.read("a") == await one.read("b") == numbered([1, 2])

        await eventually(is_there)
        await one.publish("chat", b"3")

        async def follows() -> bool:
            return await one.read("a") == await one.read("b") == numbered([1, 2, 3])

        await eventually(follows)
        await eventually(lambda: is_drained(other))


async def is_drained(process: Process) -> bool:
    """Not from the counts of the consumer: they are 0 for a moment when it is created."""
    info = await stream_info(process.connection, QUEUE)
    return info is not None and info.state.messages == 0


async def test_a_failed_job_is_delivered_again(new_process: OpenProcess, other: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_worker, "_RETRY_MS", 30)
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")
    tries = 0

    async def work(name: StreamName) -> object:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise EngineUnavailable("away")
        return await other.sessions.complete(name)

    await one.publish("chat", b"1")
    async with consuming(other, work):

        async def is_there() -> bool:
            return await one.read("a") == await one.read("b") == numbered([1])

        await eventually(is_there)
        await eventually(lambda: is_drained(other))
    assert tries == 3


async def test_jobs_of_one_stream_are_handled_together(new_process: OpenProcess, other: Process) -> None:
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")
    for number in range(6):
        await one.publish("chat", b"%d" % number)
    works: list[StreamName] = []

    async def work(name: StreamName) -> object:
        works.append(name)
        return await other.sessions.complete(name)

    async with consuming(other, work):
        await eventually(lambda: is_drained(other))
    assert works.count(one.name("chat")) == 1
    assert await one.read("b") == numbered(range(6))


async def test_concurrent_consumers_and_publishers_copy_everything_once(new_process: OpenProcess) -> None:
    first, second = await new_process(limits=QUEUED), await new_process(limits=QUEUED)
    await create_chat(first, *(f"s{number}" for number in range(5)))
    async with consuming(first, first.sessions.complete), consuming(second, second.sessions.complete):
        await asyncio.gather(*(process.publish("chat", b"%d" % n) for n in range(15) for process in (first, second)))

        async def is_done() -> bool:
            return await first.sessions.outstanding(first.name("chat")) == 0

        await eventually(is_done)
    source = await first.read_stream("chat")
    assert len(source) == 30
    for number in range(5):
        assert await first.read(f"s{number}") == source


async def test_a_publish_succeeds_although_its_job_cannot_be_queued(
    new_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")

    async def refuses(*_: Any) -> None:
        raise EngineUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(one.queue.__class__, "put", refuses)
        assert (await one.publish("chat", b"1")).mode is FanoutMode.SKIPPED
    assert await one.complete_all() == 1
    assert await one.read("a") == numbered([1])


# The delivery role


async def test_the_delivery_role_completes_cleans_up_and_consumes(
    new_process: OpenProcess, other: Process, clock: ShiftedClock
) -> None:
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")
    await one.create("news")
    await one.subscribe("c", "news")
    await one.append("news", b"left undone")
    await one.publish("chat", b"queued")
    delivering = asyncio.create_task(other.reconciler.run(complete_seconds=0.05, clean_seconds=0.05))
    try:

        async def is_there() -> bool:
            return [await one.read(session) for session in "abc"] == [[b"queued"], [b"queued"], [b"left undone"]]

        await eventually(is_there)
        clock.ahead_ms = 1800 * 1000 - 1000
        await one.touch("c")
        clock.ahead_ms += 2000

        async def is_clean() -> bool:
            return await one.subscribers("chat") == {} and set(await one.subscribers("news")) == {"c"}

        await eventually(is_clean)
    finally:
        delivering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await delivering


async def test_a_job_of_a_deleted_tenant_creates_nothing(new_process: OpenProcess, other: Process) -> None:
    one = await new_process(limits=QUEUED)
    await create_chat(one, "a", "b")
    await one.publish("chat", b"1")
    await one.streams.delete_all(one.tenant)
    reconciler = SessionReconciler(other.connection, other.sessions, other.streams, other.queue, list, other.clock)
    async with consuming(other, reconciler._complete):
        await eventually(lambda: is_drained(other))
    assert await stream_info(other.connection, one.name("").store) is None


async def test_a_tenant_without_streams_is_reconciled(one: Process) -> None:
    assert await one.complete_all() == await one.clean() == 0


async def test_the_reconciler_continues_when_one_tenant_fails(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_chat(one, "a")
    await one.append("chat", b"1")
    complete, failures = one.reconciler.complete_all, 0

    async def fails_twice(tenant: str) -> int:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise EngineUnavailable("away")
        return await complete(tenant)

    task = asyncio.create_task(one.reconciler._every(0.01, fails_twice))

    async def is_there() -> bool:
        return await one.read("a") == numbered([1])

    try:
        await eventually(is_there)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
