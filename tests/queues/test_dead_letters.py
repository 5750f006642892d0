"""Dead letters: the last error is the reason; list, redrive and purge have the same filters."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from postroad.jetstream.commit import PendingMessage
from postroad.kernel.ids import new_id
from tests.gateway import Gateway, Tenant
from tests.queues.test_browsing import dead_letter
from tests.waiting import eventually


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def letters(tenant: Tenant, queue: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.client.get(f"{queue}/dlq?{query}")).ok()["messages"]
    return found


async def groups(tenant: Tenant, queue: str) -> dict[str, int]:
    found = (await tenant.client.get(f"{queue}/dlq?groupBy=reason")).ok()["groups"]
    return {one["reason"]: one["count"] for one in found}


async def fail(tenant: Tenant, queue: str, payload: object, *reasons: str | None) -> None:
    """Publish a message and nack each of its attempts."""
    await tenant.publish(queue, payload)
    for reason in reasons:
        [message] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
        body = {"receiptId": message["receiptId"], "action": "retry", "delayMs": 0}
        (await tenant.client.post(f"{queue}/nack", body | ({"reason": reason} if reason else {}))).ok()


async def test_the_reason_is_the_last_error(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=2)
    await fail(tenant, queue, 1, "no stock", "still no stock")
    await fail(tenant, queue, 2, "timeout", None)
    await fail(tenant, queue, 3, None, None)
    found = [(one["reason"], one["lastError"], one["attempts"]) for one in await letters(tenant, queue)]
    assert found == [("still no stock", "still no stock", 2), ("timeout", "timeout", 2), ("maxAttempts reached", None, 2)]
    assert await groups(tenant, queue) == {"still no stock": 1, "timeout": 1, "maxAttempts reached": 1}
    events = [event for event in await tenant.events() if event["event"] == "job.dead"]
    assert [event["reason"] for event in events] == ["still no stock", "timeout", "maxAttempts reached"]


async def test_a_dead_letter_of_an_expired_lease_has_the_last_error(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=2)
    await fail(tenant, queue, 1, "no stock")
    await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=0)

    async def is_dead_lettered() -> bool:
        assert await tenant.pull(queue) == []
        return bool(await letters(tenant, queue))

    await eventually(is_dead_lettered)
    assert await groups(tenant, queue) == {"no stock": 1}


async def test_dead_letters_of_earlier_versions_show_the_last_error(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    message = {"v": 1, "id": new_id(), "job": new_id(), "at": 1, "payload": 1}
    letter = b'{"v":1,"reason":"maxAttempts reached","last_error":"no stock","attempts":10,"dead_at":1,"message":%b}'
    pending = PendingMessage(f"d.{tenant.id}.q.{message['id']}", letter % msgspec.json.encode(message), new_id())
    await gateway.node.platform.committers.of(f"D_{tenant.id}").append(pending)
    [found] = await letters(tenant, queue, "reason=no%20stock")
    assert found["reason"] == "no stock"


async def test_list_purge_and_redrive_have_the_same_filters(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await dead_letter(tenant, queue, "first", reason="no stock at 10:00")
    await asyncio.sleep(0.01)
    between = now()
    await asyncio.sleep(0.01)
    await dead_letter(tenant, queue, "second", reason="no stock at 10:01")
    await dead_letter(tenant, queue, "third", reason="timeout")
    filters: list[tuple[dict[str, str], list[str]]] = [
        ({"from": between}, ["second", "third"]),
        ({"to": between}, ["first"]),
        ({"error": "no stock"}, ["first", "second"]),
        ({"error": "no stock", "from": between}, ["second"]),
        ({"reason": "timeout", "to": between}, []),
    ]
    for wanted, expected in filters:
        query = "&".join(f"{name}={value.replace(' ', '%20')}" for name, value in wanted.items())
        assert [one["payload"] for one in await letters(tenant, queue, query)] == expected
        for operation in ("purge", "redrive"):
            answer = (await tenant.client.post(f"{queue}/dlq/{operation}", {"filter": wanted, "dryRun": True})).ok()
            assert answer["count"] == len(expected), (operation, wanted)
    (await tenant.client.post(f"{queue}/dlq/purge", {"filter": {"error": "no stock", "from": between}})).ok()
    assert [one["payload"] for one in await letters(tenant, queue)] == ["first", "third"]


@pytest.mark.parametrize("operation", ["purge", "redrive"])
async def test_a_range_that_ends_before_it_begins_is_refused(tenant: Tenant, operation: str) -> None:
    queue = await tenant.queue()
    wanted = {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}
    problem = (await tenant.client.post(f"{queue}/dlq/{operation}", {"filter": wanted})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.filter.from"
