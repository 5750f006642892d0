"""Nack and extend: requeue, retry, dead-letter, extend leases."""

import asyncio
from typing import Any

import pytest

from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jetstream.stream_reader import time_ms
from postroad.kernel.names import queue_stream
from postroad.queues.capability import QueuesCapability
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.records import DeadLetter
from tests.gateway import Gateway, ShiftedClock, Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")


async def nack(tenant: Tenant, queue: str, receipt: str, action: str, **more: object) -> Any:
    return (await tenant.client.post(f"{queue}/nack", {"receiptId": receipt, "action": action, **more})).ok()


async def dead(tenant: Tenant, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    return found


async def test_a_requeued_message_is_delivered_again_at_once(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [first] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    assert await nack(tenant, queue, first["receiptId"], "requeue") == {"ok": True}
    [again] = await tenant.pull(queue, waitMs=5000)
    assert (again["messageId"], again["attempt"]) == (first["messageId"], 2)


async def test_a_requeue_may_have_a_delay(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [first] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, first["receiptId"], "requeue", delayMs=400)
    assert await tenant.pull(queue) == []
    [again] = await tenant.pull(queue, waitMs=5000)
    assert again["attempt"] == 2


async def test_retries_follow_the_delays_and_repeat_the_last_one(tenant: Tenant) -> None:
    queue = await tenant.queue(retryDelaysMs=[0, 300], maxAttempts=0)
    published = await tenant.publish(queue, 1)
    for attempt in (1, 2, 3):
        [message] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
        assert message["attempt"] == attempt
        await nack(tenant, queue, message["receiptId"], "retry", reason=f"try {attempt}")
    [message] = await tenant.pull(queue, waitMs=5000)
    assert message["attempt"] == 4
    retried = [event for event in await tenant.events() if event["event"] == "job.retried"]
    assert [(one["attempt"], one["reason"]) for one in retried] == [(1, "try 1"), (2, "try 2"), (3, "try 3")]
    assert {one["job_id"] for one in retried} == {published["jobId"]}


async def test_a_retry_may_have_its_own_delay(tenant: Tenant) -> None:
    queue = await tenant.queue(retryDelaysMs=[60_000])
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, message["receiptId"], "retry", delayMs=0)
    assert (await tenant.pull(queue, waitMs=5000))[0]["attempt"] == 2


async def test_a_retry_after_the_last_attempt_dead_letters_the_message(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=2, retryDelaysMs=[0])
    published = await tenant.publish(queue, {"n": 1}, headers={"kind": "x"}, correlationId="c")
    for reason in ("no stock", "still no stock"):
        [message] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
        await nack(tenant, queue, message["receiptId"], "retry", reason=reason)
    assert await tenant.pull(queue) == []
    [letter] = await dead(tenant, queue)
    assert letter["messageId"] == published["messageId"] and letter["jobId"] == published["jobId"]
    assert (letter["payload"], letter["headers"], letter["correlationId"]) == ({"n": 1}, {"kind": "x"}, "c")
    assert (letter["reason"], letter["lastError"], letter["attempts"]) == ("still no stock", "still no stock", 2)
    assert letter["enqueuedAt"] == published["enqueuedAt"] <= letter["firstFailedAt"] <= letter["deadAt"]
    assert (await tenant.stats(queue))["leased"] == 0


async def test_a_consumer_can_dead_letter_a_message(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    await tenant.publish(queue, 2)
    first, second = await tenant.pull(queue, 2, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, first["receiptId"], "dlq", reason="cannot be parsed")
    await nack(tenant, queue, second["receiptId"], "dlq")
    assert [(one["reason"], one["lastError"]) for one in await dead(tenant, queue)] == [
        ("cannot be parsed", "cannot be parsed"),
        ("rejected by the consumer", None),
    ]
    assert [event["reason"] for event in await tenant.events() if event["event"] == "job.dead"] == [
        "cannot be parsed",
        "rejected by the consumer",
    ]


async def test_a_message_whose_leases_expire_too_often_becomes_a_dead_letter(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=2)
    await tenant.publish(queue, 1)
    for attempt in (1, 2):
        [message] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=0)
        assert message["attempt"] == attempt

    async def is_dead_lettered() -> bool:
        assert await tenant.pull(queue, visibilityTimeoutMs=0) == []
        return len(await dead(tenant, queue)) == 1

    await eventually(is_dead_lettered)
    [letter] = await dead(tenant, queue)
    assert (letter["reason"], letter["attempts"], letter["lastError"]) == ("maxAttempts reached", 2, None)


async def test_a_message_without_attempts_left_does_not_end_a_waiting_pull(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=1)
    await tenant.publish(queue, "exhausted")
    await tenant.pull(queue, visibilityTimeoutMs=0)
    await tenant.publish(queue, "good")
    assert [one["payload"] for one in await tenant.pull(queue, 2, waitMs=5000)] == ["good"]


@pytest.mark.parametrize("action", ["requeue", "retry", "dlq"])
async def test_a_repeated_nack_has_no_further_effect(tenant: Tenant, action: str) -> None:
    queue = await tenant.queue(retryDelaysMs=[60_000])
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, message["receiptId"], action, delayMs=60_000 if action == "requeue" else None)
    await nack(tenant, queue, message["receiptId"], action, delayMs=60_000 if action == "requeue" else None)
    assert len(await dead(tenant, queue)) == (action == "dlq")
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["leased"], stats["retrying"]) == (0, 0, 0 if action == "dlq" else 1)


async def test_two_gateways_that_dead_letter_a_delivery_record_the_same_event(
    gateway: Gateway, second_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    store, both = DeadLetters.store, asyncio.Barrier(2)

    async def store_together(self: DeadLetters, *given: Any) -> DeadLetter:
        await both.wait()
        return await store(self, *given)

    monkeypatch.setattr(DeadLetters, "store", store_together)
    monkeypatch.setattr(second_gateway.clock, "ahead_ms", 100)  # so that their times differ
    elsewhere = second_gateway.seen_by(tenant)
    await asyncio.gather(*(nack(one, queue, message["receiptId"], "dlq", reason="bad") for one in (tenant, elsewhere)))
    recorded = [event for event in await tenant.events() if event["event"] == "job.dead"]
    [letter] = await dead(tenant, queue)
    assert len(recorded) == 2
    assert {(event["event_id"], event["timestamp"]) for event in recorded} == {
        (f"{message['messageId']}/{time_ms(letter['deadAt'])}", letter["deadAt"])
    }


async def test_an_acknowledged_message_cannot_be_dead_lettered(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    answer = await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq"})
    answer.problem(409, "already-settled")
    assert await dead(tenant, queue) == []


async def test_a_nack_of_many_receipts_has_a_result_for_each(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    messages = await tenant.pull(queue, 3, visibilityTimeoutMs=60_000)
    receipts = [message["receiptId"] for message in messages] + ["nonsense"]
    answer = (await tenant.client.post(f"{queue}/nack", {"receiptIds": receipts, "action": "dlq"})).ok()
    assert [result["ok"] for result in answer["results"]] == [True, True, True, False]
    assert answer["results"][3]["problem"]["code"] == "receipt-invalid" and not answer["ok"]
    assert [one["payload"] for one in await dead(tenant, queue)] == [0, 1, 2]


@pytest.mark.parametrize(
    "body",
    [
        {"action": "retry"},
        {"action": "drop", "receiptId": "x"},
        {"receiptId": "x"},
        {"action": "retry", "receiptId": "x", "receiptIds": ["y"]},
        {"action": "retry", "receiptId": "x", "delayMs": -1},
        {"action": "retry", "receiptId": "x", "delayMs": 12 * 3_600_000 + 1},
        {"action": "retry", "receiptId": "x", "reason": "y" * 1001},
    ],
)
async def test_an_invalid_nack_is_refused(tenant: Tenant, body: dict[str, Any]) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/nack", body)).problem(422, "invalid-body")


async def test_an_expired_receipt_cannot_nack_or_extend(tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    clock.ahead_ms = 61_000
    body = {"receiptId": message["receiptId"], "action": "dlq"}
    (await tenant.client.post(f"{queue}/nack", body)).problem(409, "lease-expired")
    extend = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 1000}
    (await tenant.client.post(f"{queue}/extend", extend)).problem(409, "lease-expired")
    assert await dead(tenant, queue) == []


# Extending


async def test_an_extended_lease_lasts_longer_and_has_a_new_receipt(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=700)
    extend = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 60_000}
    answer = (await tenant.client.post(f"{queue}/extend", extend)).ok()
    assert answer["ok"] and answer["leaseUntil"] > message["enqueuedAt"]
    assert await tenant.pull(queue, waitMs=1500) == []
    (await tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    (await tenant.ack(queue, answer["newReceiptId"])).ok()
    assert (await tenant.stats(queue)) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_many_leases_are_extended_at_once(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(2):
        await tenant.publish(queue, number)
    receipts = [message["receiptId"] for message in await tenant.pull(queue, 2, visibilityTimeoutMs=60_000)] + ["nonsense"]
    answer = (await tenant.client.post(f"{queue}/extend", {"receiptIds": receipts, "visibilityTimeoutMs": 0})).ok()
    assert [result["ok"] for result in answer["results"]] == [True, True, False]
    assert len(await tenant.pull(queue, 2, waitMs=5000)) == 2


async def test_every_gateway_accepts_a_receipt(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    elsewhere = second_gateway.seen_by(tenant)
    extended = await elsewhere.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], "visibilityTimeoutMs": 50_000})
    await nack(elsewhere, queue, extended.ok()["newReceiptId"], "dlq", reason="elsewhere")
    assert [one["reason"] for one in await dead(tenant, queue)] == ["elsewhere"]


async def test_a_dead_letter_has_no_delay(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    body = {"receiptId": message["receiptId"], "action": "dlq", "delayMs": 0}
    problem = (await tenant.client.post(f"{queue}/nack", body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.delayMs"
    assert await dead(tenant, queue) == []


async def test_an_aborted_pull_costs_the_next_message_no_attempt(tenant: Tenant) -> None:
    """The pending pull request is withdrawn; otherwise the next message would be delivered to no caller."""
    queue = await tenant.queue(maxAttempts=1)
    for number in range(3):
        waiting = asyncio.create_task(tenant.pull(queue, waitMs=20_000))
        await eventually(lambda: pull_consumer_of(tenant)._has_waiting_pull)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(lambda: not pull_consumer_of(tenant)._callers)
        await eventually(lambda: not pull_consumer_of(tenant)._has_waiting_pull, 4)  # by itself it would end after five seconds
        await tenant.publish(queue, number)
        [message] = await tenant.pull(queue, waitMs=5000)
        assert (message["payload"], message["attempt"]) == (number, 1)
        (await tenant.ack(queue, message["receiptId"])).ok()
    assert await dead(tenant, queue) == []


def pull_consumer_of(tenant: Tenant) -> PullConsumer:
    """The gateway's pull consumer of the queue `q`, which the first pull creates."""
    backend = tenant.gateway.node.platform.use(QueuesCapability).backend
    nothing = PullConsumer(tenant.gateway.node.platform.connection, "none", "none")
    return backend.engine._pull_consumers.get(queue_stream(tenant.id, "q"), nothing)
