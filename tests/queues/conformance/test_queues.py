"""What every backend of queues promises: publishing, leases, ends of leases, retries, dead letters, counts."""

import asyncio
from typing import Any

from tests.queues.conformance.conftest import Case
from tests.waiting import eventually

LONG = 600_000


async def drained(case: Case, queue: str, count: int, **more: object) -> list[dict[str, Any]]:
    """Pull until there are `count` messages."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            pulled = await case.tenant.pull(queue, count - len(found), waitMs=2000, visibilityTimeoutMs=LONG, **more)
            found += pulled
    return found


async def test_a_message_is_delivered_as_it_was_published(case: Case) -> None:
    queue = await case.queue()
    payload = {"text": "ä€", "list": [1, 2.5, None], "escaped": "a\nb"}
    headers = {"kind": "x", "x-own": "1", "Traceparent": "of the user"}
    published = await case.tenant.publish(queue, payload, headers=headers, correlationId="c" * 256)
    [message] = await case.tenant.pull(queue, waitMs=5000)
    assert message["payload"] == payload and message["headers"] == headers and message["correlationId"] == "c" * 256
    assert {name: message[name] for name in ("messageId", "jobId", "enqueuedAt")} == published
    assert message["attempt"] == 1


async def test_each_message_of_a_batch_has_an_outcome(case: Case) -> None:
    queue = await case.queue()
    messages = [{"payload": 1}, {"payload": 2, "headers": {str(n): "" for n in range(100)}}, {"payload": 3, "delayMs": 1}]
    result = (await case.tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert (result["published"], result["failed"]) == (2, 1)
    assert result["results"][1]["problem"]["code"] == "invalid-body"
    assert sorted(one["payload"] for one in await drained(case, queue, 2)) == [1, 3]


async def test_an_idempotency_key_stores_one_message(case: Case) -> None:
    queue = await case.queue()
    first = await case.tenant.publish(queue, 1, idempotencyKey="k")
    assert await case.tenant.publish(queue, 1, idempotencyKey="k") == first
    mismatch = {"payload": 2, "idempotencyKey": "k"}
    (await case.tenant.client.post(f"{queue}/messages", mismatch)).problem(422, "idempotency-mismatch")
    [message] = await drained(case, queue, 1)
    assert message["messageId"] == first["messageId"]
    assert await case.tenant.pull(queue, waitMs=300) == []


async def test_a_delayed_message_is_counted_peeked_and_not_early(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1, delayMs=1500)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert (await case.stats(queue))["delayed"] == 1
    [peeked] = (await case.tenant.client.get(f"{queue}/messages?state=delayed")).ok()["messages"]
    assert peeked["messageId"] == published["messageId"]
    assert await case.tenant.pull(queue) == []
    [message] = await drained(case, queue, 1)
    assert loop.time() - started > 1.2 and message["attempt"] == 1


async def test_a_pull_never_gets_more_than_it_asked_for(case: Case) -> None:
    queue = await case.queue()
    for number in range(12):
        await case.tenant.publish(queue, number)
    first = await drained(case, queue, 5)
    assert len(first) == 5
    await eventually(lambda: _has(case, queue, ready=7, leased=5))
    rest = await drained(case, queue, 7)
    assert sorted(one["payload"] for one in first + rest) == list(range(12))


async def _has(case: Case, queue: str, **expected: int) -> bool:
    stats = await case.stats(queue)
    return {name: stats[name] for name in expected} == expected


async def test_a_long_poll_gets_a_message_that_is_published_meanwhile(case: Case) -> None:
    queue = await case.queue()
    pulling = asyncio.create_task(case.elsewhere.pull(queue, 10, waitMs=20_000))
    await eventually(lambda: _has(case, queue, waiting=1))
    await case.tenant.publish(queue, "now")
    assert [one["payload"] for one in await pulling] == ["now"]


async def test_an_acknowledged_message_is_gone_and_the_ack_can_be_repeated(case: Case) -> None:
    queue = await case.queue()
    await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    for _ in range(2):
        (await case.tenant.ack(queue, message["receiptId"])).ok()
    assert await case.tenant.pull(queue, waitMs=300) == []
    await eventually(lambda: _has(case, queue, ready=0, leased=0))


async def test_another_worker_settles_and_extends_a_lease(case: Case) -> None:
    queue = await case.queue(retryDelaysMs=[0])
    for number in range(3):
        await case.tenant.publish(queue, number)
    acked, nacked, extended = await drained(case, queue, 3)
    (await case.elsewhere.ack(queue, acked["receiptId"])).ok()
    body = {"receiptId": nacked["receiptId"], "action": "retry", "reason": "busy"}
    (await case.elsewhere.client.post(f"{queue}/nack", body)).ok()
    more = {"receiptId": extended["receiptId"], "visibilityTimeoutMs": 1000}
    (await case.elsewhere.client.post(f"{queue}/extend", more)).ok()
    again = await drained(case, queue, 2)
    assert {one["messageId"] for one in again} == {nacked["messageId"], extended["messageId"]}
    assert {one["attempt"] for one in again} == {2}
    (await case.tenant.ack(queue, extended["receiptId"])).problem(409, "lease-expired")


async def test_an_expired_lease_returns_the_message_with_the_next_attempt(case: Case) -> None:
    queue = await case.queue()
    await case.tenant.publish(queue, 1)
    [first] = await case.tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=400)
    [again] = await drained(case, queue, 1)
    assert (again["messageId"], again["attempt"]) == (first["messageId"], 2)
    (await case.tenant.ack(queue, first["receiptId"])).problem(409, "lease-expired")
    (await case.tenant.ack(queue, again["receiptId"])).ok()


async def test_an_altered_receipt_is_refused(case: Case) -> None:
    queue = await case.queue()
    await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    (await case.tenant.ack(queue, f"{message['receiptId'][:-2]}AA")).problem(400, "receipt-invalid")


async def test_a_nack_is_idempotent_and_excludes_another_one(case: Case) -> None:
    queue = await case.queue(retryDelaysMs=[60_000])
    await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    for _ in range(2):
        await case.nack(queue, message, "retry")
    other = {"receiptId": message["receiptId"], "action": "dlq"}
    (await case.tenant.client.post(f"{queue}/nack", other)).problem(409, "already-settled")
    await eventually(lambda: _has(case, queue, ready=0, leased=0, retrying=1))


async def test_retries_follow_the_schedule_and_end_as_dead_letters(case: Case) -> None:
    queue = await case.queue(maxAttempts=3, retryDelaysMs=[0, 300])
    published = await case.tenant.publish(queue, {"n": 1}, headers={"kind": "x"})
    for attempt in (1, 2, 3):
        [message] = await drained(case, queue, 1)
        assert (message["messageId"], message["attempt"]) == (published["messageId"], attempt)
        await case.nack(queue, message, "retry", reason=f"try {attempt}")
    [letter] = await case.dead(queue)
    assert (letter["messageId"], letter["reason"], letter["attempts"]) == (published["messageId"], "try 3", 3)
    assert (letter["payload"], letter["headers"]) == ({"n": 1}, {"kind": "x"})
    await eventually(lambda: _has(case, queue, ready=0, leased=0, retrying=0, dead=1))


async def test_a_slow_retry_never_delays_a_fast_one(case: Case) -> None:
    """In one queue of RabbitMQ with a TTL for each message, the fast one would wait for the slow one before it."""
    queue = await case.queue()
    for delay_ms in (3_600_000, 100):
        await case.tenant.publish(queue, delay_ms)
        [message] = await drained(case, queue, 1)
        await case.nack(queue, message, "retry", delayMs=delay_ms)
    [fast] = await drained(case, queue, 1)
    assert (fast["payload"], fast["attempt"]) == (100, 2)
    await eventually(lambda: _has(case, queue, ready=0, leased=1, retrying=1))


async def test_the_age_of_the_oldest_message_is_known_unless_there_are_no_jobs(case: Case) -> None:
    queue = await case.queue()
    assert (await case.stats(queue))["oldestAgeMs"] is None
    await case.tenant.publish(queue, 1)

    async def has_age() -> bool:
        return (await case.stats(queue))["oldestAgeMs"] is not None

    await eventually(has_age)
    [message] = await drained(case, queue, 1)
    await eventually(has_age)
    (await case.tenant.ack(queue, message["receiptId"])).ok()

    async def has_none() -> bool:
        return not await has_age()

    await eventually(has_none)
    (await case.tenant.client.post("/v1/admin/settings", {"auditMode": "off"})).ok()
    await case.tenant.publish(queue, 2)
    await eventually(lambda: _has(case, queue, ready=1))
    assert await has_age() == case.supports("peek")


async def test_a_message_with_an_expired_last_attempt_becomes_a_dead_letter(case: Case) -> None:
    queue = await case.queue(maxAttempts=1)
    await case.tenant.publish(queue, 1)
    [_] = await case.tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=100)

    async def is_dead() -> bool:
        assert await case.tenant.pull(queue) == []
        return len(await case.dead(queue)) == 1

    await eventually(is_dead)


async def test_a_redriven_dead_letter_can_be_done_or_fail_again(case: Case) -> None:
    queue = await case.queue(maxAttempts=1)
    published = await case.tenant.publish(queue, 1)
    for _ in range(2):
        [message] = await drained(case, queue, 1)
        assert (message["messageId"], message["attempt"]) == (published["messageId"], 1)
        await case.nack(queue, message, "dlq", reason="no")
        (await case.tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)
    [message] = await drained(case, queue, 1)
    (await case.tenant.ack(queue, message["receiptId"])).ok()
    await eventually(lambda: _has(case, queue, ready=0, leased=0, dead=0))


async def test_a_dead_letter_from_before_a_purge_can_be_redriven(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    await case.nack(queue, message, "dlq")
    (await case.tenant.client.post(f"{queue}/purge", {})).ok()
    (await case.tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)
    assert [one["messageId"] for one in await drained(case, queue, 1)] == [published["messageId"]]


async def test_a_purge_removes_ready_leased_and_delayed_messages(case: Case) -> None:
    queue = await case.queue()
    for number in range(4):
        await case.tenant.publish(queue, number)
    await case.tenant.publish(queue, "later", delayMs=60_000)
    [_] = await case.tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=3000)
    await eventually(lambda: _has(case, queue, ready=3, leased=1, delayed=1))
    assert (await case.tenant.client.post(f"{queue}/purge", {})).ok()["count"] == 5
    assert await case.tenant.pull(queue, 10, waitMs=4000) == []
    await case.tenant.publish(queue, "new")
    assert [one["payload"] for one in await drained(case, queue, 1)] == ["new"]


async def test_a_purge_includes_messages_that_another_worker_leases(case: Case) -> None:
    queue = await case.queue(retryDelaysMs=[0])
    for number in range(3):
        await case.tenant.publish(queue, number)
    leased: list[dict[str, Any]] = []

    async def are_leased() -> bool:
        leased.extend(await case.elsewhere.pull(queue, 3 - len(leased), visibilityTimeoutMs=LONG))
        return len(leased) == 3

    await eventually(are_leased)
    await case.tenant.publish(queue, "ready")
    await eventually(lambda: _has(case, queue, ready=1, leased=3))
    assert (await case.tenant.client.post(f"{queue}/purge", {})).ok()["count"] == 4
    for message, action in zip(leased, ("requeue", "retry"), strict=False):
        body = {"receiptId": message["receiptId"], "action": action, "delayMs": 0 if action == "requeue" else 50}
        await case.elsewhere.client.post(f"{queue}/nack", body)
    assert await case.tenant.pull(queue, 10, waitMs=1500) == []


async def test_a_message_that_follows_a_purge_is_not_dropped_whatever_the_clocks_say(case: Case) -> None:
    """Of a gateway whose clock is behind that of the gateway which purged."""
    queue, clock = await case.queue(retryDelaysMs=[0]), case.elsewhere.gateway.clock
    (await case.tenant.client.post(f"{queue}/purge", {})).ok()
    clock.ahead_ms = -3_600_000
    try:
        published = await case.elsewhere.publish(queue, "new")
    finally:
        clock.ahead_ms = 0
    for attempt in (1, 2):
        [message] = await drained(case, queue, 1)
        assert (message["messageId"], message["attempt"]) == (published["messageId"], attempt)
        await case.nack(queue, message, "requeue")


async def test_a_paused_queue_delivers_nothing_and_takes_acks(case: Case) -> None:
    queue = await case.queue()
    for number in range(2):
        await case.tenant.publish(queue, number)
    [message] = await drained(case, queue, 1)
    (await case.tenant.client.post(f"{queue}/pause", {})).ok()
    assert await case.tenant.pull(queue, waitMs=300) == []
    (await case.tenant.ack(queue, message["receiptId"])).ok()
    (await case.tenant.client.post(f"{queue}/resume", {})).ok()
    assert len(await drained(case, queue, 1)) == 1


async def test_a_full_queue_refuses_messages(case: Case) -> None:
    queue = await case.queue(maxMessages=2)
    for number in range(2):
        await case.tenant.publish(queue, number)
    (await case.tenant.client.post(f"{queue}/messages", {"payload": 3})).problem(507, "storage-full")


async def test_a_message_is_not_kept_longer_than_the_retention(case: Case) -> None:
    queue = await case.queue(retentionMs=1000)
    await case.tenant.publish(queue, "old")
    await eventually(lambda: _has(case, queue, ready=0))
    assert await case.tenant.pull(queue) == []
    (await case.tenant.client.patch(queue, {"retentionMs": 0})).ok()
    await case.tenant.publish(queue, "new")
    assert [one["payload"] for one in await drained(case, queue, 1)] == ["new"]


async def test_jobs_follow_the_messages(case: Case) -> None:
    queue = await case.queue(retryDelaysMs=[0])
    published = await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    await case.nack(queue, message, "retry", reason="busy")
    [message] = await drained(case, queue, 1)
    (await case.tenant.ack(queue, message["receiptId"])).ok()

    async def events() -> list[str]:
        return [one["event"] for one in await case.tenant.events() if one["job_id"] == published["jobId"]]

    wanted = ["job.queued", "job.leased", "job.retried", "job.leased", "job.done"]
    await eventually(lambda: _are(events, sorted(wanted)))


async def _are(events: Any, wanted: list[str]) -> bool:
    return sorted(await events()) == wanted


async def test_many_consumers_share_a_queue_and_lose_nothing(case: Case) -> None:
    queue = await case.queue()
    done: list[int] = []

    async def consume(tenant: Any) -> None:
        while len(done) < 120:
            for message in await tenant.pull(queue, 7, waitMs=200, visibilityTimeoutMs=LONG):
                # RabbitMQ counts an attempt when a channel ends before its deliveries were handed out.
                assert message["attempt"] == 1 or case.supports("amqp")
                (await tenant.ack(queue, message["receiptId"])).ok()
                done.append(message["payload"])

    consumers = [asyncio.create_task(consume(one)) for one in (case.tenant, case.elsewhere) for _ in range(3)]
    for start in range(0, 120, 30):
        await asyncio.gather(*(case.tenant.publish(queue, number) for number in range(start, start + 30)))
    await asyncio.gather(*consumers)
    assert sorted(done) == list(range(120))
