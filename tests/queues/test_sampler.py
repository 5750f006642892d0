"""The sampler of queues and its `queue.sampled` events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from postroad.api.queues import QueueStats
from postroad.container import Role
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.names import queue_stream
from postroad.queues import sampler as sampler_module
from postroad.queues.capability import QueuesCapability
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.gauges import SamplePublisher
from postroad.queues.lifecycle import QUEUES_BUCKET
from postroad.queues.records import QueueRecord
from postroad.queues.sampler import QueueSampler
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput, _Counts
from postroad.queues.waiting import WaitingPulls
from postroad.telemetry.outbox import Outbox
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.queues.test_browsing import dead_letter
from tests.servers import Server
from tests.waiting import eventually

SECONDS = 10.0


class Watcher:
    """A sampler of the queues of the test's tenant, whose rounds the test starts."""

    def __init__(self, gateway: Gateway, tenant: Tenant) -> None:
        engine = gateway.node.platform
        self.table = ReplicatedTable(Bucket(engine.connection, QUEUES_BUCKET, engine.committers), QueueRecord)
        self.throughput, self.outbox, self.tenant = Throughput(engine.connection), Outbox(engine.committers, now_ms), tenant
        self.leases = engine.use(QueuesCapability).lease_log
        dead_letters = DeadLetters(
            engine.connection,
            engine.committers,
            Bucket(engine.connection, FAILURES_BUCKET, engine.committers),
            engine.audit,
            gateway.clock,
            replicas=1,
            flows=engine.flows,
        )
        self.stats = QueueStatsReader(
            engine.connection,
            engine.use(QueuesCapability).backend,
            dead_letters,
            WaitingPulls(engine.connection, dict),
            self.throughput,
            gateway.clock,
            engine.use(QueuesCapability).ordered_leases,
        )
        self.tenants = [tenant.id]
        self.sampler = QueueSampler(
            engine.connection,
            self.table,
            self.stats,
            self.throughput,
            self.outbox,
            lambda: self.tenants,
            SamplePublisher(engine.connection, queues_max=0, seconds=SECONDS),
            seconds=SECONDS,
        )
        self.throughput.start_totals()

    async def round(self) -> list[dict[str, Any]]:
        """Run one round over all existing queues; return its events, ordered by queue."""
        before = len(await self.events())
        names = [queue["name"] for queue in (await self.tenant.client.get("/v1/queues?limit=1000")).ok()["queues"]]
        known = {queue_stream(self.tenant.id, name) for name in names}
        await eventually(lambda: {one.stream for one in self.records()} >= known)
        count = await self.sampler.sample_due()
        await self.outbox.drain()
        recorded = (await self.events())[before:]
        assert len(recorded) == count
        return sorted(recorded, key=lambda one: str(one["queue"]))

    def records(self) -> list[QueueRecord]:
        found = [self.table.get(key) for key in self.table.keys_under(f"{self.tenant.id}.")]
        return [one for one in found if one is not None]

    async def events(self) -> list[dict[str, Any]]:
        return [one for one in await self.tenant.events("TELEMETRY") if one["event"] == "queue.sampled"]

    def receive(self, queue: str, published: int, completed: int) -> None:
        """Receive the counts of a worker."""
        counts = _Counts("a worker", 2.0, {queue_stream(self.tenant.id, queue): (published, completed)})
        self.throughput._receive(msgspec.msgpack.encode(counts))


@pytest.fixture
async def watcher(gateway: Gateway, tenant: Tenant) -> AsyncIterator[Watcher]:
    created = Watcher(gateway, tenant)
    following = asyncio.create_task(created.table.run())
    await created.table.wait_loaded()
    yield created
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def names(events: list[dict[str, Any]]) -> list[str]:
    return [one["queue"] for one in events]


async def test_a_sample_has_the_stats_of_a_queue(watcher: Watcher) -> None:
    tenant = watcher.tenant
    queue = await tenant.queue("q", expectedDrainSeconds=77)
    await dead_letter(tenant, queue, "dead")
    for payload in ("leased", "ready", "ready"):
        await tenant.publish(queue, payload)
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await tenant.publish(queue, "later", delayMs=60_000)
    watcher.receive("q", published=50, completed=20)
    watcher.receive("q", published=50, completed=0)
    [event] = await watcher.round()
    assert (event["tenant"], event["queue"]) == (tenant.id, "q")
    assert (event["ready"], event["leased"], event["delayed"], event["dead"]) == (2, 1, 1, 1)
    assert event["expected_drain_seconds"] == 77
    assert 0 <= event["oldest_age_ms"] < 60_000
    assert SECONDS <= event["seconds"] < SECONDS + 5, "the first sample covers one interval"
    assert event["in_per_second"] == pytest.approx(100 / event["seconds"], abs=0.01)
    assert event["out_per_second"] == pytest.approx(20 / event["seconds"], abs=0.01)
    [again] = await watcher.round()
    assert 0 < again["seconds"] < 5
    assert (again["in_per_second"], again["out_per_second"]) == (0, 0), "each message counts once"


async def test_an_empty_queue_has_no_oldest_age(watcher: Watcher) -> None:
    await watcher.tenant.queue("q")
    [event] = await watcher.round()
    assert [event[name] for name in ("ready", "leased", "delayed", "dead", "waiting")] == [0] * 5
    assert event["oldest_age_ms"] is None
    assert event["expected_drain_seconds"] == 300, "the default"


async def test_waiting_pulls_are_counted(watcher: Watcher) -> None:
    queue = await watcher.tenant.queue("q")
    waiting = asyncio.create_task(watcher.tenant.pull(queue, waitMs=10_000))

    async def is_counted() -> bool:
        watcher.receive("q", 0, 1)  # so that it is sampled although it is empty
        return [one["waiting"] for one in await watcher.round()] == [1]

    await eventually(is_counted)
    await watcher.tenant.publish(queue, 1)
    await waiting


async def test_queues_with_messages_are_sampled_in_every_round_and_for_two_minutes_after(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampler_module._EMPTIED_SECONDS == 120
    tenant = watcher.tenant
    await tenant.queue("empty")
    full = await tenant.queue("full")
    await tenant.publish(full, 1)
    await tenant.publish(await tenant.queue("later"), 1, delayMs=60_000)
    assert names(await watcher.round()) == ["empty", "full", "later"], "new queues are sampled"
    assert names(await watcher.round()) == ["full", "later"]
    [message] = await tenant.pull(full, visibilityTimeoutMs=60_000)
    assert names(await watcher.round()) == ["full", "later"], "leased messages count"
    (await tenant.ack(full, message["receiptId"])).ok()
    [empty, _] = await watcher.round()
    assert (empty["queue"], empty["ready"], empty["leased"]) == ("full", 0, 0)
    assert names(await watcher.round()) == ["full", "later"], "a whole minute shows that it is empty"
    monkeypatch.setattr(sampler_module, "_EMPTIED_SECONDS", 0.0)
    assert names(await watcher.round()) == ["later"]


async def test_a_queue_with_only_dead_letters_is_idle(watcher: Watcher) -> None:
    queue = await watcher.tenant.queue("q")
    await dead_letter(watcher.tenant, queue, 1)
    assert [one["dead"] for one in await watcher.round()] == [1]
    assert await watcher.round() == []


async def test_an_idle_queue_is_sampled_every_five_minutes(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler_module._IDLE_SECONDS == 300
    await watcher.tenant.queue("q")
    await watcher.round()
    assert await watcher.round() == []
    monkeypatch.setattr(sampler_module, "_IDLE_SECONDS", 0.001)
    assert names(await watcher.round()) == ["q"]


async def test_an_empty_queue_with_traffic_is_sampled_in_the_next_round(watcher: Watcher, gateway: Gateway) -> None:
    """The workers broadcast their counts every two seconds."""
    tenant = watcher.tenant
    queue = await tenant.queue("q")
    await watcher.round()
    receiving = asyncio.create_task(watcher.throughput.run())
    try:
        await tenant.publish(queue, 1)
        [message] = await tenant.pull(queue)
        (await tenant.ack(queue, message["receiptId"])).ok()
        await eventually(lambda: queue_stream(tenant.id, "q") in watcher.throughput.active_streams())
        [event] = await watcher.round()
        assert (event["ready"], event["leased"]) == (0, 0)
        assert event["in_per_second"] > 0
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


async def test_a_round_is_limited_and_the_next_one_continues(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler_module._ROUND_MAX == 1000
    monkeypatch.setattr(sampler_module, "_ROUND_MAX", 2)
    for number in range(6):
        await watcher.tenant.publish(await watcher.tenant.queue(f"q-{number}"), number)
    rounds = [names(await watcher.round()) for _ in range(6)]
    assert [len(one) for one in rounds] == [2] * 6
    every_queue = {f"q-{number}" for number in range(6)}
    assert set(rounds[0] + rounds[1] + rounds[2]) == every_queue, "all queues before the first one again"
    assert set(rounds[3] + rounds[4] + rounds[5]) == every_queue


async def test_few_queues_are_sampled_concurrently(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await watcher.tenant.queue(f"q-{number}")
    sample, now, maximum = QueueStatsReader.sample, 0, 0

    async def counting(self: QueueStatsReader, record: QueueRecord, **more: bool) -> QueueStats:
        nonlocal now, maximum
        if self is not watcher.stats:
            return await sample(self, record, **more)
        now += 1
        maximum = max(maximum, now)
        try:
            return await sample(self, record, **more)
        finally:
            now -= 1

    monkeypatch.setattr(QueueStatsReader, "sample", counting)
    assert len(await watcher.round()) == 20
    assert maximum == sampler_module._CONCURRENCY


async def test_a_failed_sample_does_not_affect_other_queues(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        await watcher.tenant.queue(name)
    sample = QueueStatsReader.sample

    async def fails_for_b(self: QueueStatsReader, record: QueueRecord, **more: bool) -> QueueStats:
        if record.name == "b":
            raise EngineUnavailable("away")
        return await sample(self, record, **more)

    with monkeypatch.context() as patched:
        patched.setattr(QueueStatsReader, "sample", fails_for_b)
        assert names(await watcher.round()) == ["a", "c"]
    [event] = await watcher.round()
    assert event["queue"] == "b"
    assert event["seconds"] > SECONDS, "it covers the failed round, too"


async def test_deleted_tenants_and_queues_are_not_sampled(watcher: Watcher) -> None:
    tenant = watcher.tenant
    for name in ("kept", "deleted"):
        await tenant.publish(await tenant.queue(name), 1)
    await watcher.round()
    (await tenant.client.delete("/v1/queues/deleted")).ok(204)
    await eventually(lambda: len(watcher.records()) == 1)
    assert names(await watcher.round()) == ["kept"]
    watcher.tenants = []
    assert await watcher.round() == []


async def test_queues_are_sampled_with_audit_mode_off(watcher: Watcher) -> None:
    tenant = watcher.tenant
    (await tenant.client.post("/v1/admin/settings", {"auditMode": "off"})).ok()
    await tenant.publish(await tenant.queue("q"), 1)
    assert await tenant.events() == []
    assert [one["ready"] for one in await watcher.round()] == [1]


async def test_a_stopped_sampler_collects_no_totals(watcher: Watcher) -> None:
    running = asyncio.create_task(watcher.sampler.run())
    await asyncio.sleep(0)
    watcher.receive("q", 1, 0)
    assert watcher.throughput.active_streams()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    watcher.receive("q", 1, 0)
    assert not watcher.throughput.active_streams()


async def test_the_control_role_samples_and_a_gateway_does_not(own_server: Server) -> None:
    settings = gateway_settings(own_server.url, sample_seconds=0.2)
    async with running_gateway(settings) as gateway:
        tenant = await gateway.tenant()
        await tenant.publish(await tenant.queue("q"), 1)

        async def samples() -> list[dict[str, Any]]:
            found = await events_of(gateway.node.platform.connection, "TELEMETRY", tenant.id)
            return [event for event in found if event["event"] == "queue.sampled"]

        async def traffic() -> bool:
            found = await events_of(gateway.node.platform.connection, "TELEMETRY", tenant.id)
            return any(event["event"] == "traffic.sampled" for event in found)

        await eventually(traffic)
        assert await samples() == []
        async with running_gateway(settings, Role.CONTROL):
            found = await eventually(samples)
        assert (found[0]["queue"], found[0]["ready"]) == ("q", 1)
