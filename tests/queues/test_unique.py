"""A unique key: at most one message with it in the queue, whatever its state."""

import asyncio
from typing import Any

import pytest

from postroad.kernel.clock import now_ms, rfc3339
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


async def publish(tenant: Tenant, queue: str, key: str = "k", **more: object) -> dict[str, Any]:
    found: dict[str, Any] = await tenant.publish(queue, more.pop("payload", 1), uniqueKey=key, **more)
    return found


async def test_a_second_message_with_the_key_is_a_duplicate_until_the_first_is_done(tenant: Tenant) -> None:
    queue = await tenant.queue(retryDelaysMs=[0])
    first = await publish(tenant, queue)
    assert "duplicate" not in first
    duplicate = first | {"duplicate": True}
    assert await publish(tenant, queue, payload=2) == duplicate
    assert "duplicate" not in await publish(tenant, queue, "another")
    [message, _] = await tenant.pull(queue, 5)
    assert await publish(tenant, queue) == duplicate, "running"
    await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "retry", "delayMs": 300})
    assert await publish(tenant, queue) == duplicate, "retrying"
    [again] = await tenant.pull(queue, waitMs=10_000)
    assert (again["messageId"], again["attempt"]) == (first["messageId"], 2)
    (await tenant.ack(queue, again["receiptId"])).ok()
    second = await publish(tenant, queue)
    assert "duplicate" not in second and second["jobId"] != first["jobId"]
    assert (await publish(tenant, queue))["jobId"] == second["jobId"]


async def test_a_delayed_message_has_the_key_before_and_after_it_is_due(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await publish(tenant, queue, delayMs=300)
    assert (await publish(tenant, queue))["jobId"] == first["jobId"]
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["delayed"]) == (0, 1)
    [peeked] = (await tenant.client.get(f"{queue}/messages?state=delayed")).ok()["messages"]
    assert peeked["messageId"] == first["messageId"]

    async def is_ready() -> bool:
        return bool((await tenant.client.get(queue)).ok()["stats"]["ready"] == 1)

    await eventually(is_ready)
    assert (await publish(tenant, queue, delayMs=1000))["jobId"] == first["jobId"]
    [message] = await tenant.pull(queue)
    assert message["messageId"] == first["messageId"]


async def test_two_workers_and_many_publishers_store_one_message(tenant: Tenant, second_gateway: Gateway) -> None:
    """Some of them delayed, some with an idempotency key, some in batches."""
    queue = await tenant.queue()
    other = (await second_gateway.key_of(tenant.id)).client
    body = {"payload": 1, "uniqueKey": "k"}

    async def one(number: int) -> str:
        client = (tenant.client, other)[number % 2]
        more: dict[str, object] = {"delayMs": 50} if number % 3 == 0 else {}
        if number % 5 == 0:
            more["idempotencyKey"] = f"i-{number}"
        if number % 7 == 0:
            [item] = (await client.post(f"{queue}/messages/batch", {"messages": [body | more]})).ok()["results"]
            return str(item["jobId"])
        return str((await client.post(f"{queue}/messages", body | more)).ok(201)["jobId"])

    assert len(set(await asyncio.gather(*(one(number) for number in range(60))))) == 1
    assert len(await tenant.pull(queue, 10, waitMs=5_000)) == 1


async def test_messages_of_one_batch_with_the_same_key_are_one(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": number, "uniqueKey": f"k-{number % 3}"} for number in range(40)]
    results = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()["results"]
    assert len({result["jobId"] for result in results}) == 3
    assert sum(not result.get("duplicate", False) for result in results) == 3
    assert (await tenant.client.get(queue)).ok()["stats"]["ready"] == 3


async def test_an_idempotency_key_keeps_its_meaning(tenant: Tenant) -> None:
    queue = await tenant.queue()
    body = {"payload": 1, "uniqueKey": "k", "idempotencyKey": "i"}
    first = (await tenant.client.post(f"{queue}/messages", body)).ok(201)
    again = (await tenant.client.post(f"{queue}/messages", body)).ok(201)
    assert again == first, "a repeated request is not a duplicate job"
    (await tenant.client.post(f"{queue}/messages", body | {"payload": 2})).problem(422, "idempotency-mismatch")
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await tenant.client.post(f"{queue}/messages", body)).ok(201) == first


async def test_a_purge_and_a_full_queue_know_messages_with_keys(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=2)
    first = await publish(tenant, queue, "a")
    await publish(tenant, queue, "b", delayMs=60_000)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1, "uniqueKey": "c"})).problem(507, "storage-full")
    assert (await publish(tenant, queue, "a"))["jobId"] == first["jobId"], "even if the queue is full"
    assert (await tenant.client.post(f"{queue}/purge", {})).ok()["count"] == 2

    async def is_stored() -> bool:  # a worker may take the queue for full a moment longer
        answer = await tenant.client.post(f"{queue}/messages", {"payload": 1, "uniqueKey": "a"})
        return answer.status == 201 and "duplicate" not in answer.json

    await eventually(is_stored)


# Expiry


async def test_an_expired_message_is_not_delivered(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, expiresAt=rfc3339(now_ms() + 300))
    await tenant.publish(queue, 2, expiresAt=rfc3339(now_ms() + 600), delayMs=100)
    await tenant.publish(queue, 3, expiresAt=rfc3339(now_ms() + 600_000))
    await asyncio.sleep(0.7)  # by the clock; a pull must not see them, whether or not the engine has deleted them
    assert [message["payload"] for message in await tenant.pull(queue, 10)] == [3]

    async def is_empty() -> bool:
        return bool((await tenant.client.get(f"{queue}/messages")).ok()["matched"] == 1)

    await eventually(is_empty)


async def test_a_leased_message_is_not_delivered_again_after_its_expiry(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, expiresAt=rfc3339(now_ms() + 400))
    assert len(await tenant.pull(queue, visibilityTimeoutMs=600)) == 1
    assert await tenant.pull(queue, waitMs=1_500) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"expiresAt": "2020-01-01T00:00:00Z"},
        {"expiresAt": "2099-01-01T00:00:00Z"},
        {"expiresAt": "soon"},
        {"delayMs": 60_000, "expiresAt": rfc3339(now_ms() + 30_000)},
        {"uniqueKey": ""},
        {"uniqueKey": "x" * 257},
    ],
)
async def test_what_cannot_be_used_is_refused(tenant: Tenant, fields: dict[str, object]) -> None:
    queue = await tenant.queue()
    problem = (await tenant.client.post(f"{queue}/messages", {"payload": 1, **fields})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] in ("$.expiresAt", "$.uniqueKey")
