"""What is told of queues now and then."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from postroad.container import Role
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.names import queue_stream
from postroad.queues import sampler as sampler_module
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.lifecycle import QUEUES_BUCKET
from postroad.queues.rules import QueueRecord
from postroad.queues.sampler import QueueSampler
from postroad.queues.stats import QueueStats, QueueStatsReader
from postroad.queues.throughput import Throughput, _Counts
from postroad.telemetry.outbox import Outbox
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.queues.test_browsing import bury
from tests.servers import Server
from tests.waiting import eventually

SECONDS = 10.0


class Watcher:
    """A sampler with all that it needs, which looks when the test says so, at the queues of the test's tenant."""

    def __init__(self, gateway: Gateway, tenant: Tenant) -> None:
        engine = gateway.node.platform
        self.table = ReplicatedTable(Bucket(engine.connection, QUEUES_BUCKET, engine.committers), QueueRecord)
        self.rates, self.outbox, self.tenant = Throughput(engine.connection), Outbox(engine.committers, now_ms), tenant
        dead = DeadLetters(
            engine.connection,
            engine.committers,
            Bucket(engine.connection, FAILURES_BUCKET, engine.committers),
            gateway.clock,
            replicas=1,
        )
        self.meter = QueueStatsReader(engine.connection, dead, self.rates, gateway.clock)
        self.tenants = [tenant.id]
        self.sampler = QueueSampler(
            engine.connection,
            self.table,
            self.meter,
            self.rates,
            self.outbox,
            lambda: self.tenants,
            seconds=SECONDS,
        )
        self.rates.collect()

    async def look(self) -> list[dict[str, Any]]:
        """A round, of all queues that there are by now; what it has told, in the order of their names."""
        before = len(await self.told())
        names = [queue["name"] for queue in (await self.tenant.client.get("/v1/queues?limit=1000")).ok()["queues"]]
        known = {queue_stream(self.tenant.id, name) for name in names}
        await eventually(lambda: {one.stream for one in self.records()} >= known)
        count = await self.sampler.look()
        await self.outbox.drain()
        told = (await self.told())[before:]
        assert len(told) == count
        return sorted(told, key=lambda one: str(one["queue"]))

    def records(self) -> list[QueueRecord]:
        found = [self.table.get(key) for key in self.table.keys_under(f"{self.tenant.id}.")]
        return [one for one in found if one is not None]

    async def told(self) -> list[dict[str, Any]]:
        return [one for one in await self.tenant.events("TELEMETRY") if one["event"] == "queue.sampled"]

    def hear(self, queue: str, came: int, went: int) -> None:
        """As if a worker had said so."""
        counts = _Counts("a worker", 2.0, {queue_stream(self.tenant.id, queue): (came, went)})
        self.rates._hear(msgspec.msgpack.encode(counts))


@pytest.fixture
async def watcher(gateway: Gateway, tenant: Tenant) -> AsyncIterator[Watcher]:
    made = Watcher(gateway, tenant)
    following = asyncio.create_task(made.table.run())
    await made.table.wait_loaded()
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def names(told: list[dict[str, Any]]) -> list[str]:
    return [one["queue"] for one in told]


async def test_a_sample_says_what_is_in_a_queue(watcher: Watcher) -> None:
    tenant = watcher.tenant
    queue = await tenant.queue("q", expectedDrainSeconds=77)
    await bury(tenant, queue, "dead")
    for payload in ("leased", "ready", "ready"):
        await tenant.publish(queue, payload)
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await tenant.publish(queue, "later", delayMs=60_000)
    watcher.hear("q", came=50, went=20)
    watcher.hear("q", came=50, went=0)
    [told] = await watcher.look()
    assert (told["tenant"], told["queue"]) == (tenant.id, "q")
    assert (told["ready"], told["leased"], told["delayed"], told["dead"]) == (2, 1, 1, 1)
    assert told["expected_drain_seconds"] == 77
    assert 0 <= told["oldest_age_ms"] < 60_000
    assert SECONDS <= told["seconds"] < SECONDS + 5, "the first counts for the time that it might have been there"
    assert told["in_per_second"] == pytest.approx(100 / told["seconds"], abs=0.01)
    assert told["out_per_second"] == pytest.approx(20 / told["seconds"], abs=0.01)
    [again] = await watcher.look()
    assert 0 < again["seconds"] < 5
    assert (again["in_per_second"], again["out_per_second"]) == (0, 0), "each message counts once"


async def test_of_an_empty_queue_there_is_nothing_that_is_old(watcher: Watcher) -> None:
    await watcher.tenant.queue("q")
    [told] = await watcher.look()
    assert [told[name] for name in ("ready", "leased", "delayed", "dead", "waiting")] == [0] * 5
    assert told["oldest_age_ms"] is None
    assert told["expected_drain_seconds"] == 300, "where its owner expects nothing"


async def test_pulls_that_wait_are_told_of(watcher: Watcher) -> None:
    queue = await watcher.tenant.queue("q")
    waiting = asyncio.create_task(watcher.tenant.pull(queue, waitMs=10_000))

    async def is_seen() -> bool:
        watcher.hear("q", 0, 1)  # so that it is looked at although it is empty
        return [one["waiting"] for one in await watcher.look()] == [1]

    await eventually(is_seen)
    await watcher.tenant.publish(queue, 1)
    await waiting


async def test_queues_with_something_in_them_are_told_each_time_and_once_more_when_it_is_gone(watcher: Watcher) -> None:
    tenant = watcher.tenant
    await tenant.queue("empty")
    full = await tenant.queue("full")
    await tenant.publish(full, 1)
    await tenant.publish(await tenant.queue("later"), 1, delayMs=60_000)
    assert names(await watcher.look()) == ["empty", "full", "later"], "what is not known is looked at"
    assert names(await watcher.look()) == ["full", "later"]
    [message] = await tenant.pull(full, visibilityTimeoutMs=60_000)
    assert names(await watcher.look()) == ["full", "later"], "with a consumer it is still there"
    (await tenant.ack(full, message["receiptId"])).ok()
    [gone, _] = await watcher.look()
    assert (gone["queue"], gone["ready"], gone["leased"]) == ("full", 0, 0)
    assert names(await watcher.look()) == ["later"]


async def test_dead_letters_alone_do_not_make_a_queue_busy(watcher: Watcher) -> None:
    queue = await watcher.tenant.queue("q")
    await bury(watcher.tenant, queue, 1)
    assert [one["dead"] for one in await watcher.look()] == [1]
    assert await watcher.look() == []


async def test_an_empty_queue_is_told_again_after_five_minutes(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler_module._IDLE_SECONDS == 300
    await watcher.tenant.queue("q")
    await watcher.look()
    assert await watcher.look() == []
    monkeypatch.setattr(sampler_module, "_IDLE_SECONDS", 0.001)
    assert names(await watcher.look()) == ["q"]


async def test_an_empty_queue_that_was_written_to_is_told_at_the_next_look(watcher: Watcher, gateway: Gateway) -> None:
    """As the workers tell each other every two seconds."""
    tenant = watcher.tenant
    queue = await tenant.queue("q")
    await watcher.look()
    hearing = asyncio.create_task(watcher.rates.run())
    try:
        await tenant.publish(queue, 1)
        [message] = await tenant.pull(queue)
        (await tenant.ack(queue, message["receiptId"])).ok()
        await eventually(lambda: queue_stream(tenant.id, "q") in watcher.rates.stirred())
        [told] = await watcher.look()
        assert (told["ready"], told["leased"]) == (0, 0)
        assert told["in_per_second"] > 0
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def test_a_round_has_a_bound_and_what_is_beyond_it_comes_next(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler_module._ROUND_MAX == 1000
    monkeypatch.setattr(sampler_module, "_ROUND_MAX", 2)
    for number in range(6):
        await watcher.tenant.publish(await watcher.tenant.queue(f"q-{number}"), number)
    rounds = [names(await watcher.look()) for _ in range(6)]
    assert [len(one) for one in rounds] == [2] * 6
    everyone = {f"q-{number}" for number in range(6)}
    assert set(rounds[0] + rounds[1] + rounds[2]) == everyone, "all before any comes again"
    assert set(rounds[3] + rounds[4] + rounds[5]) == everyone


async def test_few_are_asked_about_at_a_time(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await watcher.tenant.queue(f"q-{number}")
    sample, now, most = QueueStatsReader.sample, 0, 0

    async def counting(self: QueueStatsReader, record: QueueRecord, **more: bool) -> QueueStats:
        nonlocal now, most
        if self is not watcher.meter:
            return await sample(self, record, **more)
        now += 1
        most = max(most, now)
        try:
            return await sample(self, record, **more)
        finally:
            now -= 1

    monkeypatch.setattr(QueueStatsReader, "sample", counting)
    assert len(await watcher.look()) == 20
    assert most == sampler_module._AT_ONCE


async def test_a_queue_that_cannot_be_seen_keeps_nobody_from_the_others(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await watcher.tenant.queue(name)
    sample = QueueStatsReader.sample

    async def fails_for_b(self: QueueStatsReader, record: QueueRecord, **more: bool) -> QueueStats:
        if record.name == "b":
            raise EngineUnavailable("away")
        return await sample(self, record, **more)

    with monkeypatch.context() as patched:
        patched.setattr(QueueStatsReader, "sample", fails_for_b)
        assert names(await watcher.look()) == ["a", "c"]
    [told] = await watcher.look()
    assert told["queue"] == "b"
    assert told["seconds"] > SECONDS, "it counts for the time in which it was not seen, too"


async def test_of_a_deleted_tenant_or_queue_nothing_is_told(watcher: Watcher) -> None:
    tenant = watcher.tenant
    for name in ("stays", "goes"):
        await tenant.publish(await tenant.queue(name), 1)
    await watcher.look()
    (await tenant.client.delete("/v1/queues/goes")).ok(204)
    await eventually(lambda: len(watcher.records()) == 1)
    assert names(await watcher.look()) == ["stays"]
    watcher.tenants = []
    assert await watcher.look() == []


async def test_a_tenant_that_wants_no_job_events_is_sampled_all_the_same(watcher: Watcher) -> None:
    tenant = watcher.tenant
    (await tenant.client.post("/v1/admin/settings", {"auditMode": "off"})).ok()
    await tenant.publish(await tenant.queue("q"), 1)
    assert await tenant.events() == []
    assert [one["ready"] for one in await watcher.look()] == [1]


async def test_whoever_stops_looking_stops_adding_up(watcher: Watcher) -> None:
    running = asyncio.create_task(watcher.sampler.run())
    await asyncio.sleep(0)
    watcher.hear("q", 1, 0)
    assert watcher.rates.stirred()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    watcher.hear("q", 1, 0)
    assert not watcher.rates.stirred()


async def test_the_control_role_tells_of_queues_and_a_gateway_does_not(own_server: Server) -> None:
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
            found = await eventually(samples, 10)
        assert (found[0]["queue"], found[0]["ready"]) == ("q", 1)
