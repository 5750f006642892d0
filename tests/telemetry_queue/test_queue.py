"""The queue `_telemetry`."""

import asyncio
from typing import Any

import msgspec
import pytest

from postroad.commands.events import SkewSample
from postroad.kernel.identity import Scope
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.engine
QUEUE = "/v1/queues/_telemetry"


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    """A sender with a route, which has sent nothing yet."""
    await register_target(tenant)
    sender = await register_sender(tenant)
    await grant(tenant, sender.source)
    return sender


def types(messages: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for message in messages for event in message["payload"]]


async def test_events_are_pulled_and_acknowledged_like_messages(sender: Sender, tenant: Tenant) -> None:
    """Requirements 18, 187, 188"""
    for _ in range(3):
        (await sender.send()).ok(202)
    messages = await eventually(lambda: pulled(tenant, 3))
    assert [event["event"] for event in messages] == ["snavio.command.delivered"] * 3
    stored = [one for one in await tenant.events("COMMANDS") if one["event"] == "snavio.command.delivered"]
    assert messages == stored
    assert await tenant.pull(QUEUE, 10) == []


async def test_a_message_has_at_most_two_thousand_events(sender: Sender, tenant: Tenant, gateway: Gateway) -> None:
    """Requirement 190"""
    outbox, count = gateway.node.platform.outbox, 4500
    at = "2026-01-01T00:00:00Z"
    outbox.record(
        None,
        *(
            SkewSample(tenant=tenant.id, source=sender.source, skew_seconds=number, sent_at=at, received_at=at)
            for number in range(count)
        ),
    )
    await outbox.drain()
    messages = await tenant.pull(QUEUE, 100, waitMs=5000)
    assert max(len(one["payload"]) for one in messages) <= 2000
    assert [event["skew_seconds"] for one in messages for event in one["payload"]] == list(range(count))


async def pulled(tenant: Tenant, count: int, **more: Any) -> list[dict[str, Any]]:
    """Pull and acknowledge until there are so many events."""
    events: list[dict[str, Any]] = []
    while len(events) < count:
        messages = await tenant.pull(QUEUE, 100, waitMs=2000, **more)
        if not messages:
            break
        events += [event for message in messages for event in message["payload"]]
        receipts = [message["receiptId"] for message in messages]
        assert (await tenant.client.post(f"{QUEUE}/ack", {"receiptIds": receipts})).ok()["ok"]
    return events


async def test_leases_end_by_nack_expiry_and_extension(sender: Sender, tenant: Tenant, gateway: Gateway) -> None:
    """Requirement 188"""
    (await sender.send()).ok(202)
    [first] = await tenant.pull(QUEUE, 10, waitMs=5000, visibilityTimeoutMs=60_000)
    assert (await tenant.pull(QUEUE, 10)) == []
    (await tenant.client.post(f"{QUEUE}/nack", {"receiptId": first["receiptId"], "action": "requeue"})).ok()
    [again] = await tenant.pull(QUEUE, 10, waitMs=5000, visibilityTimeoutMs=60_000)
    assert (again["messageId"], again["attempt"]) == (first["messageId"], 2)
    (await tenant.ack(QUEUE, first["receiptId"])).problem(409, "already-settled")
    extend = {"receiptId": again["receiptId"], "visibilityTimeoutMs": 100}
    newer = (await tenant.client.post(f"{QUEUE}/extend", extend)).ok()["newReceiptId"]
    [third] = await tenant.pull(QUEUE, 10, waitMs=5000, visibilityTimeoutMs=60_000)
    assert third["attempt"] == 3
    await eventually(lambda: _is_expired(tenant, newer))
    dead = {"receiptId": third["receiptId"], "action": "dlq"}
    (await tenant.client.post(f"{QUEUE}/nack", dead)).problem(422, "invalid-body")
    (await tenant.ack(QUEUE, third["receiptId"])).ok()
    (await tenant.ack(QUEUE, third["receiptId"])).ok()
    (await tenant.ack(QUEUE, "nonsense")).problem(400, "receipt-invalid")


async def _is_expired(tenant: Tenant, receipt: str) -> bool:
    answer = await tenant.client.post(f"{QUEUE}/extend", {"receiptId": receipt, "visibilityTimeoutMs": 1})
    return answer.status == 409 and answer.json["code"] == "lease-expired"


async def test_any_worker_ends_a_lease(sender: Sender, tenant: Tenant, second_gateway: Gateway) -> None:
    (await sender.send()).ok(202)
    [message] = await tenant.pull(QUEUE, 10, waitMs=5000)
    elsewhere = second_gateway.seen_by(tenant)
    (await elsewhere.ack(QUEUE, message["receiptId"])).ok()
    status = (await tenant.client.get("/v1/telemetry/status")).ok()
    assert (status["waiting"], status["leased"], status["oldestAgeMs"]) == (0, 0, None)


async def test_nothing_else_is_allowed_on_the_queue(sender: Sender, tenant: Tenant) -> None:
    """Requirement 187"""
    client = tenant.client
    for answer in (
        await client.post(f"{QUEUE}/messages", {"payload": 1}),
        await client.put(QUEUE, {"maxAttempts": 3}),
        await client.patch(QUEUE, {"maxAttempts": 3}),
        await client.delete(QUEUE),
        await client.post(f"{QUEUE}/purge", {}),
        await client.post(f"{QUEUE}/dlq/redrive", {}),
        await client.post(f"{QUEUE}/pause"),
        await client.post(f"{QUEUE}/progress", {"receiptId": "x", "percent": 1}),
        await client.put("/v1/routes/bot/other", {"queue": "_telemetry"}),
    ):
        answer.problem(403, "forbidden")
    assert "_telemetry" not in [one["name"] for one in (await client.get("/v1/queues")).ok()["queues"]]


async def test_the_queue_exists_from_the_first_service_on(tenant: Tenant) -> None:
    """Requirement 18"""
    (await tenant.client.post(f"{QUEUE}/pull", {})).problem(404, "queue-not-found")
    (await tenant.client.get("/v1/telemetry/status")).problem(404, "queue-not-found")
    await register_sender(tenant)
    assert await tenant.pull(QUEUE) == []


async def test_keys_without_access_and_other_tenants_see_nothing(sender: Sender, tenant: Tenant, gateway: Gateway) -> None:
    """Requirement 187"""
    (await sender.send()).ok(202)
    for more, scopes in (({"allowed_queues": ("bot*",)}, (Scope.CONSUME,)), ({"allowed_services": ("bot",)}, (Scope.CONSUME,))):
        narrow = await tenant.another_key(scopes, **more)
        (await narrow.client.post(f"{QUEUE}/pull", {})).problem(403, "forbidden")
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.post(f"{QUEUE}/pull", {})).problem(403, "forbidden")
    other = await gateway.tenant()
    await register_sender(other)
    assert await other.pull(QUEUE, 10) == []
    [message] = await tenant.pull(QUEUE, 10, waitMs=5000)
    (await other.ack(QUEUE, message["receiptId"])).problem(400, "receipt-invalid")


async def test_the_setting_chooses_the_types(sender: Sender, tenant: Tenant) -> None:
    (await tenant.client.post("/v1/admin/settings", {"telemetryEvents": ["!snavio.command.delivered"]})).ok()
    (await sender.send()).ok(202)
    (await sender.send(name="nothing")).problem(404, "route-missing")
    assert [one["event"] for one in await pulled(tenant, 1)] == ["snavio.command.failed"]
    status = (await tenant.client.get("/v1/telemetry/status")).ok()
    assert (status["waiting"], status["leased"]) == (0, 0), "frames without chosen events are acknowledged"
    (await tenant.client.post("/v1/admin/settings", {"telemetryEvents": ["a b"]})).problem(422, "invalid-body")
    for pattern in ("job.*", "!snavio.telemetry.skew_sampel", "queue.changed", "route"):
        answer = await tenant.client.post("/v1/admin/settings", {"telemetryEvents": ["route.*", pattern]})
        assert answer.problem(422, "invalid-body")["errors"][0]["path"] == "$.telemetryEvents[1]"


async def test_the_status_shows_age_counts_and_the_last_read(sender: Sender, tenant: Tenant) -> None:
    """Requirements 192, 196"""
    status = (await tenant.client.get("/v1/telemetry/status")).ok()
    assert status == {
        "waiting": 0,
        "leased": 0,
        "oldestAgeMs": None,
        "deliveredLastHour": 0,
        "acknowledgedLastHour": 0,
        "lastReceivedAt": None,
        "droppedToday": 0,
    }
    (await sender.send()).ok(202)
    status = (await tenant.client.get("/v1/telemetry/status")).ok()
    assert status["waiting"] == 1 and status["oldestAgeMs"] >= 0
    [message] = await tenant.pull(QUEUE, waitMs=5000)
    status = (await tenant.client.get("/v1/telemetry/status")).ok()
    assert (status["waiting"], status["leased"], status["deliveredLastHour"]) == (0, 1, 1)
    assert status["lastReceivedAt"] is not None
    (await tenant.ack(QUEUE, message["receiptId"])).ok()
    assert (await tenant.client.get("/v1/telemetry/status")).ok()["acknowledgedLastHour"] == 1


async def test_the_live_stream_is_filtered_by_source_and_target(sender: Sender, tenant: Tenant) -> None:
    """Requirement 144"""
    other = await register_sender(tenant, "other")
    narrow = await tenant.another_key(allowed_services=("other",))

    async def first(client: Tenant, query: str) -> dict[str, Any]:
        async with client.client.events(f"/v1/telemetry/stream?events=snavio.command.*{query}") as events:
            started.set_result(None)
            event = await events.next(30)
            assert event is not None
            found: dict[str, Any] = msgspec.json.decode(event.data)
            return found

    for client, query in ((tenant, "&source=other"), (tenant, f"&source={other.source}&target=bot"), (narrow, "")):
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(first(client, query))
        await started
        (await sender.send()).ok(202)
        (await other.send()).problem(403, "acl-deny")
        event = await reading
        assert (event["event"], event["source"]) == ("snavio.command.failed", other.source)
    (await tenant.client.get("/v1/telemetry/stream?source=a/b/c")).problem(400, "invalid-parameter")
