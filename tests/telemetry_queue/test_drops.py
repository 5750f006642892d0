"""Unread events are counted exactly before they age out."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.management import StreamSpec, ensure_stream, stream_info
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.event import PLATFORM
from postroad.telemetry.capability import TelemetryCapability
from postroad.telemetry.frames import unpack
from postroad.telemetry_queue.capability import TelemetryQueueCapability
from postroad.telemetry_queue.drops import DropCounter
from postroad.telemetry_queue.frame_consumer import FrameConsumer
from postroad.telemetry_queue.records import DROPS_BUCKET
from postroad.telemetry_queue.rules import MARGIN_MS, RETENTION_MS
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant, events_of, frames_of, gateway_settings, running_gateway
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


async def test_operators_are_told_once_a_day_of_queues_that_nobody_has_read_for_a_week(node: Gateway, sender: Sender) -> None:
    """Requirement 193"""
    platform = node.node.platform
    sampler = platform.use(TelemetryQueueCapability).sampler
    reading = await node.tenant()
    await register_target(reading)
    reader = await register_sender(reading)
    await grant(reading, reader.source)
    for one in (sender, reader):
        await sent(one, 2)
    while messages := await reading.pull(QUEUE, 100):
        for message in messages:
            (await reading.ack(QUEUE, message["receiptId"])).ok()

    async def reports() -> list[dict[str, Any]]:
        for _ in range(2):
            await sampler.run_once()
        await platform.outbox.drain()
        found = await events_of(platform.connection, "TELEMETRY", PLATFORM)
        return [one for one in found if one["event"] == "telemetry.stalled"]

    node.clock.ahead_ms = 7 * DAY_MS - 60_000
    assert await reports() == []
    node.clock.ahead_ms = 7 * DAY_MS + 60_000
    [report] = await reports()
    assert (report["tenants"], report["oldest_tenant"], report["waiting"]) == (1, sender.tenant.id, 3), "with its own report"
    assert report["queue_age_seconds"] > 7 * 86_400
    node.clock.ahead_ms += DAY_MS
    assert len({one["event_id"] for one in await reports()}) == 2


async def limit_stream(node: Gateway, bytes_max: int) -> None:
    """Give the stream of commands a largest size."""
    connection = node.node.platform.connection
    info = await stream_info(connection, "COMMANDS")
    assert info is not None
    options = {name: value for name, value in info.config.items() if name not in ("name", "subjects")}
    await ensure_stream(connection, StreamSpec("COMMANDS", ("command.>",), {**options, "max_bytes": bytes_max}))


async def test_unread_events_are_counted_before_they_leave_for_lack_of_room(node: Gateway, sender: Sender) -> None:
    """A busy tenant fills the stream: what others have not read is counted before it goes, and what they have read is not."""
    platform = node.node.platform
    drops, evictor = (getattr(platform.use(TelemetryQueueCapability), name) for name in ("drops", "evictor"))
    quiet = await node.tenant()
    await register_target(quiet)
    other = await register_sender(quiet)
    await grant(quiet, other.source)
    await sent(other, 4)
    [read, *_] = await quiet.pull(QUEUE, 1)
    (await quiet.ack(QUEUE, read["receiptId"])).ok()
    [returned, *_] = await sent_and_pulled(sender)
    before = await all_events(node)
    assert len(before[sender.tenant.id]) > 30
    (await sender.tenant.client.post(f"{QUEUE}/nack", {"receiptId": returned["receiptId"], "action": "requeue"})).ok()
    info = await stream_info(platform.connection, "COMMANDS")
    assert info is not None
    await limit_stream(node, int(info.state.bytes / 0.7))
    assert await evictor.run_once() == 0, "there is room"
    await limit_stream(node, int(info.state.bytes / 0.86))
    removed = await evictor.run_once()
    assert removed > 0
    after = await all_events(node)
    for tenant, settled in ((quiet, {read["messageId"]}), (sender.tenant, set())):
        gone = [one for one in before[tenant.id] if one not in after.get(tenant.id, ()) and one not in settled]
        assert await drops.today(tenant.id) == len(gone)
        if tenant is quiet:
            assert len(gone) == len(before[tenant.id]) - 1, "the oldest frames are those of the quiet tenant"
    await platform.outbox.drain()
    [event] = [one for one in await events_of(platform.connection, "TELEMETRY", PLATFORM) if one["event"] == "telemetry.evicted"]
    assert (event["frames"], event["uncounted_frames"], event["busiest_tenant"]) == (removed, 0, sender.tenant.id)
    oldest = await stream_reader.read(platform.connection, "COMMANDS", "command.>", 1, 1)
    found = (await quiet.client.get("/v1/commands")).ok()
    assert found["availableFrom"] == rfc3339(oldest.entries[0].at_ms), "what was before is not found any more"
    left = set[str]()

    async def is_delivered() -> bool:
        left.update(one["event_id"] for message in await sender.tenant.pull(QUEUE, 100) for one in message["payload"])
        return left == after[sender.tenant.id]

    await eventually(is_delivered)
    node.clock.ahead_ms = DAY_MS
    await drops.run_once()
    [report] = await dropped(quiet)
    assert report["reason"] == "stream_full"


async def sent_and_pulled(sender: Sender) -> list[dict[str, Any]]:
    await sent(sender, 32)
    return await sender.tenant.pull(QUEUE, 1)


async def all_events(node: Gateway) -> dict[str, set[str]]:
    """An independent count over the frames: the ids of the events of each tenant."""
    found: dict[str, set[str]] = {}
    page = await stream_reader.read(node.node.platform.connection, "COMMANDS", "command.>", 1, 10_000)
    for entry in page.entries:
        ids = {msgspec.json.decode(line)["event_id"] for line in unpack(entry.payload)}
        found.setdefault(entry.subject.partition(".")[2], set()).update(ids)
    return found


async def test_leased_events_leave_only_when_nothing_else_makes_room(node: Gateway, sender: Sender) -> None:
    platform = node.node.platform
    evictor = platform.use(TelemetryQueueCapability).evictor
    await sent(sender, 20)
    [leased] = await sender.tenant.pull(QUEUE, 1, visibilityTimeoutMs=600_000)
    info = await stream_info(platform.connection, "COMMANDS")
    assert info is not None
    await limit_stream(node, int(info.state.bytes / 0.88))
    assert await evictor.run_once() == 0, "its reader may still acknowledge it"
    await limit_stream(node, int(info.state.bytes / 0.95))
    assert await evictor.run_once() > 0
    (await sender.tenant.ack(QUEUE, leased["receiptId"])).ok()


async def test_frames_that_the_engine_removed_first_are_reported(node: Gateway, sender: Sender) -> None:
    platform = node.node.platform
    evictor = platform.use(TelemetryQueueCapability).evictor
    await sent(sender, 20)
    assert await evictor.run_once() == 0
    info = await stream_info(platform.connection, "COMMANDS")
    assert info is not None
    await limit_stream(node, info.state.bytes // 2)
    after = await stream_info(platform.connection, "COMMANDS")
    assert after is not None
    await evictor.run_once()
    await platform.outbox.drain()
    [event] = [one for one in await events_of(platform.connection, "TELEMETRY", PLATFORM) if one["event"] == "telemetry.evicted"]
    assert event["uncounted_frames"] == after.state.first_seq - info.state.first_seq > 0


async def test_frames_of_a_deleted_tenant_are_not_reported_as_evicted(node: Gateway, sender: Sender) -> None:
    """The oldest ones of the stream."""
    platform = node.node.platform
    evictor = platform.use(TelemetryQueueCapability).evictor
    await sent(sender, 5)
    other = await node.tenant()
    await (await register_sender(other)).send_raw(b"{}")
    assert await evictor.run_once() == 0
    await platform.use(TelemetryCapability).delete_tenant(sender.tenant.id)
    info = await stream_info(platform.connection, "COMMANDS")
    assert info is not None and (info.state.messages, info.state.first_seq > 5) == (1, True)
    for _ in range(2):
        assert await evictor.run_once() == 0
    await platform.outbox.drain()
    events = await events_of(platform.connection, "TELEMETRY", PLATFORM)
    assert "telemetry.evicted" not in {one["event"] for one in events}


async def test_returned_frames_beyond_the_limit_do_not_hide_older_ones(node: Gateway, sender: Sender) -> None:
    """The engine delivers what was returned before what was never delivered."""
    drops = platform_drops(node)
    await sent(sender, 6)
    messages = await sender.tenant.pull(QUEUE, 100)
    for one in reversed(messages):
        (await sender.tenant.client.post(f"{QUEUE}/nack", {"receiptId": one["receiptId"], "action": "requeue"})).ok()
    entries = await stream_reader.read(node.node.platform.connection, "COMMANDS", f"command.{sender.tenant.id}", 1)
    assert await drops.drop_to(entries.entries[1].sequence)
    assert await drops.today(sender.tenant.id) == 2
    left = set[str]()

    async def is_delivered() -> bool:
        left.update(one["messageId"] for one in await sender.tenant.pull(QUEUE, 100))
        return len(left) == len(messages) - 2

    await eventually(is_delivered)


def platform_drops(node: Gateway) -> DropCounter:
    return node.node.platform.use(TelemetryQueueCapability).drops
