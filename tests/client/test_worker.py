"""The worker for coroutines, against a running server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from postroad.client import AsyncPostroad, Message
from postroad.client.errors import BodyInvalid, QueueNotFound, Unreachable
from postroad.client.worker import DeadLetter, Ended, Outcome, Retry, Worker, current_lease
from postroad.runtime.embedded_server import free_port
from tests.gateway import ShiftedClock, Tenant
from tests.installation import Installation
from tests.waiting import eventually

QUICK: dict[str, Any] = {"signals": (), "drain_seconds": 5, "cancel_seconds": 2, "pause_first": 0.02, "pause_max": 0.1}


@pytest.fixture
async def client(tenant: Tenant) -> AsyncIterator[AsyncPostroad]:
    async with AsyncPostroad(tenant.client.url, tenant.key) as opened:
        await opened.queues.put("orders", retry_delays_ms=[0])
        yield opened


@asynccontextmanager
async def working(client: AsyncPostroad, handler: Callable[[Message], Any], **options: Any) -> AsyncIterator[list[Ended]]:
    """Run a worker during the block, and check that it stops. Yields the outcomes."""
    ended: list[Ended] = []
    worker = Worker(client, "orders", handler, on_end=ended.append, **{**QUICK, **options})
    running = asyncio.create_task(worker.run())
    try:
        yield ended
        worker.stop()
        async with asyncio.timeout(30):
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert worker.in_flight == 0


async def publish(client: AsyncPostroad, count: int) -> None:
    await client.queues.publish_batch("orders", [{"payload": number} for number in range(count)])


async def left(client: AsyncPostroad) -> int:
    stats = (await client.queues.get("orders")).stats
    assert stats is not None
    return stats.ready + stats.leased + stats.delayed


def calls_of(client: AsyncPostroad, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the paths of the following calls."""
    paths: list[str] = []
    execute = client._transport.execute

    async def recording(call: Any) -> Any:
        paths.append(call.path)
        return await execute(call)

    monkeypatch.setattr(client._transport, "execute", recording)
    return paths


def outcomes(ended: list[Ended]) -> list[str]:
    return [one.outcome.value for one in ended]


# Done


async def test_all_messages_are_handled_within_the_concurrency_and_acknowledged(client: AsyncPostroad) -> None:
    await publish(client, 30)
    concurrent: Counter[str] = Counter()
    seen: list[int] = []

    async def handle(message: Message) -> None:
        concurrent["now"] += 1
        concurrent["maximum"] = max(concurrent["maximum"], concurrent["now"])
        await asyncio.sleep(0)
        seen.append(message.payload)
        concurrent["now"] -= 1

    async with working(client, handle, concurrency=4) as ended:
        await eventually(lambda: len(ended) == 30)
    assert sorted(seen) == list(range(30))
    assert concurrent["maximum"] == 4
    assert set(outcomes(ended)) == {"done"}
    assert await left(client) == 0


async def test_messages_finished_together_are_acknowledged_together(
    client: AsyncPostroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 20)
    sizes: list[int] = []
    execute = client._transport.execute

    async def counting(call: Any) -> Any:
        if call.path.endswith("/ack"):
            sizes.append(len(call.body["receiptIds"]))
        return await execute(call)

    monkeypatch.setattr(client._transport, "execute", counting)
    handled, go = [], asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message)
        await go.wait()

    async with working(client, handle, concurrency=20) as ended:
        await eventually(lambda: len(handled) == 20)
        go.set()
        await eventually(lambda: len(ended) == 20)
    assert sum(sizes) == 20
    assert len(sizes) <= 2


async def test_a_handler_may_run_longer_than_the_lease(client: AsyncPostroad) -> None:
    await publish(client, 2)
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        lease, first = current_lease(), current_lease().until
        await eventually(lambda: lease.until > first + 4 * 0.6)  # four extensions
        assert lease.receipt != message.receipt_id

    async with working(client, handle, visibility_timeout_ms=600) as ended:
        await eventually(lambda: len(ended) == 2)
    assert attempts == [1, 1]
    assert outcomes(ended) == ["done", "done"]
    assert await left(client) == 0


async def test_with_once_a_worker_ends_when_the_queue_is_empty(client: AsyncPostroad) -> None:
    await publish(client, 7)
    ended: list[Ended] = []

    async def handle(message: Message) -> None:
        if message.payload == 3 and message.attempt == 1:
            raise Retry(delay_ms=0)

    async with asyncio.timeout(30):
        await Worker(client, "orders", handle, once=True, concurrency=2, on_end=ended.append, **QUICK).run()
    assert outcomes(ended).count("done") >= 6
    assert outcomes(ended).count("retried") == 1


# Failures


async def test_a_failed_message_is_retried_and_dead_lettered_with_its_reason(client: AsyncPostroad) -> None:
    await client.queues.put("orders", retry_delays_ms=[0], max_attempts=2)
    await publish(client, 1)

    async def handle(message: Message) -> None:
        raise KeyError(f"attempt {message.attempt}")

    async with working(client, handle) as ended:
        await eventually(lambda: len(ended) == 2)
    assert [one.reason for one in ended] == ["KeyError: 'attempt 1'", "KeyError: 'attempt 2'"]
    [letter] = [letter async for letter in client.queues.dead_letters.list("orders")]
    assert (letter.reason, letter.last_error, letter.attempts) == ("KeyError: 'attempt 2'", "KeyError: 'attempt 2'", 2)


@pytest.mark.parametrize(
    "problem", [SystemExit(1), asyncio.CancelledError(), StopAsyncIteration(), BaseExceptionGroup("all", [OSError()])]
)
async def test_every_exception_of_a_handler_costs_one_attempt(client: AsyncPostroad, problem: BaseException) -> None:
    await publish(client, 3)

    async def handle(message: Message) -> None:
        if message.attempt == 1 and message.payload == 1:
            raise problem

    async with working(client, handle) as ended:
        await eventually(lambda: len(ended) == 4)
    assert sorted(outcomes(ended)) == ["done", "done", "done", "retried"]


async def test_a_reason_is_truncated_to_the_limits_of_the_api(client: AsyncPostroad) -> None:
    await publish(client, 1)

    async def handle(message: Message) -> None:
        raise DeadLetter("caf\u00e9 \udcff " + "x" * 5000)

    async with working(client, handle) as ended:
        await eventually(lambda: ended)
    assert outcomes(ended) == ["dead"]
    [letter] = [letter async for letter in client.queues.dead_letters.list("orders")]
    assert letter.reason.startswith("café ? xxx") and len(letter.reason) == 1000


async def test_a_handler_can_retry_or_dead_letter_its_message(client: AsyncPostroad) -> None:
    await publish(client, 2)

    async def handle(message: Message) -> None:
        if message.payload == 0:
            raise Retry(delay_ms=60_000, reason="not yet")
        raise DeadLetter("cannot be parsed")

    async with working(client, handle) as ended:
        await eventually(lambda: len(ended) == 2)
    assert {(one.message.payload, one.outcome.value, one.reason) for one in ended} == {
        (0, "retried", "not yet"),
        (1, "dead", "cannot be parsed"),
    }
    assert (await client.queues.pull("orders")).messages == []
    assert [letter.reason async for letter in client.queues.dead_letters.list("orders")] == ["cannot be parsed"]


async def test_permanent_errors_are_raised(client: AsyncPostroad) -> None:
    async def handle(message: Message) -> None:
        pass

    with pytest.raises(QueueNotFound):
        await Worker(client, "nowhere", handle, **QUICK).run()
    with pytest.raises(BodyInvalid, match=r"12|lease|visib|Timeout|<="):
        await Worker(client, "orders", handle, **{**QUICK, "visibility_timeout_ms": 10**9}).run()
    with pytest.raises(ValueError, match="at least 1"):
        Worker(client, "orders", handle, concurrency=0)
    with pytest.raises(LookupError):
        current_lease()


async def test_an_exception_in_on_end_is_ignored(client: AsyncPostroad) -> None:
    await publish(client, 3)
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.payload)

    def fail(_: Ended) -> None:
        raise RuntimeError("no")

    await Worker(client, "orders", handle, once=True, on_end=fail, **QUICK).run()
    assert sorted(seen) == [0, 1, 2]
    assert await left(client) == 0


# Lost leases


async def test_a_handler_whose_lease_is_lost_is_cancelled(
    client: AsyncPostroad, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 1)
    paths = calls_of(client, monkeypatch)
    cancelled: list[bool] = []
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(current_lease().is_lost)
            raise

    async with working(client, handle, visibility_timeout_ms=1000) as ended:
        await started.wait()
        clock.ahead_ms = 600_000  # the server reports an expired lease
        await eventually(lambda: len(ended) == 1)
        clock.ahead_ms = 0
        assert not any(path.endswith(("/ack", "/nack")) for path in paths)
    assert (cancelled[0], ended[0].outcome) == (True, Outcome.LOST)


async def test_a_handler_that_finishes_too_late_is_not_done(client: AsyncPostroad, clock: ShiftedClock) -> None:
    await publish(client, 1)

    async def handle(message: Message) -> None:
        clock.ahead_ms = 600_000

    async with working(client, handle) as ended:
        await eventually(lambda: ended)
        clock.ahead_ms = 0
    assert ended[0].outcome is Outcome.LOST


async def test_the_handlers_of_a_deleted_queue_are_cancelled_and_the_worker_ends(client: AsyncPostroad) -> None:
    await publish(client, 1)
    ended: list[Ended] = []
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    worker = Worker(client, "orders", handle, visibility_timeout_ms=500, on_end=ended.append, **QUICK)
    running = asyncio.create_task(worker.run())
    await started.wait()
    await client.queues.delete("orders")
    async with asyncio.timeout(30):
        with pytest.raises(QueueNotFound):
            await running
    assert outcomes(ended) == ["lost"]


class Proxy:
    """A TCP proxy to a server that can be cut and restored."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)
        self.is_cut = False
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        self._open |= {writer, server_writer}
        await asyncio.gather(self._forward(reader, server_writer), self._forward(server_reader, writer))
        self._open -= {writer, server_writer}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def test_a_lease_is_lost_when_the_server_is_unreachable_until_it_ends(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 1)
    started, attempts = asyncio.Event(), list[int]()

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        started.set()
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with (
        Proxy(tenant.client.url) as proxy,
        AsyncPostroad(proxy.url, tenant.key) as remote,
        working(remote, handle, visibility_timeout_ms=600) as ended,
    ):
        await started.wait()
        proxy.cut()
        await eventually(lambda: outcomes(ended) == ["lost"])
        proxy.is_cut = False
        await eventually(lambda: outcomes(ended) == ["lost", "done"])
    assert attempts == [1, 2]


async def test_a_worker_waits_for_a_server_beyond_the_deadline_of_a_call(
    client: AsyncPostroad, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> None:
        pass

    async with (
        Proxy(tenant.client.url) as proxy,
        AsyncPostroad(proxy.url, tenant.key, deadline=0.05) as remote,
        working(remote, handle, wait_ms=0) as ended,
    ):
        proxy.cut()
        await eventually(lambda: caplog.text.count("retrying in") >= 3)
        proxy.is_cut = False
        await publish(client, 1)
        await eventually(lambda: outcomes(ended) == ["done"])


async def test_with_once_a_worker_does_not_wait_for_a_server(tenant: Tenant) -> None:
    async def handle(message: Message) -> None:
        pass

    async with AsyncPostroad(f"http://127.0.0.1:{free_port()}", tenant.key, deadline=0.1) as remote:
        with pytest.raises(Unreachable):
            await Worker(remote, "orders", handle, once=True, **QUICK).run()


async def test_a_short_disconnection_has_no_effect(client: AsyncPostroad, tenant: Tenant) -> None:
    await publish(client, 1)
    started, go = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await go.wait()

    async with (
        Proxy(tenant.client.url) as proxy,
        AsyncPostroad(proxy.url, tenant.key) as remote,
        working(remote, handle) as ended,
    ):
        await started.wait()
        proxy.cut()
        go.set()
        proxy.is_cut = False
        await eventually(lambda: outcomes(ended) == ["done"])
    assert await left(client) == 0


# Stop


async def test_a_stopped_worker_finishes_its_messages_and_pulls_no_more(client: AsyncPostroad) -> None:
    await publish(client, 1)
    started, go = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await go.wait()

    ended: list[Ended] = []
    worker = Worker(client, "orders", handle, visibility_timeout_ms=600, on_end=ended.append, **{**QUICK, "drain_seconds": 30})
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await publish(client, 1)
    assert (await client.queues.pull("orders", wait_ms=2000)).messages  # the worker does not pull it
    await eventually(lambda: worker.in_flight == 1)
    go.set()
    async with asyncio.timeout(30):
        await running
    assert outcomes(ended) == ["done"]


async def test_an_idle_worker_stops_at_once(client: AsyncPostroad) -> None:
    async def handle(message: Message) -> None:
        pass

    worker = Worker(client, "orders", handle, **QUICK)
    running = asyncio.create_task(worker.run())
    await publish(client, 1)
    await eventually(lambda: worker.in_flight == 0)
    worker.stop()
    async with asyncio.timeout(30):
        await running


@pytest.mark.parametrize("how", ["timeout", "stopped twice", "cancelled"])
async def test_messages_that_are_not_done_in_time_are_requeued_at_once(client: AsyncPostroad, how: str) -> None:
    await publish(client, 3)
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)
        await asyncio.Event().wait()

    ended: list[Ended] = []
    drain = 0.2 if how == "timeout" else 60
    options = {**QUICK, "drain_seconds": drain, "visibility_timeout_ms": 60_000, "concurrency": 3}
    worker = Worker(client, "orders", handle, on_end=ended.append, **options)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: len(handled) == 3)
    if how == "cancelled":
        running.cancel()
    else:
        worker.stop()
        if how == "stopped twice":
            worker.stop()
    async with asyncio.timeout(30):
        await asyncio.gather(running, return_exceptions=True)
    assert outcomes(ended) == ["requeued"] * 3
    again = (await client.queues.pull("orders", max_messages=3, wait_ms=2000)).messages
    assert again and {message.attempt for message in again} == {2}


async def test_a_handler_that_returns_on_cancellation_is_done(client: AsyncPostroad) -> None:
    await publish(client, 1)
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    ended: list[Ended] = []
    worker = Worker(client, "orders", handle, on_end=ended.append, **{**QUICK, "drain_seconds": 0.1})
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await running
    assert outcomes(ended) == ["done"]
    assert await left(client) == 0


@pytest.mark.slow
async def test_a_worker_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    try:
        await installation.start().ready()
        seen: list[int] = []
        before, after = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.payload == 0:
                before.set()
                await after.wait()
            seen.append(message.payload)

        async with AsyncPostroad(installation.url, installation.credentials["tenant_key"]) as client:
            await publish(client, 2)
            async with working(client, handle, visibility_timeout_ms=20_000) as ended:
                await before.wait()
                await eventually(lambda: seen == [1])
                await installation.stop()
                await installation.start().ready()
                after.set()  # the lease is still valid on the restarted server
                await publish(client, 3)
                await eventually(lambda: len(ended) >= 5)
            assert sorted(seen) == [0, 0, 1, 1, 2]
            assert set(outcomes(ended)) == {"done"}
            assert await left(client) == 0
    finally:
        installation.end()


@pytest.mark.parametrize("concurrency", [1, 4, 50])
async def test_the_order_of_a_group_holds_at_any_concurrency(client: AsyncPostroad, concurrency: int) -> None:
    await client.queues.delete("orders")
    await client.queues.put("orders", ordered=True, retry_delays_ms=[0], max_attempts=0)
    messages = [{"payload": [group, number], "groupId": str(group)} for number in range(10) for group in range(4)]
    assert (await client.queues.publish_batch("orders", messages)).failed == 0
    done: dict[int, list[int]] = {group: [] for group in range(4)}
    running: set[int] = set()
    failures: set[tuple[int, int]] = set()

    async def handle(message: Message) -> None:
        group, number = message.payload
        assert group not in running, "two messages of a group at once"
        running.add(group)
        try:
            await asyncio.sleep(0)
            if number % 4 == 2 and (group, number) not in failures:
                failures.add((group, number))
                raise Retry(0)
            done[group].append(number)
        finally:
            running.discard(group)

    async with working(client, handle, concurrency=concurrency, wait_ms=200):
        await eventually(lambda: sum(map(len, done.values())) >= 40, 60)
    assert done == {group: list(range(10)) for group in range(4)}
    assert len(failures) == 8
