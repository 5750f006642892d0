"""Ordered queues: delivery in the order of a group, to one consumer at a time."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from postroad.jetstream.management import subject_counts
from postroad.kernel.names import queue_stream
from postroad.queues import dispatch_routing, group_index, group_maintenance
from postroad.queues.capability import QueuesCapability
from postroad.queues.group_maintenance import GroupMaintenance
from postroad.queues.group_store import GroupStore
from postroad.queues.ordered_leases import OrderedLeases
from tests.gateway import Gateway, Tenant, living_gateways
from tests.waiting import eventually

MANY = 60_000


class EveryClock:
    """The clocks of all gateways on the engine, those of other tests included: any of them may dispatch a queue."""

    def __init__(self, engine_url: str) -> None:
        self._gateways = living_gateways(engine_url)
        self._ahead_ms = 0

    @property
    def ahead_ms(self) -> int:
        return self._ahead_ms

    @ahead_ms.setter
    def ahead_ms(self, ms: int) -> None:
        self._ahead_ms = ms
        for one in self._gateways:
            one.clock.ahead_ms = ms


@pytest.fixture
def clock(gateway: Gateway, second_gateway: Gateway, engine_url: str) -> Iterator[EveryClock]:
    """`gateway` and `second_gateway` are running by then."""
    every = EveryClock(engine_url)
    yield every
    every.ahead_ms = 0


async def publish_each(tenant: Tenant, queue: str, *names: str) -> list[dict[str, Any]]:
    """Publish messages `a1`, `b1`, `a2`… to the group of their first letter. A dispatcher runs by then: so groups take turns in
    the order of their first message."""
    (await tenant.client.get(queue)).ok()
    return [await tenant.publish(queue, name, groupId=name[0]) for name in names]


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["payload"] for message in messages]


async def ack(tenant: Tenant, queue: str, *messages: dict[str, Any]) -> None:
    body = {"receiptIds": [message["receiptId"] for message in messages]}
    assert (await tenant.client.post(f"{queue}/ack", body)).ok()["ok"], messages


async def nack(tenant: Tenant, queue: str, message: dict[str, Any], action: str = "retry", **more: object) -> Any:
    return await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": action, **more})


async def test_a_pull_takes_one_group_and_then_the_next_and_each_in_order(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    published = await publish_each(tenant, queue, "a1", "b1", "a2", "b2", "a3")
    messages = await tenant.pull(queue, 10)
    assert payloads(messages) == ["a1", "a2", "a3", "b1", "b2"]
    assert [message["groupId"] for message in messages] == ["a", "a", "a", "b", "b"]
    sequences = {name: one["sequence"] for name, one in zip(["a1", "b1", "a2", "b2", "a3"], published, strict=True)}
    assert {message["payload"]: message["sequence"] for message in messages} == sequences
    assert list(sequences.values()) == sorted(sequences.values())
    assert [message["attempt"] for message in messages] == [1] * 5
    await ack(tenant, queue, *messages)
    assert await tenant.pull(queue, 10) == []


async def test_max_per_group_returns_the_heads_of_groups(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "b1", "b2", "c1")
    assert payloads(await tenant.pull(queue, 10, maxPerGroup=1)) == ["a1", "b1", "c1"]


async def test_a_held_group_delivers_nothing_to_others(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    await publish_each(tenant, queue, "a1", "a2", "b1")
    [a1] = await tenant.pull(queue, 1)
    assert a1["payload"] == "a1"
    assert payloads(await other.pull(queue, 10)) == ["b1"]
    await publish_each(tenant, queue, "a3")
    assert await other.pull(queue, 10) == []
    await ack(other, queue, a1)
    assert payloads(await other.pull(queue, 10)) == ["a2", "a3"]


async def test_messages_without_a_group_are_one_group(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    for number in range(3):
        await tenant.publish(queue, number)
    [first] = await tenant.pull(queue)
    assert "groupId" not in first
    assert await tenant.pull(queue, 10) == []
    await ack(tenant, queue, first)
    assert payloads(await tenant.pull(queue, 10)) == [1, 2]


async def test_a_waiting_pull_gets_the_next_message_of_a_group_that_becomes_free(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue)
    waiting = asyncio.create_task(other.pull(queue, 5, waitMs=20_000))
    await eventually(lambda: becomes_waiting(tenant, queue, 1), 10)
    await ack(tenant, queue, a1)
    assert payloads(await asyncio.wait_for(waiting, 10)) == ["a2"]


async def becomes_waiting(tenant: Tenant, queue: str, count: int) -> bool:
    stats = (await tenant.client.get(queue)).ok()["stats"]
    return bool(stats["waiting"] == count)


async def test_a_waiting_pull_gets_a_message_that_is_published(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    waiting = [asyncio.create_task(one.pull(queue, waitMs=20_000)) for one in (tenant, second_gateway.seen_by(tenant))]
    await asyncio.sleep(0)
    await publish_each(tenant, queue, "a1", "b1")
    found = await asyncio.wait_for(asyncio.gather(*waiting), 15)
    assert sorted(payloads([message for messages in found for message in messages])) == ["a1", "b1"]


async def test_a_message_whose_lease_ended_comes_first_again(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "a3")
    a1, a2 = await tenant.pull(queue, 2, visibilityTimeoutMs=10_000)
    await ack(tenant, queue, a2)
    assert await tenant.pull(queue) == []
    clock.ahead_ms += 10_001
    again = await tenant.pull(queue, 5)
    assert payloads(again) == ["a1", "a3"]
    assert [message["attempt"] for message in again] == [2, 1]
    assert again[0]["firstLeasedAt"] and "firstLeasedAt" not in again[1]
    (await tenant.ack(queue, a1["receiptId"])).problem(409, "lease-expired")
    await ack(tenant, queue, *again)


async def test_an_expired_receipt_is_refused_before_the_message_is_delivered_again(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1")
    [message] = await tenant.pull(queue, visibilityTimeoutMs=10_000)
    clock.ahead_ms += 10_001
    (await tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    (await nack(tenant, queue, message)).problem(409, "lease-expired")
    extension = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 1000}
    (await tenant.client.post(f"{queue}/extend", extension)).problem(409, "lease-expired")
    body = {"receiptId": message["receiptId"], "expired": True}
    (await tenant.client.post(f"{queue}/ack", body)).problem(409, "lease-expired")


async def test_an_ack_whose_lease_ends_on_the_way_is_refused(
    tenant: Tenant, clock: EveryClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another consumer has settled the message meanwhile: both must not believe that they did."""
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1")
    [message] = await tenant.pull(queue, visibilityTimeoutMs=10_000)
    operate = OrderedLeases._operate

    async def delayed(leases: OrderedLeases, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(OrderedLeases, "_operate", operate)
        clock.ahead_ms += 10_001
        await ack(tenant, queue, *await tenant.pull(queue))
        return await operate(leases, *arguments, **options)

    monkeypatch.setattr(OrderedLeases, "_operate", delayed)
    (await tenant.ack(queue, message["receiptId"])).problem(409, "already-settled")


async def test_a_nacked_message_precedes_later_ones_and_blocks_only_its_group(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "b1")
    [a1] = await tenant.pull(queue, 1)
    (await nack(tenant, queue, a1, delayMs=30_000)).ok()
    (await nack(tenant, queue, a1, delayMs=30_000)).ok()
    (await nack(tenant, queue, a1, "requeue")).problem(409, "already-settled")
    (await tenant.ack(queue, a1["receiptId"])).problem(409, "already-settled")
    [b1] = await tenant.pull(queue, 10)
    assert b1["payload"] == "b1"
    await ack(tenant, queue, b1)
    clock.ahead_ms += 30_001
    again = await tenant.pull(queue, 10)
    assert payloads(again) == ["a1", "a2"] and again[0]["attempt"] == 2
    (await nack(tenant, queue, again[0], "requeue")).ok()
    assert await tenant.pull(queue, 10) == [], "the consumer still holds a2"
    await ack(tenant, queue, again[1])
    assert payloads(await tenant.pull(queue, 10)) == ["a1"]


async def test_an_extended_lease_holds_the_group(tenant: Tenant, second_gateway: Gateway, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue, visibilityTimeoutMs=10_000)
    extension = {"receiptId": a1["receiptId"], "visibilityTimeoutMs": 60_000}
    extended = (await other.client.post(f"{queue}/extend", extension)).ok()
    clock.ahead_ms += 30_000
    assert await tenant.pull(queue) == []
    (await tenant.ack(queue, a1["receiptId"])).problem(409, "lease-expired")
    (await tenant.ack(queue, extended["newReceiptId"])).ok()
    (await tenant.ack(queue, extended["newReceiptId"])).ok()
    assert payloads(await tenant.pull(queue, waitMs=10_000)) == ["a2"]


async def test_a_message_that_failed_too_often_becomes_a_dead_letter(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True, maxAttempts=2, retryDelaysMs=[0])
    await publish_each(tenant, queue, "a1", "a2", "b1")
    [first] = await tenant.pull(queue, visibilityTimeoutMs=1000)
    clock.ahead_ms += 1001
    [second] = await tenant.pull(queue, visibilityTimeoutMs=1000, maxPerGroup=1)
    assert (second["payload"], second["attempt"]) == ("b1", 1) or (second["payload"], second["attempt"]) == ("a1", 2)
    clock.ahead_ms += 1001
    found = [*await tenant.pull(queue, 10, visibilityTimeoutMs=1000)]
    clock.ahead_ms += 1001
    found += await tenant.pull(queue, 10)
    dead = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert ("a1", 2) in [(one["payload"], one["attempts"]) for one in dead]
    assert "a2" in payloads(found)
    assert first["payload"] == "a1"


async def test_the_last_retry_dead_letters(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True, maxAttempts=1)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue)
    (await nack(tenant, queue, a1, "retry", reason="timeout")).ok()
    assert payloads(await tenant.pull(queue)) == ["a2"]
    [dead] = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert dead["lastError"] == "timeout"


async def test_what_an_ordered_queue_refuses(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    for field, value in {
        "delayMs": 0,
        "runAt": "2026-01-01T00:00:00Z",
        "priority": "high",
        "uniqueKey": "k",
    }.items():
        answer = await tenant.client.post(f"{queue}/messages", {"payload": 1, field: value})
        assert f"$.{field}" in str(answer.problem(422, "invalid-body")["errors"])
    batch = {"messages": [{"payload": 1}, {"payload": 2, "delayMs": 5}]}
    result = (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
    assert (result["published"], result["failed"]) == (1, 1) and result["results"][0]["sequence"] == 1
    (await tenant.client.put("/v1/queues/other", {"ordered": True, "maxInFlight": 5})).problem(422, "invalid-body")


@pytest.mark.parametrize("group", ["", "x" * 129, "ä", "a\n", 7])
async def test_a_group_id_has_up_to_128_printable_ascii_characters(tenant: Tenant, group: object) -> None:
    queue = await tenant.queue(ordered=True)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1, "groupId": group})).problem(422, "invalid-body")
    assert (await tenant.publish(queue, 1, groupId="~ x" * 42))["sequence"] == 1


async def test_ordered_cannot_be_changed(tenant: Tenant) -> None:
    ordered, plain = await tenant.queue("ordered", ordered=True), await tenant.queue("plain")
    (await tenant.client.patch(ordered, {"ordered": False})).problem(409, "precondition-failed")
    (await tenant.client.put(plain, {"ordered": True})).problem(409, "precondition-failed")
    assert (await tenant.client.patch(ordered, {"maxAttempts": 3})).ok()["settings"]["ordered"] is True


async def test_options_of_ordered_queues_are_refused_by_others(tenant: Tenant) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/messages", {"payload": 1, "dedupeId": "d"})).problem(422, "invalid-body")
    for option in ({"maxPerGroup": 1}, {"receiveId": "r"}):
        (await tenant.client.post(f"{queue}/pull", option)).problem(422, "invalid-body")


async def test_the_delay_of_the_queue_applies_and_changes_for_stored_messages(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True, delayMs=60_000)
    await publish_each(tenant, queue, "a1", "a2")
    assert await tenant.pull(queue, 5) == []
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["delayed"], stats["ready"]) == (2, 0)
    assert payloads((await tenant.client.get(f"{queue}/messages?state=delayed")).ok()["messages"]) == ["a1", "a2"]
    clock.ahead_ms += 60_001
    assert payloads(await tenant.pull(queue, 5)) == ["a1", "a2"]
    await publish_each(tenant, queue, "b1")
    (await tenant.client.patch(queue, {"delayMs": 0})).ok()
    assert payloads(await tenant.pull(queue, 5, waitMs=10_000)) == ["b1"]


async def test_a_paused_queue_delivers_nothing(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue)
    (await tenant.client.post(f"{queue}/pause")).ok()
    await ack(tenant, queue, a1)
    assert await tenant.pull(queue) == []
    waiting = asyncio.create_task(second_gateway.seen_by(tenant).pull(queue, waitMs=20_000))
    (await tenant.client.post(f"{queue}/resume")).ok()
    assert payloads(await asyncio.wait_for(waiting, 10)) == ["a2"]


async def test_purge_removes_messages_and_leases(tenant: Tenant, gateway: Gateway, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "b1")
    [a1] = await tenant.pull(queue)
    assert (await tenant.client.post(f"{queue}/purge", {"dryRun": True})).ok()["count"] == 3
    assert (await second_gateway.seen_by(tenant).client.post(f"{queue}/purge", {})).ok()["count"] == 3
    assert (await tenant.stats(queue))["ready"] == 0
    await publish_each(tenant, queue, "a3")
    assert payloads(await tenant.pull(queue, 5, waitMs=5000)) == ["a3"]
    (await nack(tenant, queue, a1)).problem(409, "already-settled")


async def test_stats_and_peek_show_every_state(tenant: Tenant, second_gateway: Gateway, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "b1", "b2", "c1", "d1")
    a1, a2 = await tenant.pull(queue, 2, visibilityTimeoutMs=MANY)
    [b1] = await tenant.pull(queue, 1, visibilityTimeoutMs=MANY)
    await ack(tenant, queue, a1)
    (await nack(tenant, queue, b1, delayMs=MANY)).ok()
    [c1] = await tenant.pull(queue, 1, visibilityTimeoutMs=1000)
    clock.ahead_ms += 2000
    assert (a2["payload"], c1["payload"]) == ("a2", "c1")
    for one in (tenant, second_gateway.seen_by(tenant)):
        stats = (await one.client.get(queue)).ok()["stats"]
        found = {name: stats[name] for name in ("ready", "leased", "overdue", "retrying", "delayed", "dead")}
        assert found == {"ready": 3, "leased": 1, "overdue": 1, "retrying": 1, "delayed": 0, "dead": 0}
        assert stats["oldestAgeMs"] >= 2000
    peeked = (await tenant.client.get(f"{queue}/messages")).ok()["messages"]
    assert [(one["payload"], one["state"]) for one in peeked] == [
        ("a2", "leased"),
        ("b1", "retrying"),
        ("b2", "ready"),
        ("c1", "ready"),
        ("d1", "ready"),
    ]
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/messages?groupId=b")).ok()["messages"]] == ["b1", "b2"]


async def test_the_limit_of_messages_and_the_schema_apply(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True, maxMessages=2, schema={"type": "string"})
    (await tenant.client.post(f"{queue}/messages", {"payload": 5})).problem(422, "schema-mismatch")
    await publish_each(tenant, queue, "a1", "a2")
    (await tenant.client.post(f"{queue}/messages", {"payload": "a3", "groupId": "a"})).problem(507, "storage-full")
    await ack(tenant, queue, *await tenant.pull(queue, 2))

    async def accepts() -> bool:
        return (await tenant.client.post(f"{queue}/messages", {"payload": "a3", "groupId": "a"})).status == 201

    await eventually(accepts, 10)


async def test_expired_messages_are_not_delivered(tenant: Tenant, clock: EveryClock) -> None:
    queue = await tenant.queue(ordered=True, retentionMs=100_000)
    await publish_each(tenant, queue, "a1")
    clock.ahead_ms += 50_000
    clock.ahead_ms += 50_001
    assert await tenant.pull(queue) == []
    clock.ahead_ms = 0
    await publish_each(tenant, queue, "a2")
    assert payloads(await tenant.pull(queue)) == ["a2"]


async def test_an_empty_group_leaves_nothing_behind(tenant: Tenant, gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    names = [f"{group}{number}" for number in (1, 2) for group in "abcdef"]
    await publish_each(tenant, queue, *names)
    while messages := await tenant.pull(queue, 4):
        await ack(tenant, queue, *messages)
    connection = gateway.node.platform.connection
    subject = gateway.node.platform.use(QueuesCapability).lifecycle.cached(tenant.id, "q").group_subject("*")  # type: ignore[union-attr]

    async def is_empty() -> bool:
        return [page async for page in subject_counts(connection, queue_stream(tenant.id, "q"), subject)] == []

    await eventually(is_empty, 15)
    assert (await tenant.stats(queue))["ready"] == 0


async def test_a_dispatcher_stays_until_what_is_settled_was_removed(
    tenant: Tenant, gateway: Gateway, second_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would remove it before the queue is used again."""
    monkeypatch.setattr(dispatch_routing, "_IDLE_SECONDS", 0.0)
    clean, may_clean = GroupMaintenance._clean, asyncio.Event()

    async def clean_later(maintenance: GroupMaintenance) -> bool:
        return may_clean.is_set() and await clean(maintenance)

    monkeypatch.setattr(GroupMaintenance, "_clean", clean_later)
    monkeypatch.setattr(group_index, "KEPT_MAX", 0)
    monkeypatch.setattr(group_maintenance, "KEPT_MAX", 0)
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2", "a3")
    await ack(tenant, queue, *await tenant.pull(queue, waitMs=10_000))
    stream = queue_stream(tenant.id, "q")
    several = [one.node.platform.use(QueuesCapability).dispatchers for one in (gateway, second_gateway)]
    [dispatchers] = [one for one in several if stream in one._running]
    await dispatchers.close_idle()
    assert stream in dispatchers._running
    may_clean.set()

    async def is_closed() -> bool:
        await dispatchers.close_idle()
        return stream not in dispatchers._running

    await eventually(is_closed, 15)


async def test_a_batch_keeps_the_order_of_each_group(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    messages = [{"payload": f"{group}{number}", "groupId": group} for number in range(20) for group in "abc"]
    result = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert result["failed"] == 0
    found = payloads(await tenant.pull(queue, 100))
    assert sorted(found) == sorted(message["payload"] for message in messages)
    for group in "abc":
        assert [one for one in found if one[0] == group] == [f"{group}{number}" for number in range(20)]


async def test_a_receipt_of_another_queue_is_invalid(tenant: Tenant) -> None:
    ordered, plain = await tenant.queue("ordered", ordered=True), await tenant.queue("plain")
    await tenant.publish(ordered, 1)
    await tenant.publish(plain, 1)
    [one], [other] = await tenant.pull(ordered), await tenant.pull(plain, waitMs=5000)
    (await tenant.ack(ordered, other["receiptId"])).problem(400, "receipt-invalid")
    (await tenant.ack(plain, one["receiptId"])).problem(400, "receipt-invalid")


async def test_a_pull_without_a_wait_finds_a_group_whose_settled_messages_are_being_removed(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await tenant.queue(ordered=True)
    begun, may_end, purge = asyncio.Event(), asyncio.Event(), GroupStore.purge_settled

    async def wait(store: GroupStore, *arguments: Any) -> None:
        begun.set()
        await may_end.wait()
        await purge(store, *arguments)

    monkeypatch.setattr(GroupStore, "purge_settled", wait)
    monkeypatch.setattr(group_maintenance, "KEPT_MAX", 0)
    monkeypatch.setattr(group_index, "KEPT_MAX", 0)
    await publish_each(tenant, queue, "a1", "a2")
    await ack(tenant, queue, *await tenant.pull(queue, waitMs=10_000))
    await asyncio.wait_for(begun.wait(), 15)
    pulling = asyncio.create_task(tenant.pull(queue))
    others = asyncio.create_task(tenant.stats(queue))
    assert (await asyncio.wait_for(others, 15))["ready"] == 1
    may_end.set()
    assert payloads(await asyncio.wait_for(pulling, 15)) == ["a2"]


async def test_a_deleted_queue_ends_its_pulls_and_a_new_one_starts_empty(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1")
    [a1] = await tenant.pull(queue)
    waiting = asyncio.create_task(second_gateway.seen_by(tenant).client.post(f"{queue}/pull", {"waitMs": 20_000}))
    await eventually(lambda: becomes_waiting(tenant, queue, 1), 10)
    (await tenant.client.delete(queue)).ok(204)
    assert (await asyncio.wait_for(waiting, 15)).status == 404
    await tenant.queue(ordered=True)
    assert await tenant.pull(queue) == []
    (await tenant.ack(queue, a1["receiptId"])).problem(400, "receipt-invalid")
    await publish_each(tenant, queue, "b1")
    assert payloads(await tenant.pull(queue, 5, waitMs=5000)) == ["b1"]


async def test_a_caller_that_leaves_returns_its_message(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    for one in (tenant, second_gateway.seen_by(tenant)):
        leaving = asyncio.create_task(one.pull(queue, waitMs=20_000))
        await eventually(lambda: becomes_waiting(tenant, queue, 1), 10)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    await publish_each(tenant, queue, "a1")
    [message] = await tenant.pull(queue, waitMs=10_000)
    assert message["attempt"] == 1
