"""The setting `deadLetterQueue`, and moves of messages."""

from collections.abc import AsyncIterator

import pytest

from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually


@pytest.fixture(scope="module")
async def whole(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway that also has the control role, which runs tasks."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


async def _dead(tenant: Tenant, queue: str, *payloads: object, reason: str = "no stock") -> None:
    for payload in payloads:
        await tenant.publish(queue, payload, headers={"a": "b"})
        [message] = await tenant.pull(queue)
        (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq", "reason": reason})).ok()


async def test_dead_letters_are_messages_of_the_dead_letter_queue(tenant: Tenant) -> None:
    dead = await tenant.queue("dead")
    queue = await tenant.queue("orders", deadLetterQueue="dead")
    await _dead(tenant, queue, {"n": 1})
    [message] = await tenant.pull(dead)
    assert (message["payload"], message["headers"], message["attempt"]) == ({"n": 1}, {"a": "b"}, 1)
    origin = message["deadLetter"]
    assert (origin["queue"], origin["reason"], origin["attempts"]) == ("orders", "no stock", 1)
    assert (await tenant.stats(queue)) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_exhausted_messages_go_there_too(tenant: Tenant) -> None:
    dead = await tenant.queue("dead")
    queue = await tenant.queue("orders", deadLetterQueue="dead", maxAttempts=1)
    sent = await tenant.publish(queue, 1)
    await tenant.pull(queue, visibilityTimeoutMs=0)
    assert await tenant.pull(queue, waitMs=2000) == []
    [message] = await tenant.pull(dead, waitMs=10_000)
    assert (message["messageId"], message["deadLetter"]["attempts"]) == (sent["messageId"], 1)


async def test_the_source_lists_finds_counts_and_deletes_its_dead_letters(tenant: Tenant) -> None:
    await tenant.queue("dead")
    queue, other = await tenant.queue("orders", deadLetterQueue="dead"), await tenant.queue("other", deadLetterQueue="dead")
    await _dead(tenant, queue, 1, 2)
    await _dead(tenant, other, 3, reason="late")
    found = (await tenant.client.get(f"{queue}/dlq")).ok()
    assert [one["payload"] for one in found["messages"]] == [1, 2] and found["total"] == 2
    groups = (await tenant.client.get(f"{other}/dlq?groupBy=reason")).ok()["groups"]
    assert [(one["reason"], one["count"]) for one in groups] == [("late", 1)]
    first = found["messages"][0]["messageId"]
    assert (await tenant.client.get(f"{queue}/dlq/{first}")).ok()["reason"] == "no stock"
    (await tenant.client.get(f"{other}/dlq/{first}")).problem(404, "message-not-found")
    (await tenant.client.delete(f"{queue}/dlq/{first}")).ok(204)
    assert (await tenant.client.post(f"{queue}/dlq/purge", {})).ok()["count"] == 1
    assert (await tenant.client.get(f"{other}/dlq")).ok()["total"] == 1


async def test_a_redrive_of_the_source(whole: Gateway) -> None:
    tenant = await whole.tenant()
    dead = await tenant.queue("dead")
    queue = await tenant.queue("orders", deadLetterQueue="dead")
    await _dead(tenant, queue, 1)
    (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)
    [message] = await tenant.pull(queue, waitMs=10_000)
    assert (message["payload"], message["attempt"], "deadLetter" in message) == (1, 1, False)

    async def is_empty() -> bool:
        return (await tenant.stats(dead))["ready"] == 0

    await eventually(is_empty)


async def test_without_the_dead_letter_queue_they_are_stored_as_usual(tenant: Tenant) -> None:
    dead = await tenant.queue("dead")
    queue = await tenant.queue("orders", deadLetterQueue="dead")
    (await tenant.client.delete(dead)).ok(204)
    await _dead(tenant, queue, 1)
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 1


async def test_a_dead_letter_queue_must_exist_and_be_another_one(tenant: Tenant) -> None:
    for name in ("missing", "orders"):
        found = (await tenant.client.put("/v1/queues/orders", {"deadLetterQueue": name})).problem(422, "invalid-body")
        assert found["errors"][0]["path"] == "$.deadLetterQueue"


async def test_a_queue_cannot_become_its_own_dead_letter_queue(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    (await tenant.client.patch(queue, {"deadLetterQueue": "orders"})).problem(422, "invalid-body")


async def test_one_move_at_a_time(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue, other = await tenant.queue("orders"), await tenant.queue("other")
    for number in range(5):
        await tenant.publish(queue, number)
    (await tenant.client.post(f"{queue}/move", {"to": "missing"})).problem(404, "queue-not-found")
    task = (await tenant.client.post(f"{queue}/move", {"to": "other", "ratePerSecond": 1})).ok(202)
    (await tenant.client.post(f"{queue}/move", {"to": "other"})).problem(409, "precondition-failed")
    assert await tenant.pull(other, waitMs=10_000)
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).ok(202)


async def test_the_delay_of_a_queue_applies_to_messages_without_one(tenant: Tenant) -> None:
    queue = await tenant.queue("later", delayMs=600_000, tags={"team": "a"})
    await tenant.publish(queue, 1)
    await tenant.publish(queue, 2, delayMs=0)
    assert await tenant.stats(queue) == {"ready": 1, "leased": 0, "delayed": 1}


async def test_types_need_a_header(tenant: Tenant) -> None:
    queue = await tenant.queue()
    sent = await tenant.client.post(f"{queue}/messages", {"payload": 1, "headers": {"a": "1"}, "headerTypes": {"b": "Number"}})
    assert sent.problem(422, "invalid-body")["errors"][0]["path"] == "$.headerTypes"
