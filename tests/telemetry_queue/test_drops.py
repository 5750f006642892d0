"""Unread events are counted exactly before they age out."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from postroad.jetstream.bucket import Bucket
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.telemetry.frames import unpack
from postroad.telemetry_queue.capability import TelemetryQueueCapability
from postroad.telemetry_queue.frame_consumer import FrameConsumer
from postroad.telemetry_queue.records import DROPS_BUCKET
from postroad.telemetry_queue.rules import MARGIN_MS, RETENTION_MS
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant, frames_of, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.engine
QUEUE = "/v1/queues/_telemetry"
DAY_MS = 86_400_000
EXPIRING_MS = RETENTION_MS - MARGIN_MS + 60_000


@pytest.fixture
async def node(own_server: Server) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url)) as running:
        yield running


@pytest.fixture
async def sender(node: Gateway) -> Sender:
    tenant = await node.tenant()
    await register_target(tenant)
    sender = await register_sender(tenant)
    await grant(tenant, sender.source)
    return sender


async def sent(sender: Sender, count: int) -> int:
    """Send commands, each in its own frame; return how many events the tenant has."""
    for number in range(count):
        assert (await sender.send(name="post" if number % 3 else "nothing")).status in (202, 404)
    return len(await sender.tenant.events("COMMANDS"))


async def dropped(tenant: Tenant) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("COMMANDS") if one["event"] == "snavio.telemetry.dropped"]


async def test_unread_events_are_counted_and_reported_once_the_day_is_over(node: Gateway, sender: Sender) -> None:
    """Requirements 194, 213"""
    tenant, drops = sender.tenant, node.node.platform.use(TelemetryQueueCapability).drops
    count = await sent(sender, 7)
    assert await drops.run_once() == 0, "they do not age out yet"
    node.clock.ahead_ms = EXPIRING_MS
    assert await drops.run_once() == count
    assert await drops.run_once() == 0
    assert (await tenant.client.get("/v1/telemetry/status")).ok()["droppedToday"] == count
    assert await tenant.pull(QUEUE, 100) == []
    assert await dropped(tenant) == []
    node.clock.ahead_ms += DAY_MS
    assert (await tenant.client.get("/v1/telemetry/status")).ok()["droppedToday"] == 0, "they belong to the day before"
    await drops.run_once()
    [event] = await dropped(tenant)
    assert set(event) == {
        "event",
        "event_id",
        "timestamp",
        "tenant",
        "version",
        "dropped_events",
        "reason",
        "queue_age_seconds",
        "last_received_at",
    }
    assert (event["dropped_events"], event["reason"], event["last_received_at"]) == (count, "queue_unconsumed", None)
    assert event["queue_age_seconds"] * 1000 > EXPIRING_MS
    node.clock.ahead_ms += 30 * DAY_MS
    assert await drops.run_once() == 0, "the report itself does not count"
    node.clock.ahead_ms += DAY_MS
    await drops.run_once()
    assert len(await dropped(tenant)) == 1


async def test_only_events_that_were_not_read_count(node: Gateway, sender: Sender) -> None:
    tenant, drops = sender.tenant, node.node.platform.use(TelemetryQueueCapability).drops
    total = await sent(sender, 8)
    messages = await tenant.pull(QUEUE, 5, visibilityTimeoutMs=600_000)
    read = [messages[index] for index in (0, 2, 4)]
    for one in read:
        (await tenant.ack(QUEUE, one["receiptId"])).ok()
    returned = messages[1]["receiptId"]
    (await tenant.client.post(f"{QUEUE}/nack", {"receiptId": returned, "action": "requeue"})).ok()
    (await tenant.client.post(f"{QUEUE}/nack", {"receiptId": messages[3]["receiptId"], "action": "requeue"})).ok()
    node.clock.ahead_ms = EXPIRING_MS
    count = sum(len(one["payload"]) for one in read)
    assert await drops.run_once() == total - count
    node.clock.ahead_ms += DAY_MS
    await drops.run_once()
    [event] = await dropped(tenant)
    assert event["dropped_events"] == total - count and event["last_received_at"] is not None


async def test_events_count_once_across_a_change_of_the_leader(
    node: Gateway, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, capability = sender.tenant, node.node.platform.use(TelemetryQueueCapability)
    count = await sent(sender, 6)
    node.clock.ahead_ms = EXPIRING_MS

    async def killed(*_args: Any, **_more: Any) -> None:
        raise EngineUnavailable("killed", retry_after=1)

    with monkeypatch.context() as patched:
        patched.setattr(FrameConsumer, "acknowledge", killed)
        with pytest.raises(EngineUnavailable):
            await capability.drops.run_once()
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "update", killed)
        with pytest.raises(EngineUnavailable):
            await capability.new_drop_counter().run_once()
    await capability.new_drop_counter().run_once()
    assert await tenant.pull(QUEUE, 100) == [], "what counts as dropped is not delivered"
    node.clock.ahead_ms += DAY_MS
    await capability.new_drop_counter().run_once()
    [event] = await dropped(tenant)
    assert event["dropped_events"] == count
    assert await node.node.platform.bucket(DROPS_BUCKET).get(tenant.id) is not None


@pytest.mark.parametrize("seed", range(4))
async def test_the_count_is_that_of_the_frames_whatever_stops_the_leaders(
    node: Gateway, sender: Sender, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two leaders at a time, each stopped at some moment, and a reader that has read a part: an independent count."""
    monkeypatch.setattr("postroad.telemetry_queue.drops._LEASE_MS", 100)
    chance, tenant = random.Random(seed), sender.tenant
    capability = node.node.platform.use(TelemetryQueueCapability)
    await sent(sender, 25)
    messages = await tenant.pull(QUEUE, 100, visibilityTimeoutMs=600_000)
    read = chance.sample(messages, chance.randrange(len(messages)))
    for one in messages:
        is_read = one in read
        answer = await tenant.client.post(f"{QUEUE}/{'ack' if is_read else 'nack'}", _settlement(one, is_read=is_read))
        answer.ok()
    frames = await frames_of(node.node.platform.connection, "COMMANDS", tenant.id)
    events = [msgspec.json.decode(line) for frame in frames for line in unpack(frame)]
    total = sum(one["event"].startswith("snavio.") for one in events)
    node.clock.ahead_ms = EXPIRING_MS

    async def lead_for_a_moment(seconds: float) -> None:
        with contextlib.suppress(Conflict, EngineUnavailable, TimeoutError):
            async with asyncio.timeout(seconds):
                await capability.new_drop_counter().run_once()

    rounds: list[int] = []

    async def is_empty() -> bool:
        rounds.append(0)  # longer ones each time: a busy machine needs them to finish
        await asyncio.gather(*(lead_for_a_moment(chance.random() * 0.01 * len(rounds)) for _ in range(2)))
        status = (await tenant.client.get("/v1/telemetry/status")).ok()
        return (status["waiting"], status["leased"]) == (0, 0)

    await eventually(is_empty)
    await capability.new_drop_counter().run_once()
    node.clock.ahead_ms += DAY_MS
    await capability.new_drop_counter().run_once()
    [event] = await dropped(tenant)
    assert event["dropped_events"] == total - sum(len(one["payload"]) for one in read)


def _settlement(message: dict[str, Any], *, is_read: bool) -> dict[str, Any]:
    return {"receiptId": message["receiptId"], **({} if is_read else {"action": "requeue"})}


async def test_samples_and_a_daily_report_of_an_unread_queue(node: Gateway, sender: Sender) -> None:
    """Requirements 192, 197"""
    tenant, sampler = sender.tenant, node.node.platform.use(TelemetryQueueCapability).sampler
    await sent(sender, 2)
    assert await sampler.run_once() == 1
    node.clock.ahead_ms = DAY_MS + 60_000
    await sampler.run_once()
    await sampler.run_once()
    await node.node.platform.outbox.drain()
    samples = [one for one in await tenant.events("TELEMETRY") if one["event"] == "telemetry.sampled"]
    assert [one["waiting"] for one in samples][:2] == [2, 2] and len(samples) == 3
    [report] = [one for one in await tenant.events("COMMANDS") if one["event"] == "telemetry.unconsumed"]
    assert report["queue_age_seconds"] > 86_400
