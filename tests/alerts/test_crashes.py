"""Counts and notifications are exact when the process that leads is killed, at any moment."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.alerts.capability import AlertsCapability
from postroad.alerts.history import History
from postroad.alerts.notifier import Notifier, SendResult
from postroad.alerts.processor import AlertProcessor
from postroad.alerts.records import AlertRecord, Due, RuleRecord
from postroad.alerts.rules import EventFields, Rule
from postroad.api.alerts import RuleDefinition
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.ids import new_id
from postroad.subscriptions.endpoint_rules import Outcome
from tests.commands.senders import register_sender
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture
async def gateway(own_server: Server) -> AsyncIterator[Gateway]:
    """A gateway without the delivery role: the test runs the processors."""
    async with running_gateway(gateway_settings(own_server.url)) as running:
        yield running


def new_processor(gateway: Gateway) -> AlertProcessor:
    capability = gateway.node.platform.use(AlertsCapability)
    of = capability.processor
    return AlertProcessor(
        of._connection,
        gateway.node.platform.committers,
        of._index,
        of._actions,
        of._outbox,
        of._clock,
        of._destinations,
        lambda _tenant: True,
        of._is_deleted,
    )


@asynccontextmanager
async def leading(processor: AlertProcessor) -> AsyncIterator[None]:
    """Run the processor; at the end it is cancelled without a last flush, like a process that is killed."""
    running = asyncio.create_task(processor.run())
    try:
        await eventually(lambda: processor.is_running)
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def alerts(tenant: Tenant, count: int) -> list[dict[str, Any]]:
    """The alerts, once their events are so many: the table of the gateway follows what the processor stores."""
    found: list[dict[str, Any]] = []

    async def are_counted() -> bool:
        found[:] = (await tenant.client.get("/v1/alerts")).ok()["alerts"]
        return bool(sum(one["count"] for one in found) == count)

    await eventually(are_counted)
    return found


def counts(processor: AlertProcessor, wanted: int) -> Callable[[], bool]:
    return lambda: sum(one.count for one in processor.book.alerts.values()) == wanted


async def test_counts_are_exact_and_no_alert_opens_twice_when_the_leader_is_killed(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    senders = [await register_sender(tenant, name) for name in ("a", "b")]
    async with leading(new_processor(gateway)):
        pass
    sent = 0
    for round_number in range(5):
        processor = new_processor(gateway)
        async with leading(processor):
            for sender in senders:
                for _ in range(5):
                    (await sender.send_raw(b"{}")).problem(400, "command-invalid")
                    sent += 1
            if round_number % 2:  # else it is killed while events are on their way
                await eventually(counts(processor, sent))
                await processor.flush()
                (await senders[0].send_raw(b"{}")).problem(400, "command-invalid")
                (await senders[1].send_raw(b"{}")).problem(400, "command-invalid")
                sent += 2
    processor = new_processor(gateway)
    async with leading(processor):
        await eventually(counts(processor, sent))
        await processor.flush()
    shown = await alerts(tenant, sent)
    assert sorted((one["group"], one["count"]) for one in shown) == [(one.source, sent // 2) for one in senders]
    await gateway.node.platform.outbox.drain()
    opened = [one for one in await tenant.events("COMMANDS") if one["event"] == "alert.opened"]
    assert len({one["event_id"] for one in opened}) == 2


async def test_a_second_leader_ends_the_first(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    sender = await register_sender(tenant)
    first, second = new_processor(gateway), new_processor(gateway)
    await first._load()
    await second._load()
    (await sender.send_raw(b"{}")).problem(400, "command-invalid")
    async with leading(second):
        await eventually(counts(second, 1))
        await second.flush()
    first.positions["COMMANDS"] += 1
    with pytest.raises(Conflict):
        await first.flush()


async def test_ten_thousand_events_are_one_alert_with_that_count(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    sender = await register_sender(tenant)
    processor = new_processor(gateway)
    async with leading(processor):
        batch: dict[str, Any] = {"commands": [{}] * 100}
        for _ in range(100):
            assert (await sender.client.post("/v1/commands/batch", batch)).status in (200, 207)
        await eventually(counts(processor, 10_000), 120)
        await processor.flush()
    [alert] = await alerts(tenant, 10_000)
    assert alert["count"] == 10_000


async def test_nothing_is_lost_when_a_write_fails_and_the_notifier_goes_on(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notifier ignores a failed flush: the next one must store the alerts that the failed one had."""
    tenant = await gateway.tenant()
    sender = await register_sender(tenant, "a")
    processor = new_processor(gateway)
    await processor._load()
    for _ in range(3):
        (await sender.send_raw(b"{}")).problem(400, "command-invalid")
    connection = gateway.node.platform.connection
    page = await stream_reader.read(connection, "COMMANDS", f"command.{tenant.id}")
    for entry in page.entries:
        processor.apply("COMMANDS", entry)

    async def failing(_messages: object) -> Any:
        raise EngineUnavailable("down", retry_after=1)

    with monkeypatch.context() as patched:
        patched.setattr(processor._committer, "append_together", failing)
        with pytest.raises(EngineUnavailable):
            await processor.flush()
    await processor.flush()
    after = new_processor(gateway)  # as after kill -9
    await after._load()
    assert [one.count for one in after.book.alerts.values()] == [3]
    assert after.positions["COMMANDS"] == page.entries[-1].sequence


async def test_a_frame_that_changes_more_alerts_than_a_batch_holds_is_stored_in_parts(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the engine refuses would end the alerts of all tenants. A leader is killed in the middle of the frame."""
    tenant, platform = await gateway.tenant(), gateway.node.platform
    capability, processor = platform.use(AlertsCapability), new_processor(gateway)
    rules = [
        RuleRecord(tenant=tenant.id, name=f"r{number}", definition=RuleDefinition(events="snavio.test.*"), updated_at_ms=1)
        for number in range(100)
    ]
    await asyncio.gather(*(capability._rule_table.create(f"{tenant.id}.{one.name}", one) for one in rules))
    await processor._load()
    lines = [
        f'{{"event":"snavio.test.{kind}","event_id":"{kind}{source}","tenant":"{tenant.id}","source":"{tenant.id}/{source}"}}'
        for kind in (1, 1, 2, 3, 4, 5, 6)
        for source in range(10)
    ]
    frame = PendingMessage(f"command.{tenant.id}", "\n".join(lines).encode(), new_id())
    await platform.committers.of("COMMANDS").append(frame)
    stores: list[int] = []
    store = processor._committer.append_together

    async def killed(messages: Sequence[PendingMessage]) -> Any:
        stores.append(len(messages))
        if len(stores) == 3:
            raise EngineUnavailable("killed", retry_after=1)
        return await store(messages)

    monkeypatch.setattr(processor._committer, "append_together", killed)
    async with leading(processor):
        await eventually(counts(processor, 100 * len(lines)))
        await processor.flush()
    assert max(stores) <= 1000
    after = new_processor(gateway)
    await after._load()
    assert sum(one.count for one in after.book.alerts.values()) == 100 * len(lines)
    assert set(after.positions) == {"COMMANDS", "TELEMETRY"}, "none is within a frame"


async def test_digests_that_end_at_the_same_time_are_stored_in_parts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the engine refuses would have all of them sent again."""
    capability, processor = gateway.node.platform.use(AlertsCapability), new_processor(gateway)
    await processor._load()
    rule, groups = Rule("r", RuleDefinition(events="snavio.>")), {f"tenant{number}": list[AlertRecord]() for number in range(5)}
    for tenant, records in groups.items():
        for number in range(300):
            event = EventFields(event="snavio.x", event_id=str(number), tenant=tenant, source=f"{tenant}/{number}")
            processor.book.apply(event, b"{}", [rule], 1)
        records += [one for one in processor.book.alerts.values() if one.tenant == tenant]
        for one in records:
            one.due = {"hook": Due(kind="opened", since_ms=1)}
        await processor.flush()
    notifier = Notifier(processor, capability.channels, capability.notifier._push, None, gateway.clock, lambda _tenant: "")

    async def delivered(*_values: object) -> SendResult:
        return SendResult(Outcome.DELIVERED)

    monkeypatch.setattr(notifier, "send", delivered)
    await asyncio.gather(*(notifier._send_group(tenant, "hook", records) for tenant, records in groups.items()))
    after = new_processor(gateway)
    await after._load()
    assert len(after.book.alerts) == 1500 and not [one for one in after.book.alerts.values() if one.due]


async def test_nothing_is_stored_about_a_deleted_tenant(gateway: Gateway) -> None:
    """The alerts of a deleted tenant are in the memory of the leader when its stored ones are removed."""
    tenant, platform = await gateway.tenant(), gateway.node.platform
    capability, processor = platform.use(AlertsCapability), new_processor(gateway)
    await processor._load()

    async def send(name: str) -> None:
        (await (await register_sender(tenant, name)).send_raw(b"{}")).problem(400, "command-invalid")

    async def count_all() -> None:
        position = processor.positions["COMMANDS"] + 1
        page = await stream_reader.read(platform.connection, "COMMANDS", f"command.{tenant.id}", position)
        for entry in page.entries:
            processor.apply("COMMANDS", entry)

    for name in ("a", "b"):
        await send(name)
    await count_all()
    await processor.flush()
    first, second = processor.book.alerts.values()
    first.due = {"hook": Due(kind="opened", since_ms=1)}
    processor.book.resolve(first, "key", 2)
    await processor.flush()
    assert first.id in processor.book.unsent
    await send("c")
    await platform.outbox.drain()
    stored = len(await tenant.events("COMMANDS"))
    (await gateway.admin.delete(f"/api/control/tenants/{tenant.id}")).ok(202)
    await eventually(lambda: platform.identities.is_deleted(tenant.id))
    await count_all()
    await processor.tick()
    await platform.outbox.drain()
    assert not processor.book.alerts and not processor.book.unsent
    assert len(await tenant.events("COMMANDS")) == stored, "no `alert.resolved`"
    for one in (first, second):
        entry = await stream_reader.last(platform.connection, "KV_postroad_alerts", f"$KV.postroad_alerts.{one.key}")
        assert entry is not None and entry.headers["Nats-TTL"] == "60s"
    after = new_processor(gateway)
    await after._load()
    assert not after.book.alerts and after.history.excess(10) == []
    await capability.channels.record_attempt(tenant.id, "hook", "transient", 1, SendResult(Outcome.TRANSIENT))
    assert capability._attempt_table.get(f"{tenant.id}.hook") is None


async def test_only_the_newest_resolved_alerts_are_kept(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    for name in ("a", "b", "c"):
        sender = await register_sender(tenant, name)
        (await sender.send_raw(b"{}")).problem(400, "command-invalid")
    processor = new_processor(gateway)
    processor.history = History(2)
    await processor._load()
    connection = gateway.node.platform.connection
    for entry in (await stream_reader.read(connection, "COMMANDS", f"command.{tenant.id}")).entries:
        processor.apply("COMMANDS", entry)
    opened = list(processor.book.alerts.values())
    for at_ms, record in enumerate(opened, 1):
        processor.book.resolve(record, "quiet", at_ms)
        await processor.flush()
    table = gateway.node.platform.use(AlertsCapability).table
    await eventually(lambda: set(table.keys_under(f"{tenant.id}.")) == {one.key for one in opened[1:]})
    after = new_processor(gateway)
    after.history = History(1)
    await after._load()
    await eventually(lambda: set(table.keys_under(f"{tenant.id}.")) == {opened[2].key})
