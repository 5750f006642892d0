import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import NoReturn

import pytest
import uvloop
from prometheus_client import REGISTRY

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.storage_budget import StorageBudgets, StoreMeasurement
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.submitted_write import OnOutcome
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable
from postroad.telemetry import outbox as outbox_module
from postroad.telemetry.outbox import Outbox
from tests.gateway import Gateway, Tenant, events_of
from tests.servers import OpenConnection, Server
from tests.telemetry.samples import event
from tests.waiting import eventually


@pytest.fixture
def outbox(gateway: Gateway) -> Outbox:
    return Outbox(gateway.node.platform.committers, now_ms)


async def queues_of(gateway: Gateway, tenant: Tenant) -> list[str]:
    """The names of the stored events, by frame."""
    return [found["queue"] for found in await events_of(gateway.node.platform.connection, "TELEMETRY", tenant.id)]


async def frames_of(gateway: Gateway, tenant: Tenant) -> Sequence[Entry]:
    return (await stream_reader.read(gateway.node.platform.connection, "TELEMETRY", f"telemetry.{tenant.id}", 1, 1000)).entries


def dropped() -> float:
    return REGISTRY.get_sample_value("postroad_events_dropped_total", {"stream": "TELEMETRY"}) or 0


# Durable and in order


async def test_committed_events_are_stored(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    await outbox.commit(None, event(tenant.id, "a"), event(tenant.id, "b"))
    assert await queues_of(gateway, tenant) == ["a", "b"]


async def test_a_commit_without_events_returns(outbox: Outbox) -> None:
    await outbox.commit(None)
    outbox.record(None)
    await outbox.drain()


async def test_a_drain_ends_although_the_sending_was_cancelled(own_server: Server) -> None:
    """As at the end of a process whose engine is gone: the committer's task is cancelled with all others."""
    await asyncio.to_thread(
        asyncio.run, _drain_after_a_cancellation(own_server.url)
    )  # in a loop without the tasks of other tests


async def _drain_after_a_cancellation(url: str) -> None:
    connection = Connection(ConnectionSettings((url,), name="tests"))
    await connection.open()
    outbox = Outbox(Committers(connection, CommitPolicy(deadline_seconds=3600), WriteBufferLimit(1_000_000)), now_ms)
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(outbox.commit(None, event("acme", "a")))  # there is no stream that takes it
    draining = asyncio.create_task(outbox.drain())
    async with asyncio.timeout(30):
        sending = await eventually(lambda: asyncio.all_tasks() - before - {waiting, draining})
        for task in sending:
            task.cancel()
        await draining
        with pytest.raises(EngineUnavailable):
            await waiting
    await connection.close()


async def test_recorded_events_share_a_frame_and_a_commit_does_not_wait_for_others(
    gateway: Gateway, tenant: Tenant, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_COMPANY_SECONDS", 3600.0)
    outbox.record(None, event(tenant.id, "a"))
    for _ in range(5):
        await asyncio.sleep(0)
    outbox.record(None, event(tenant.id, "b"))
    assert not await frames_of(gateway, tenant)
    async with asyncio.timeout(30):
        await outbox.commit(None, event(tenant.id, "c"))
    assert await queues_of(gateway, tenant) == ["a", "b", "c"]
    assert len(await frames_of(gateway, tenant)) == 1
    outbox.record(None, event(tenant.id, "d"))
    async with asyncio.timeout(30):
        await outbox.drain()
    assert await queues_of(gateway, tenant) == ["a", "b", "c", "d"]


async def test_a_recorded_event_is_stored_without_a_drain(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    outbox.record(None, event(tenant.id, "a"))
    assert await eventually(lambda: queues_of(gateway, tenant)) == ["a"]


async def test_many_commits_at_once_share_frames_and_keep_their_order(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    names = [str(number) for number in range(500)]
    await asyncio.gather(*[outbox.commit(None, event(tenant.id, name)) for name in names])
    assert await queues_of(gateway, tenant) == names
    assert len(await frames_of(gateway, tenant)) <= 5


async def test_recorded_and_committed_events_keep_their_order(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    for name in ("a", "b", "c"):
        outbox.record(None, event(tenant.id, name))
    await outbox.commit(None, event(tenant.id, "d"))
    assert await queues_of(gateway, tenant) == ["a", "b", "c", "d"], "what was emitted before is stored when the commit returns"


async def test_events_that_arrive_during_a_write_form_the_next_frame(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    first = asyncio.create_task(outbox.commit(None, event(tenant.id, "first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # its frame is taken
    later = [asyncio.create_task(outbox.commit(None, event(tenant.id, f"later-{number}"))) for number in range(10)]
    await asyncio.gather(first, *later)
    assert [entry.headers["Postroad-Events"] for entry in await frames_of(gateway, tenant)] == ["1", "10"]


async def test_a_frame_is_of_one_tenant(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    other = await gateway.tenant()
    await asyncio.gather(*[outbox.commit(None, event(one.id, one.id)) for one in (tenant, other) for _ in range(20)])
    for one in (tenant, other):
        assert await queues_of(gateway, one) == [one.id] * 20


async def test_a_commit_of_several_frames_returns_when_all_are_stored(
    gateway: Gateway, tenant: Tenant, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_FRAME_EVENTS_MAX", 10)
    names = [str(number) for number in range(35)]
    before = asyncio.create_task(outbox.commit(None, event(tenant.id, "before")))
    await asyncio.sleep(0)
    await asyncio.gather(before, outbox.commit(None, *(event(tenant.id, name) for name in names)))
    assert await queues_of(gateway, tenant) == ["before", *names]
    assert all(int(entry.headers["Postroad-Events"]) <= 10 for entry in await frames_of(gateway, tenant))


async def test_the_size_of_a_frame_is_bounded(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    await outbox.commit(None, *(event(tenant.id, padding=100_000) for _ in range(12)))
    frames = await frames_of(gateway, tenant)
    assert len(frames) == 3
    assert all(len(entry.payload) <= 512 * 1024 for entry in frames)


async def test_a_cancelled_commit_does_not_affect_others(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    tasks = [asyncio.create_task(outbox.commit(None, event(tenant.id, str(number)))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[0] is None and outcomes[2] is None
    assert await queues_of(gateway, tenant) == ["0", "1", "2"]


# Without waiting


async def test_a_recorded_event_is_stored_soon(gateway: Gateway, tenant: Tenant, outbox: Outbox) -> None:
    outbox.record(None, event(tenant.id, "a"))
    await outbox.drain()
    assert await queues_of(gateway, tenant) == ["a"]


async def test_an_idle_outbox_has_no_buffers(tenant: Tenant, outbox: Outbox) -> None:
    await outbox.commit(None, event(tenant.id))
    outbox.record(None, event(tenant.id))
    await outbox.drain()
    assert not outbox._buffers
    assert outbox._waiting_bytes == 0


async def test_a_full_outbox_drops_recorded_events_and_counts_them(gateway: Gateway, tenant: Tenant) -> None:
    small = Outbox(gateway.node.platform.committers, now_ms, waiting_bytes_max=1000)
    before = dropped()
    for number in range(100):
        small.record(None, event(tenant.id, str(number)), event(tenant.id, str(number)))
    with pytest.raises(EngineUnavailable) as refused:
        await small.commit(None, event(tenant.id, "refused"))
    assert refused.value.retry_after == 1
    await small.drain()
    kept = await queues_of(gateway, tenant)
    assert 0 < len(kept) < 20
    assert dropped() - before == 200 - len(kept)
    await small.commit(None, event(tenant.id, "again"))
    assert (await queues_of(gateway, tenant))[-1] == "again"


async def test_events_of_tenants_are_dropped_and_not_failed_when_the_reserve_is_half_used(
    gateway: Gateway, tenant: Tenant, connection: Connection
) -> None:
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20))
    committers.storage.store.measure(StoreMeasurement(limit=400_000), reserve=1_000_000)
    outbox, before = Outbox(committers, now_ms), dropped()
    await outbox.commit(None, event(tenant.id, "dropped"))
    outbox.record(None, event(tenant.id, "dropped"))
    await outbox.drain()
    assert dropped() - before == 2
    committers.storage.store.measure(StoreMeasurement(limit=600_000), reserve=1_000_000)
    await outbox.commit(None, event(tenant.id, "stored"))
    assert await queues_of(gateway, tenant) == ["stored"]


# When it cannot be stored


def short_deadline(connection: Connection) -> Committers:
    return Committers(connection, CommitPolicy(deadline_seconds=0.2), WriteBufferLimit(64 * 1024 * 1024))


async def test_a_frame_that_cannot_be_stored_fails_all_its_commits(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    """This server has no stream for the frames, so writes fail."""
    outbox = Outbox(short_deadline(await open_connection(own_server.url)), now_ms)
    before = dropped()
    outcomes = await asyncio.gather(*[outbox.commit(None, event(name)) for _ in range(5)], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineUnavailable] * 5
    assert dropped() - before == 5
    assert (outbox._waiting_bytes, outbox._buffers) == (0, {})


async def test_an_event_that_is_too_large_fails_the_commits_of_its_frame_only(
    gateway: Gateway, tenant: Tenant, outbox: Outbox
) -> None:
    huge = event(tenant.id, "huge", padding=9 * 1024 * 1024)
    outcomes = await asyncio.gather(
        outbox.commit(None, event(tenant.id, "before")),
        outbox.commit(None, event(tenant.id, "with it"), huge, event(tenant.id, "also with it")),
        outbox.commit(None, event(tenant.id, "after")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), EngineUnavailable, type(None)]
    assert "after" in await queues_of(gateway, tenant) and "huge" not in await queues_of(gateway, tenant)


class _Broken(Committer):
    """A committer with a bug."""

    def __init__(self) -> None:
        self.calls = 0

    def submit_callback(self, messages: Sequence[PendingMessage], on_outcome: OnOutcome, *, is_synced: bool = True) -> NoReturn:
        self.calls += 1
        raise RuntimeError("a bug")


class _BrokenCommitters(Committers):
    def __init__(self) -> None:
        self.storage = StorageBudgets()
        self.broken = _Broken()

    @property
    def are_held(self) -> bool:
        return False

    def of(self, stream: str) -> Committer:
        return self.broken


async def test_an_unexpected_error_fails_all_commits_of_the_frame(name: str) -> None:
    committers = _BrokenCommitters()
    outbox = Outbox(committers, now_ms)
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*[outbox.commit(None, event(name)) for _ in range(3)], return_exceptions=True)
        await outbox.drain()
    assert [type(outcome) for outcome in outcomes] == [EngineUnavailable] * 3
    assert committers.broken.calls == 1
    assert outbox._waiting_bytes == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_commit_does_not_wait_for_others_on_any_event_loop(
    run: Callable[[Coroutine[None, None, None]], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process runs on uvloop, whose timers are not those of asyncio."""
    monkeypatch.setattr(outbox_module, "_COMPANY_SECONDS", 3600.0)

    async def commit_after_record() -> None:
        committers = _BrokenCommitters()
        outbox = Outbox(committers, now_ms)
        outbox.record(None, event(name))
        async with asyncio.timeout(30):
            with pytest.raises(EngineUnavailable):
                await outbox.commit(None, event(name))
        assert committers.broken.calls == 1

    run(commit_after_record())


async def test_events_wait_for_the_end_of_maintenance(open_connection: OpenConnection, engine_url: str, name: str) -> None:
    connection = await open_connection(engine_url)
    outbox = Outbox(Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)), now_ms)
    connection.writes.hold("a backup", 2)
    committed = asyncio.ensure_future(outbox.commit(None, event(name)))
    for _ in range(3):
        await connection.call("INFO")
    assert not committed.done()
    connection.writes.release()
    await committed
    assert outbox.dropped == 0
