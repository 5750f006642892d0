"""Every `snavio.*` event of a tenant reaches its telemetry queue with exactly its fields, and no other tenant's."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad import registry
from postroad.alerts.recommended_actions import ACTIONS, DOCUMENTED
from postroad.commands.capability import CommandsCapability
from postroad.contracts.verdicts import FAIRNESS_VERDICTS
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import PLATFORM, Event, event_name
from postroad.telemetry_queue.capability import TelemetryQueueCapability
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.commands.test_verdicts import verdict
from tests.gateway import Gateway, events_of, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.engine
QUEUE = "/v1/queues/_telemetry"
DAY_MS = 86_400_000
TYPES = {event_name(kind): kind for kind in registry.event_types() if event_name(kind).startswith("snavio.")}
Trigger = Callable[[Gateway, Sender], Awaitable[None]]


async def delivered(_gateway: Gateway, sender: Sender) -> None:
    (await sender.send()).ok(202)


async def invalid(_gateway: Gateway, sender: Sender) -> None:
    (await sender.send_raw(b"{}")).problem(400, "command-invalid")


async def failed(_gateway: Gateway, sender: Sender) -> None:
    (await sender.send(name="nothing")).problem(404, "route-missing")


async def revoked(gateway: Gateway, sender: Sender) -> None:
    commands = gateway.node.platform.use(CommandsCapability)
    (await sender.send()).ok(202)
    record = commands.route_table.get(f"{sender.tenant.id}.bot.post")
    assert record is not None
    (await sender.tenant.client.delete("/v1/grants/bot/post/billing")).ok(204)
    commands.auditor.record(record, sender.source, gateway.clock() + 1)
    current = commands.route_table.get(record.key)
    assert current is not None
    commands.auditor.check(current)


async def legacy_key(_gateway: Gateway, sender: Sender) -> None:
    (await sender.tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    (await sender.send()).ok(202)


async def key_expiry(gateway: Gateway, sender: Sender) -> None:
    gateway.clock.ahead_ms = 120_000
    (await sender.tenant.client.post("/v1/services/billing/secrets/rotate", {"overlapSeconds": 3 * 86_400})).ok()
    gateway.clock.ahead_ms += DAY_MS + 60_000
    (await sender.send(timestamp=rfc3339(gateway.clock()))).ok(202)


async def skew(gateway: Gateway, sender: Sender) -> None:
    (await sender.send(timestamp=rfc3339(gateway.clock() - 50_000))).ok(202)


async def skew_sample(gateway: Gateway, sender: Sender) -> None:
    for _ in range(3000):  # one in a hundred, by the id
        (await sender.send(command_id=str(uuid.uuid4()))).ok(202)
        if await has_event(sender, "snavio.telemetry.skew_sample"):
            return


async def dropped(gateway: Gateway, sender: Sender) -> None:
    (await sender.send()).ok(202)
    drops = gateway.node.platform.use(TelemetryQueueCapability).new_drop_counter()
    drops._tenants = lambda: [sender.tenant.id]
    gateway.clock.ahead_ms = 14 * DAY_MS - 1_800_000
    await drops.run_once()
    gateway.clock.ahead_ms += DAY_MS
    await drops._report(sender.tenant.id, *await drops._load(sender.tenant.id))


async def duplicate(_gateway: Gateway, sender: Sender) -> None:
    route = {"queue": "bot-post", "dedupe_mode": "strict"}
    (await sender.tenant.client.put("/v1/routes/bot/post", route)).ok()
    command_id = str(uuid.uuid4())
    (await sender.send(command_id=command_id)).ok(202)
    assert (await sender.send(command_id=command_id)).ok()["duplicate"]


async def warm_path_ban(_gateway: Gateway, sender: Sender) -> None:
    """One sender uses nearly all of a limit that another one competes for."""
    tenant = sender.tenant
    fairness = {"window_seconds": 3600, "ban_seconds": 3600, "competing_sources": 1}
    route = {"queue": "bot-post", "rate_limit": {"max": 100_000, "interval_seconds": 3600}, "fairness": fairness}
    (await tenant.client.put("/v1/routes/bot/post", route)).ok()
    other = await register_sender(tenant, "other")
    await grant(tenant, other.source)

    async def is_banned() -> bool:  # by the slow path until tokens are prefetched
        for answer in await asyncio.gather(other.send(), *(sender.send() for _ in range(30))):
            answer.ok(202)
        return await has_event(sender, "snavio.fairness.warm-path-ban")

    await eventually(is_banned)


async def abuse(gateway: Gateway, sender: Sender) -> None:
    """A verdict as the pipeline's auditor publishes it, applied by the leader's job."""
    verdicts = gateway.node.platform.use(CommandsCapability).verdicts
    body = msgspec.json.encode(verdict(gateway, sender))
    subject = FAIRNESS_VERDICTS.subject_of(tenant=sender.tenant.id)
    await gateway.node.platform.connection.request(subject, body)
    consuming = asyncio.create_task(verdicts.consume())
    try:
        await eventually(lambda: has_event(sender, "snavio.fairness.abuse_detected"))
    finally:
        consuming.cancel()


async def has_event(sender: Sender, name: str) -> bool:
    return any(one["event"] == name for one in await sender.tenant.events("COMMANDS"))


TRIGGERS: dict[str, Trigger] = {
    "snavio.command.delivered": delivered,
    "snavio.command.invalid": invalid,
    "snavio.command.failed": failed,
    "snavio.command.executed_after_acl_revoked": revoked,
    "snavio.secret.legacy_key_used": legacy_key,
    "snavio.secret.key_expiry_imminent": key_expiry,
    "snavio.telemetry.skew_near_limit": skew,
    "snavio.telemetry.skew_sample": skew_sample,
    "snavio.telemetry.dropped": dropped,
    "snavio.command.duplicate": duplicate,
    "snavio.fairness.warm-path-ban": warm_path_ban,
    "snavio.fairness.abuse_detected": abuse,
}


@pytest.fixture(autouse=True)
def _reset_clock(gateway: Gateway) -> Any:
    yield
    gateway.clock.ahead_ms = 0


async def snapshot_too_large(gateway: Gateway) -> None:
    writer = gateway.node.platform.use(CommandsCapability).snapshot_writer
    writer._bytes_max = 100
    assert await writer.write() is None


OF_THE_PLATFORM: dict[str, Callable[[Gateway], Awaitable[None]]] = {"snavio.snapshot.too_large": snapshot_too_large}


def fields_of(kind: type[Event]) -> set[str]:
    return {"event", *(field.encode_name for field in msgspec.structs.fields(kind))}


@pytest.mark.parametrize("name", sorted(set(TYPES) - set(OF_THE_PLATFORM)))
async def test_every_event_is_pulled_with_exactly_its_fields(gateway: Gateway, name: str) -> None:
    """Requirements 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212, 213. A type without a trigger fails here."""
    tenant, other = await gateway.tenant(), await gateway.tenant()
    await register_target(tenant)
    sender = await register_sender(tenant)
    await grant(tenant, sender.source)
    await register_sender(other)
    await TRIGGERS[name](gateway, sender)
    await gateway.node.platform.outbox.drain()
    found: list[dict[str, Any]] = []
    while messages := await tenant.pull(QUEUE, 100):
        for message in messages:
            found += [one for one in message["payload"] if one["event"] == name]
            (await tenant.ack(QUEUE, message["receiptId"])).ok()
    assert found, f"no {name}"
    assert set(found[0]) == fields_of(TYPES[name])
    assert found[0]["tenant"] == tenant.id
    assert await other.pull(QUEUE, 100) == []


@pytest.mark.parametrize("name", OF_THE_PLATFORM)
async def test_events_of_the_platform_are_stored_with_exactly_their_fields(own_server: Server, name: str) -> None:
    """Requirement 214: the tenant is `_platform`, which has no queue; operators get an alert."""
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        tenant = await gateway.tenant()
        await register_target(tenant)
        await OF_THE_PLATFORM[name](gateway)
        await gateway.node.platform.outbox.drain()
        stored = await events_of(gateway.node.platform.connection, TYPES[name].stream, PLATFORM)
        [found] = [one for one in stored if one["event"] == name]
        assert set(found) == fields_of(TYPES[name])
        await register_sender(tenant)
        assert await tenant.pull(QUEUE, 100) == []


def test_every_event_of_commands_has_a_recommended_action() -> None:
    """Requirement 195"""
    names = {event_name(kind) for kind in registry.event_types()}
    wanted = {name for name in names if name.startswith(DOCUMENTED)}
    assert wanted - set(ACTIONS) == set()
    assert set(ACTIONS) <= names


def test_every_documented_example_is_an_event_of_its_type() -> None:
    """Requirement 195: with all its fields; optional ones may be null."""
    text = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    examples = [msgspec.json.decode(one) for one in re.findall(r"```json\n(.*?)\n```", text)]
    assert {one["event"] for one in examples} == set(ACTIONS)
    kinds = {event_name(kind): kind for kind in registry.event_types()}
    for example in examples:
        kind = kinds[example["event"]]
        assert set(example) == fields_of(kind) and msgspec.convert(example, kind), example
        assert "…" not in example.values(), example
