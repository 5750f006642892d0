"""Alerts of a running node: events in, list, email and webhook out."""

import re
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook

from postroad.alerts.capability import AlertsCapability
from postroad.alerts.events import ChannelFailing
from postroad.alerts.records import RuleRecord
from postroad.api.alerts import RuleDefinition
from postroad.commands.events import SnapshotFailed
from postroad.kernel.event import PLATFORM
from postroad.queues.events import QueueSampled
from postroad.telemetry.events import ProcessSampled
from postroad.telemetry_queue.events import TelemetryStalled
from tests.alerts.mail_server import Mailbox
from tests.commands.senders import Sender, register_sender
from tests.gateway import Gateway, Tenant
from tests.live_state.test_live import live
from tests.subscriptions.receiver import Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    return await register_sender(tenant)


async def invalid(sender: Sender, count: int = 1) -> None:
    for _ in range(count):
        (await sender.send_raw(b"{}")).problem(400, "command-invalid")


async def alerts(tenant: Tenant, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.client.get(f"/v1/alerts?{query}")).ok()["alerts"]
    return found


async def counted(tenant: Tenant, count: int) -> dict[str, Any]:
    """The only alert of the tenant, once it has that count."""

    async def found() -> dict[str, Any] | None:
        some = await alerts(tenant)
        return some[0] if some and sum(one["count"] for one in some) == count else None

    result = await eventually(found)
    assert isinstance(result, dict)
    return result


async def webhook(tenant: Tenant, receiver: Receiver, name: str = "hook") -> str:
    body = {"kind": "webhook", "url": f"{receiver.url}/{name}"}
    saved = (await tenant.client.put(f"/v1/alert-channels/{name}", body)).ok(201)
    return str(saved["secret"])


async def confirmed_email(tenant: Tenant, mailbox: Mailbox, name: str = "mail") -> str:
    address = f"{tenant.id}@example.com"
    channel = (await tenant.client.put(f"/v1/alert-channels/{name}", {"kind": "email", "address": address})).ok(201)
    assert channel["state"] == "unconfirmed"
    [message] = mailbox.to(address)
    code = re.search(r"Code: (\d{8})", message.get_content())
    assert code is not None
    answer = await tenant.client.post(f"/v1/alert-channels/{name}/confirm", {"code": code[1]})
    assert answer.ok()["state"] == "active"
    return address


async def use_channels(tenant: Tenant, *channels: str, **more: Any) -> None:
    rule = {"events": "snavio.command.invalid", "severity": "critical", "channels": list(channels), **more}
    (await tenant.client.put("/v1/alert-rules/command-invalid", rule)).ok()


async def test_an_alert_opens_counts_and_is_sent_by_email_and_webhook(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver, mailbox: Mailbox
) -> None:
    """Requirements 178, 181, 182, 183, 184, 200"""
    secret, address = await webhook(tenant, receiver), await confirmed_email(tenant, mailbox)
    await use_channels(tenant, "hook", "mail")
    await invalid(sender, 5)
    alert = await counted(tenant, 5)
    assert (alert["rule"], alert["event"], alert["group"]) == ("command-invalid", "snavio.command.invalid", sender.source)
    assert (alert["severity"], alert["status"], len(alert["samples"])) == ("critical", "open", 3)
    await eventually(lambda: receiver.received and len(mailbox.to(address)) == 2)
    [request] = receiver.received
    verified = Webhook(secret).verify(request.body, request.headers)
    assert verified["alerts"][0]["id"] == alert["id"] and verified["type"] == "alert.opened"
    message = mailbox.to(address)[1]
    assert message["Subject"].strip().startswith("[critical] snavio.command.invalid of")
    body = msgspec.json.decode(message.get_content())
    assert set(body) == set(verified) and body["alerts"][0]["id"] == alert["id"]
    assert await eventually(lambda: opened(tenant)) == [alert["id"]]

    node.clock.ahead_ms += 300_001
    await eventually(lambda: len(receiver.received) == 2 and len(mailbox.to(address)) == 3)
    assert Webhook(secret).verify(receiver.received[1].body, receiver.received[1].headers)["type"] == "alert.grew"
    assert receiver.received[0].headers["webhook-id"] != receiver.received[1].headers["webhook-id"]
    node.clock.ahead_ms += 300_001
    await eventually(lambda: _has_status(tenant, "resolved"))
    assert (len(receiver.received), len(mailbox.to(address))) == (2, 3)
    [resolved] = await alerts(tenant, "status=resolved")
    assert resolved["resolvedBy"] == "quiet" and resolved["count"] == 5
    channel = (await tenant.client.get("/v1/alert-channels/hook")).ok()
    assert [one["outcome"] for one in channel["attempts"]] == ["delivered", "delivered"]


async def _has_status(tenant: Tenant, status: str) -> bool:
    return [one["status"] for one in await alerts(tenant)] == [status]


async def test_alerts_are_acknowledged_and_resolved(node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver) -> None:
    """Requirement 182"""
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    await invalid(sender)
    alert = await counted(tenant, 1)
    path = f"/v1/alerts/{alert['id']}"
    acknowledged = (await tenant.client.post(f"{path}/ack")).ok()
    assert (acknowledged["status"], acknowledged["acknowledgedBy"]) == ("acknowledged", tenant.record.id)
    await eventually(lambda: receiver.received)
    await invalid(sender)
    await counted(tenant, 2)
    (await tenant.client.post(f"{path}/resolve")).ok()
    assert (await tenant.client.get(path)).ok()["status"] == "resolved"
    await eventually(lambda: _resolved_events(tenant))
    await invalid(sender)
    await eventually(lambda: _count(tenant, 2))
    assert len({one["id"] for one in await alerts(tenant)}) == 2, "later events open another one"
    other = await node.tenant()
    (await other.client.get(path)).problem(404, "alert-not-found")
    assert await alerts(other) == []
    (await other.client.post(f"{path}/ack")).problem(404, "alert-not-found")


async def _resolved_events(tenant: Tenant) -> bool:
    return any(one["event"] == "alert.resolved" for one in await tenant.events("COMMANDS"))


async def opened(tenant: Tenant) -> list[str]:
    """The alerts of the stored events `alert.opened`."""
    return [one["alert_id"] for one in await tenant.events("COMMANDS") if one["event"] == "alert.opened"]


async def _count(tenant: Tenant, count: int) -> bool:
    return len(await alerts(tenant)) == count


async def test_alerts_do_not_depend_on_the_telemetry_queue(sender: Sender, tenant: Tenant) -> None:
    """Requirement 180: nobody reads the queue, and it does not even get the events."""
    (await tenant.client.post("/v1/admin/settings", {"telemetryEvents": ["!snavio.>"]})).ok()
    await invalid(sender, 2)
    assert (await counted(tenant, 2))["rule"] == "command-invalid"
    assert (await tenant.client.post("/v1/queues/_telemetry/pull", {})).ok()["messages"] == []


async def test_rules_of_a_tenant_filter_and_group(sender: Sender, tenant: Tenant) -> None:
    """Requirements 144, 181"""
    rule = {"events": "snavio.command.*", "source": "other", "severity": "info"}
    (await tenant.client.put("/v1/alert-rules/mine", rule)).ok(201)
    other = await register_sender(tenant, "other")
    await invalid(sender)
    await invalid(other)
    await eventually(lambda: _count(tenant, 3))
    assert sorted((one["rule"], one["group"]) for one in await alerts(tenant)) == [
        ("command-invalid", sender.source),
        ("command-invalid", other.source),
        ("mine", other.source),
    ]
    assert [one["rule"] for one in await alerts(tenant, "rule=mine")] == ["mine"]
    names = {one["name"] for one in (await tenant.client.get("/v1/alert-rules")).ok()["rules"]}
    assert {"mine", "command-invalid", "route-health", "telemetry-dropped"} <= names
    assert (await tenant.client.delete("/v1/alert-rules/mine")).status == 204
    (await tenant.client.get("/v1/alert-rules/mine")).problem(404, "alert-rule-not-found")


@pytest.mark.parametrize("name", ["Upper", "-first", "a.b", "%C2%84", "line%0A", "a" * 65])
async def test_other_names_of_rules_and_channels_are_refused(tenant: Tenant, receiver: Receiver, name: str) -> None:
    (await tenant.client.put(f"/v1/alert-rules/{name}", {"events": "a.*"})).problem(400, "invalid-parameter")
    channel = {"kind": "webhook", "url": f"{receiver.url}/hook"}
    (await tenant.client.put(f"/v1/alert-channels/{name}", channel)).problem(400, "invalid-parameter")


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"events": "job.dead"}, "events"),
        ({"events": "job.>"}, "events"),
        ({"events": "snavio.comand.failed"}, "events"),
        ({"events": "command.archived"}, "events"),
        ({"events": "alert.*"}, "events"),
        ({"events": "snavio.>", "source": "a b"}, "source"),
        ({"events": "snavio.>", "target": "a/b/c"}, "target"),
    ],
)
async def test_a_rule_that_no_event_can_match_is_refused(tenant: Tenant, rule: dict[str, str], field: str) -> None:
    problem = (await tenant.client.put("/v1/alert-rules/mine", rule)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == f"$.{field}"


async def test_a_rule_of_an_earlier_version_that_no_event_can_match_can_be_turned_off(node: Gateway, tenant: Tenant) -> None:
    capability = node.node.platform.use(AlertsCapability)
    old = RuleDefinition(events="job.dead", source="a b")
    record = RuleRecord(tenant=tenant.id, name="mine", definition=old, updated_at_ms=1)
    await capability._rule_table.create(f"{tenant.id}.mine", record)
    off = {"events": "job.dead", "source": "a b", "enabled": False}
    assert not (await tenant.client.put("/v1/alert-rules/mine", off)).ok()["enabled"]
    for change in ({"events": "job.done"}, {"source": "b c"}):
        (await tenant.client.put("/v1/alert-rules/mine", {**off, **change})).problem(422, "invalid-body")


async def test_critical_events_cannot_be_left_without_a_channel(tenant: Tenant, receiver: Receiver) -> None:
    """Requirement 185"""
    client = tenant.client
    bodies: list[dict[str, Any]] = [{"channels": []}, {"enabled": False}, {"minCount": 5}]
    for body in bodies:
        rule = {"events": "snavio.command.invalid", **body}
        (await client.put("/v1/alert-rules/command-invalid", rule)).problem(409, "critical-event-uncovered")
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    (await client.delete("/v1/alert-channels/hook")).problem(409, "critical-event-uncovered")
    (await client.put("/v1/alert-rules/all", {"events": "snavio.>"})).ok(201)
    assert (await client.delete("/v1/alert-channels/hook")).status == 204
    (await client.delete("/v1/alert-rules/all")).problem(409, "critical-event-uncovered")
    assert (await client.delete("/v1/alert-rules/command-invalid")).status == 204
    restored = (await client.get("/v1/alert-rules/command-invalid")).ok()
    assert (restored["channels"], restored["changed"], restored["critical"]) == (["dashboard"], False, True)
    (await client.put("/v1/alert-rules/x", {"events": "a.*", "channels": ["nothing"]})).problem(422, "invalid-body")
    hours = {"start": "22:00", "end": "07:00", "timeZone": "Nowhere"}
    (await client.put("/v1/alert-rules/x", {"events": "a.*", "quietHours": hours})).problem(422, "invalid-body")


async def test_critical_alerts_without_a_channel_go_to_the_contact_or_to_operators(
    node: Gateway, sender: Sender, tenant: Tenant, mailbox: Mailbox
) -> None:
    """Requirements 186, 201"""
    await invalid(sender)
    alert = await counted(tenant, 1)
    shown = (await node.admin.get("/api/control/alerts?limit=1000")).ok()["alerts"]
    assert alert["id"] in [one["id"] for one in shown]
    (await tenant.client.get("/api/control/alerts")).problem(403, "forbidden")
    contact = f"contact-{tenant.id}@example.com"
    (await tenant.client.post("/v1/admin/settings", {"contact": contact})).problem(403, "forbidden")
    operator = node.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    (await operator.post("/v1/admin/settings", {"contact": contact})).ok()
    second = await register_sender(tenant, "second")
    await invalid(second)
    await eventually(lambda: mailbox.to(contact))
    shown = (await node.admin.get("/api/control/alerts?limit=1000")).ok()["alerts"]
    assert second.source not in [one["group"] for one in shown]


async def test_events_of_the_platform_and_of_queues_raise_alerts(node: Gateway, tenant: Tenant) -> None:
    """Requirements 85, 179, 191, 193"""
    outbox, capability = node.node.platform.outbox, node.node.platform.use(AlertsCapability)
    sample = ProcessSampled(
        tenant=PLATFORM,
        worker=f"w-{tenant.id}",
        role="gateway",
        seconds=1,
        requests=0,
        client_errors=0,
        server_errors=0,
        open_requests=0,
        loop_lag_ms=0,
        memory_bytes=0,
        events_dropped=3,
    )
    version = f"v-{tenant.id}"
    outbox.record(None, SnapshotFailed(tenant=PLATFORM, version_id=version, detail="the checksum differs"))
    stalled = TelemetryStalled(tenant=PLATFORM, tenants=2, oldest_tenant=tenant.id, queue_age_seconds=604_801, waiting=9)
    outbox.record(None, stalled)
    outbox.record(None, sample, ChannelFailing(tenant=PLATFORM, channel=f"{tenant.id}/x", failures=3, error="timeout"))

    def queue_sample(dead: int) -> QueueSampled:
        return QueueSampled(
            tenant=tenant.id,
            queue="q",
            ready=0,
            leased=0,
            delayed=0,
            dead=dead,
            waiting=0,
            expected_drain_seconds=300,
            in_per_second=0,
            out_per_second=0,
            seconds=1,
        )

    await capability.dead_letters.observe([queue_sample(5)])
    assert await capability.dead_letters.observe([queue_sample(14)]) == 0
    assert await capability.dead_letters.observe([queue_sample(15)]) == 1
    assert await capability.dead_letters.observe([queue_sample(40)]) == 0, "not again in this window"
    await eventually(lambda: _count(tenant, 1))
    [alert] = await alerts(tenant)
    assert (alert["rule"], alert["group"]) == ("dead-letters-growing", "q")

    async def rules_of_platform() -> bool:
        shown = (await node.admin.get("/api/control/alerts?limit=1000")).ok()["alerts"]
        found = {(one["rule"], one["group"]) for one in shown}
        snapshots = [event["version_id"] for one in shown if one["rule"] == "snapshot-failed" for event in one["samples"]]
        wanted = {("events-dropped", f"w-{tenant.id}"), ("channel-failing", f"{tenant.id}/x"), ("telemetry-stalled", "")}
        return wanted <= found and version in snapshots

    await eventually(rules_of_platform)


async def test_alerts_are_in_the_live_state(sender: Sender, tenant: Tenant) -> None:
    """The dashboard channel: open alerts as they change; a critical one without another channel is only there."""
    async with live(tenant.client, "alerts") as state:
        rows = state.sections["alerts"]
        assert rows == {}
        await invalid(sender)
        await state.until(lambda: len(rows) == 1)
        [alert] = rows.values()
        assert (alert["rule"], alert["status"], alert["count"]) == ("command-invalid", "open", 1)
        assert alert["isOnDashboard"] and alert["isOnlyHere"]
        (await tenant.client.post(f"/v1/alerts/{alert['id']}/ack")).ok()
        await state.until(lambda: rows[alert["id"]]["status"] == "acknowledged")
        await invalid(sender)
        await state.until(lambda: rows[alert["id"]]["count"] == 2)
        (await tenant.client.post(f"/v1/alerts/{alert['id']}/resolve")).ok()
        await state.until(lambda: rows[alert["id"]]["status"] == "resolved")


async def test_an_alert_with_a_channel_is_not_only_in_the_console(sender: Sender, tenant: Tenant, receiver: Receiver) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    narrow = await tenant.another_key(allowed_services=("nothing",))
    async with live(tenant.client, "alerts") as state, live(narrow.client, "alerts") as restricted:
        await invalid(sender)
        await state.until(lambda: bool(state.sections["alerts"]))
        [alert] = state.sections["alerts"].values()
        assert not alert["isOnDashboard"] and not alert["isOnlyHere"]
        assert restricted.sections["alerts"] == {}
