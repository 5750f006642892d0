"""Dispatch over HTTP: each outcome with its response, event and message."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    return await register_sender(tenant)


async def test_a_granted_command_reaches_the_queue_of_its_target(tenant: Tenant, sender: Sender) -> None:
    """Requirements 1, 3, 5, 11, 14, 27, 47, 175, 202"""
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    payload = b'{ "text" : "hi",\n "n": 1.0, "caf\\u00e9": "\xc3\xa9" }'
    command_id = str(uuid.uuid4()).upper()
    done = (await sender.send(payload=payload, command_id=command_id)).ok(202)
    assert done == {"commandId": command_id.lower(), "messageId": done["messageId"], "path": "fast"}
    [event] = await outcomes(tenant)
    assert event["event"] == "snavio.command.delivered"
    assert (event["command_id"], event["source"], event["target"]) == (command_id.lower(), sender.source, f"{tenant.id}/bot")
    assert (event["command.name"], event["path"], event["replay"]) == ("post", "fast", False)
    assert event["dispatch_latency_ms"] > 0 and event["tenant"] == tenant.id
    [message] = await tenant.pull(queue)
    assert message["messageId"] == done["messageId"] and message["payload"] == msgspec.json.decode(payload)
    assert message["headers"] == {
        "Snavio-Command-Id": command_id.lower(),
        "Snavio-Source": sender.source,
        "Snavio-Target": f"{tenant.id}/bot",
        "Snavio-Command": "post",
        "Snavio-Sent-At": message["headers"]["Snavio-Sent-At"],
        "Snavio-Path": "fast",
    }
    queued = await eventually(lambda: _queued(tenant))
    assert [one["message_id"] for one in queued] == [done["messageId"]]


async def _queued(tenant: Tenant) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("JOBS") if one["event"] == "job.queued"]


async def test_the_dispatcher_may_write_to_a_queue_that_the_senders_key_may_not(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 34, 47: the queue belongs to the owner of the route, who may look at it."""
    queue = await register_target(tenant)
    other = await gateway.tenant()
    sender = await register_sender(other)
    await grant(tenant, sender.source)
    refused = other.client.with_headers(**{"X-Postroad-Tenant": tenant.id})
    assert (await refused.post(f"{queue}/messages", {"payload": 1})).status in (401, 403)
    (await other.client.post(f"{queue}/messages", {"payload": 1})).problem(404, "queue-not-found")
    sent = (await sender.send(target=f"{tenant.id}/bot")).ok(202)
    (await other.client.get(queue)).problem(404, "queue-not-found")
    [message] = await tenant.pull(queue)
    assert message["messageId"] == sent["messageId"] and message["headers"]["Snavio-Source"] == sender.source


async def test_a_command_without_a_grant_is_denied(tenant: Tenant, sender: Sender) -> None:
    """Requirements 25, 62, 146, 204"""
    queue = await register_target(tenant)
    refused = (await sender.send()).problem(403, "acl-deny")
    assert refused["reason"] == "acl-deny" and refused["retryable"] is False
    [event] = await outcomes(tenant)
    assert (event["event"], event["reason"], event["escalated"]) == ("snavio.command.failed", "acl-deny", "cache_miss")
    assert (await tenant.stats(queue))["ready"] == 0


async def test_a_missing_route_names_similar_ones(tenant: Tenant, sender: Sender) -> None:
    """Requirements 177, 204"""
    await register_target(tenant, command="post-message")
    refused = (await sender.send(name="post-mesage")).problem(404, "route-missing")
    assert "bot/post-message" in refused["detail"]
    [event] = await outcomes(tenant)
    assert (event["event"], event["reason"]) == ("snavio.command.failed", "route-missing")


async def test_other_tenants_do_not_learn_which_routes_exist(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    other = await gateway.tenant()
    await register_target(other)
    known = (await sender.send(target=f"{other.id}/bot")).problem(403, "acl-deny")
    unknown = (await sender.send(target=f"{other.id}/bot", name="none")).problem(403, "acl-deny")
    nobody = (await sender.send(target="no-such-tenant/bot")).problem(403, "acl-deny")
    assert {one["title"] for one in (known, unknown, nobody)} == {"Not granted"}
    assert all("bot-post" not in one["detail"] for one in (known, unknown, nobody))


async def test_another_tenant_is_granted_by_name(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """The outcome event is of the sender's tenant. Requirements 25, 168"""
    other = await gateway.tenant()
    queue = await register_target(other)
    await grant(other, sender.source)
    (await sender.send(target=f"{other.id}/bot")).ok(202)
    assert [one["event"] for one in await outcomes(tenant)] == ["snavio.command.delivered"]
    assert await outcomes(other) == []
    [message] = await other.pull(queue)
    assert message["headers"]["Snavio-Source"] == sender.source


async def test_a_whole_tenant_is_granted(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    other = await gateway.tenant()
    await register_target(other)
    await grant(other, f"{tenant.id}/*")
    (await sender.send(target=f"{other.id}/bot")).ok(202)
    second = await register_sender(tenant, "mailer")
    (await second.send(target=f"{other.id}/bot")).ok(202)
    stranger = await register_sender(await gateway.tenant())
    (await stranger.send(target=f"{other.id}/bot")).problem(403, "acl-deny")


async def test_a_missing_or_full_queue_is_a_delivery_failure(tenant: Tenant, sender: Sender) -> None:
    """Requirements 204, 226"""
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    (await tenant.client.put(queue, {"maxAttempts": 3, "maxMessages": 1})).ok()
    (await sender.send()).ok(202)
    (await sender.send()).problem(507, "delivery-failure")
    (await tenant.client.delete(queue)).ok(204)
    (await sender.send()).problem(502, "delivery-failure")
    events = await outcomes(tenant)
    assert [(one["event"], one.get("reason")) for one in events] == [
        ("snavio.command.delivered", None),
        ("snavio.command.failed", "delivery-failure"),
        ("snavio.command.failed", "delivery-failure"),
    ]


async def test_a_queue_with_a_schema_may_refuse_the_payload(tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    (await tenant.client.put(queue, {"maxAttempts": 3, "schema": {"type": "object", "required": ["text"]}})).ok()
    (await sender.send()).ok(202)
    refused = (await sender.send(payload=b"{}")).problem(502, "delivery-failure")
    assert "schema-mismatch" in refused["detail"]


async def test_a_repeated_envelope_is_stored_once_and_has_one_event_id(tenant: Tenant, sender: Sender) -> None:
    """Requirements 6, 128"""
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    body = envelope(sender.secret)
    first, second = [(await sender.client.post("/v1/commands", body)).ok(202) for _ in range(2)]
    assert first == second
    assert (await tenant.stats(queue))["ready"] == 1
    assert len({one["event_id"] for one in await outcomes(tenant)}) == 1
    other = envelope(sender.secret, payload=b"2", command_id=body["metadata"]["id"])
    assert (await sender.client.post("/v1/commands", other)).ok(202)["messageId"] != first["messageId"]
    assert (await tenant.stats(queue))["ready"] == 2


async def test_an_invalid_command_has_a_reason_and_an_event(tenant: Tenant, sender: Sender) -> None:
    """Requirements 12, 13, 22, 203"""
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    body = envelope(sender.secret)
    body["command"]["source"] = None
    refused = (await sender.client.post("/v1/commands", body)).problem(400, "command-invalid")
    assert refused["reason"] == "source-present"
    assert (await sender.send_raw(b"not json")).problem(400, "command-invalid")["reason"] == "not-json"
    events = await outcomes(tenant)
    assert [(one["event"], one["reason"]) for one in events] == [
        ("snavio.command.invalid", "source-present"),
        ("snavio.command.invalid", "not-json"),
    ]
    assert (events[0]["command_id"], events[0]["target"], events[0]["command.name"]) == (body["metadata"]["id"], "bot", "post")
    assert events[1]["command_id"] is None and events[1]["source"] == sender.source
    assert (await tenant.stats(queue))["ready"] == 0


async def test_a_route_may_require_a_signature(tenant: Tenant, sender: Sender) -> None:
    await register_target(tenant, signature="required")
    await grant(tenant, "billing")
    assert (await sender.send()).problem(400, "command-invalid")["reason"] == "signature-missing"
    (await sender.send(source=sender.source)).ok(202)
    wrong = await sender.send(source=f"{tenant.id}/other")
    assert wrong.problem(400, "command-invalid")["reason"] == "signature-invalid"


async def test_grants_and_routes_end_at_their_time(tenant: Tenant, sender: Sender, clock: Any) -> None:
    """Requirements 147, 221"""
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await register_target(tenant)
    await grant(tenant, "billing", expires_at=soon)
    (await sender.send()).ok(202)
    clock.ahead_ms = 3_700_000
    later = (datetime.now(UTC) + timedelta(seconds=3700)).isoformat()
    (await sender.send(timestamp=later)).problem(403, "acl-deny")
    clock.ahead_ms = 0
    await grant(tenant, "billing")
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "expires_at": soon})).ok()
    (await sender.send()).ok(202)
    clock.ahead_ms = 3_700_000
    (await sender.send(timestamp=later)).problem(404, "route-missing")


async def test_a_synchronous_check_takes_the_slow_path(tenant: Tenant, sender: Sender) -> None:
    """Requirements 46, 61, 140, 141"""
    await register_target(tenant, acl_check="sync")
    await grant(tenant, "billing")
    assert (await sender.send()).ok(202)["path"] == "slow"
    [event] = await outcomes(tenant)
    assert (event["path"], event["escalated"]) == ("slow", "acl_sync")


async def test_a_batch_has_a_result_for_each_command(tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    bad = envelope(sender.secret)
    bad["metadata"]["hmac"] = "0" * 64
    bodies = [envelope(sender.secret), bad, envelope(sender.secret, name="none"), 42]
    result = (await sender.client.post("/v1/commands/batch", {"commands": bodies})).ok()
    assert (result["delivered"], result["failed"]) == (1, 3)
    problems = [one.get("problem", {}) for one in result["results"]]
    assert [one.get("code") for one in problems] == [None, "command-invalid", "route-missing", "command-invalid"]
    assert [one.get("reason") for one in problems[1:]] == ["hmac-invalid", "route-missing", "bad-field"]
    assert (await tenant.stats(queue))["ready"] == 1
    assert len(await outcomes(tenant)) == 4
    (await sender.client.post("/v1/commands/batch", {"commands": [1] * 101})).problem(422, "invalid-body")


async def test_outcome_events_appear_on_the_live_stream(tenant: Tenant, sender: Sender) -> None:
    """Requirements 28, 189"""
    await register_target(tenant)
    await grant(tenant, "billing")
    async with tenant.client.events("/v1/telemetry/stream?events=snavio.>") as reader:
        (await sender.send()).ok(202)
        event = await reader.next()
    assert event is not None and event.event == "snavio.command.delivered"
