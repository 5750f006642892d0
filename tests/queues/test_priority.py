"""`priority`: pulls get messages with `high` first and with `low` last, and nothing starves."""

import asyncio
import random
from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream.management import consumer_state, stream_info
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import queue_stream
from postroad.queues.capability import QueuesCapability
from postroad.queues.rules import PULL_ORDERS
from tests.gateway import Client, Gateway, ShiftedClock, Tenant, running_gateway
from tests.queues.test_stats import becomes, nack, stats
from tests.waiting import eventually

PRIORITIES = ("high", "normal", "low")
MANY = 60_000


def record_of(gateway: Gateway, tenant: Tenant, name: str = "q") -> Any:
    return gateway.node.platform.use(QueuesCapability).lifecycle.cached(tenant.id, name)


async def prepared(tenant: Tenant, second: Gateway | None = None, **settings: Any) -> str:
    """A queue whose messages have had priorities, which every gateway knows."""
    queue = await tenant.queue(**settings)
    await tenant.publish(queue, "first", priority="high")
    [message] = await tenant.pull(queue, waitMs=10_000)
    (await tenant.ack(queue, message["receiptId"])).ok()
    if second is not None:
        await eventually(lambda: record_of(second, tenant).has_priority, 10)
    return queue


async def publish_each(tenant: Tenant, queue: str, count: int, **more: object) -> None:
    messages = [
        {"payload": [priority, n], "priority": priority, **more} for priority in reversed(PRIORITIES) for n in range(count)
    ]
    result = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert result["failed"] == 0, result


def priorities(messages: list[dict[str, Any]]) -> list[str]:
    found = [message.get("priority", "normal") for message in messages]
    assert found == [message["payload"][0] for message in messages]
    return found


async def test_one_pull_takes_messages_in_the_order_of_their_priorities(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_each(tenant, queue, 2)
    messages = await tenant.pull(queue, 5)
    assert priorities(messages) == ["high", "high", "normal", "normal", "low"]
    assert [message["payload"][1] for message in messages] == [0, 1, 0, 1, 0]
    assert "priority" not in messages[2]


async def test_eight_pulls_of_ten_begin_with_high_and_nothing_starves(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_each(tenant, queue, 20)
    found = [priorities(await tenant.pull(queue))[0] for _ in range(20)]
    assert Counter(found) == {"high": 16, "normal": 2, "low": 2}
    assert found == [order[0] for order in PULL_ORDERS] * 2
    rest = await tenant.pull(queue, 100)
    assert Counter(priorities(rest)) == {"high": 4, "normal": 18, "low": 18}


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_a_waiting_pull_gets_a_message_of_any_priority(tenant: Tenant, second_gateway: Gateway, priority: str) -> None:
    queue = await prepared(tenant, second_gateway)
    other = second_gateway.seen_by(tenant)
    waiting = [asyncio.create_task(one.pull(queue, 2, waitMs=20_000)) for one in (tenant, other, other)]
    await becomes(tenant, queue, waiting=3)
    for number in range(3):
        await tenant.publish(queue, [priority, number], priority=priority)
    pulled = [message for messages in await asyncio.gather(*waiting) for message in messages]
    if len(pulled) < 3:
        pulled += await tenant.pull(queue, 3)
    assert sorted(message["payload"][1] for message in pulled) == [0, 1, 2]
    assert {message["attempt"] for message in pulled} == {1}, "a wake-up is not a delivery"


async def test_a_pull_that_waits_while_the_queue_gets_its_first_priority(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue()
    other = second_gateway.seen_by(tenant)
    await eventually(lambda: record_of(second_gateway, tenant) is not None, 10)
    waiting = [asyncio.create_task(one.pull(queue, waitMs=20_000)) for one in (tenant, other)]
    await becomes(tenant, queue, waiting=2)
    for number in range(2):
        await tenant.publish(queue, ["high", number], priority="high")
    async with asyncio.timeout(30):
        pulled = [message for messages in await asyncio.gather(*waiting) for message in messages]
    assert sorted(message["payload"][1] for message in pulled) == [0, 1]


async def test_a_queue_without_priorities_has_one_consumer(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, priority="normal")
    await tenant.pull(queue)
    stream = queue_stream(tenant.id, "q")
    connection = gateway.node.platform.connection
    assert record_of(gateway, tenant).features == ()
    info = await connection.api(f"STREAM.INFO.{stream}")
    assert b'"consumer_count":1' in info
    await tenant.publish(queue, 2, priority="low")
    assert record_of(gateway, tenant).features == ("priority",)
    for priority in PRIORITIES:
        assert await consumer_state(connection, stream, record_of(gateway, tenant).consumer_of(priority)) is not None


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_every_state_has_its_number_whatever_the_priority(gateway: Gateway, second_gateway: Gateway, priority: str) -> None:
    tenant = await gateway.tenant()
    queue = await prepared(tenant, second_gateway)
    for number in range(6):
        await tenant.publish(queue, number, priority=priority)
    for _ in range(2):
        await tenant.publish(queue, "later", delayMs=MANY, priority=priority)
    leased = await tenant.pull(queue, 5, visibilityTimeoutMs=MANY)
    await nack(tenant, queue, leased[0], "retry", delayMs=MANY)
    await nack(tenant, queue, leased[1], "dlq")
    await nack(tenant, queue, leased[2], "requeue")
    (await tenant.client.post(f"{queue}/extend", {"receiptId": leased[3]["receiptId"], "visibilityTimeoutMs": 0})).ok()
    for worker in (tenant, second_gateway.seen_by(tenant)):
        await becomes(worker, queue, ready=3, overdue=1, leased=1, retrying=1, delayed=2, dead=1)
    peeked = (await tenant.client.get(f"{queue}/messages?priority={priority}")).ok()["messages"]
    assert [one["state"] for one in peeked] == ["retrying", "ready", "ready", "leased", "ready"]
    assert {one.get("priority", "normal") for one in peeked} == {priority}
    others = [one for one in PRIORITIES if one != priority]
    assert (await tenant.client.get(f"{queue}/messages?priority={others[0]}")).ok()["messages"] == []
    [delayed, _] = (await tenant.client.get(f"{queue}/messages?state=delayed")).ok()["messages"]
    assert delayed.get("priority", "normal") == priority
    [dead] = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert dead.get("priority", "normal") == priority
    assert (await tenant.client.post(f"{queue}/purge", {})).ok()["count"] == 7
    assert await stats(tenant, queue) == {"dead": 1}
    assert await second_gateway.seen_by(tenant).pull(queue, 10) == []


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_leases_on_another_gateway(gateway: Gateway, second_gateway: Gateway, priority: str) -> None:
    """Ack, nack and extend with a receipt of another gateway; a lease that ends; a delayed message; the last attempt."""
    tenant = await gateway.tenant()
    queue = await prepared(tenant, second_gateway, maxAttempts=3, retryDelaysMs=[0])
    other = second_gateway.seen_by(tenant)
    await tenant.publish(queue, 1, priority=priority, delayMs=200)
    [message] = await other.pull(queue, waitMs=20_000, visibilityTimeoutMs=MANY)
    extended = (await tenant.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], "visibilityTimeoutMs": 300})).ok()
    [message] = await other.pull(queue, waitMs=20_000, visibilityTimeoutMs=MANY)
    assert message["attempt"] == 2
    (await tenant.ack(queue, extended["newReceiptId"])).problem(409, "lease-expired")
    await nack(tenant, queue, message, "retry", reason="no")
    [message] = await tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=MANY)
    await nack(other, queue, message, "retry", reason="never")
    [dead] = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert (dead["attempts"], dead["reason"], dead.get("priority", "normal")) == (3, "never", priority)
    await tenant.publish(queue, 2, priority=priority)
    [message] = await tenant.pull(queue, waitMs=20_000)
    (await other.ack(queue, message["receiptId"])).ok()
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert await stats(other, queue) == {"dead": 1}


async def test_a_message_without_attempts_left_becomes_a_dead_letter(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=1)
    await tenant.publish(queue, 1, priority="low")
    await tenant.pull(queue, visibilityTimeoutMs=0)
    assert await tenant.pull(queue, waitMs=300) == []
    await becomes(tenant, queue, dead=1)


@pytest.mark.parametrize(("to", "expected"), [("q", PRIORITIES), ("elsewhere", PRIORITIES), ("limited", ("normal",) * 3)])
async def test_a_redriven_message_keeps_its_priority(gateway: Gateway, to: str, expected: tuple[str, ...]) -> None:
    async with running_gateway(gateway.settings, Role.ALL) as node:
        tenant = await node.tenant()
        queue = await tenant.queue()
        if to != "q":
            await tenant.queue(to, maxInFlight=5 if to == "limited" else 0)
        await publish_each(tenant, queue, 1)
        for message in await tenant.pull(queue, 3):
            await nack(tenant, queue, message, "dlq")
        (await tenant.client.post(f"{queue}/dlq/redrive", {"to": to})).ok(202)
        messages: list[dict[str, Any]] = []
        while len(messages) < 3:
            messages += await tenant.pull(f"/v1/queues/{to}", 3, waitMs=10_000)
        found = {message["payload"][0]: message.get("priority", "normal") for message in messages}
        assert found == dict(zip(PRIORITIES, expected, strict=True))


async def test_jobs_show_their_priority_and_can_be_cancelled_run_and_retried(gateway: Gateway) -> None:
    async with running_gateway(gateway.settings, Role.ALL) as node:
        tenant = await node.tenant()
        queue = await prepared(tenant)
        jobs: dict[str, str] = {}
        for priority in PRIORITIES:
            jobs[priority] = (await tenant.publish(queue, [priority], priority=priority))["jobId"]
        for priority, job in jobs.items():
            assert (await tenant.client.get(f"/v1/jobs/{job}")).ok().get("priority", "normal") == priority
            (await tenant.client.post(f"/v1/jobs/{job}/cancel", {})).ok()
        assert await stats(tenant, queue) == {} and await tenant.pull(queue, 3) == []
        for job in jobs.values():
            (await tenant.client.post(f"/v1/jobs/{job}/retry", {})).ok()
        messages = await tenant.pull(queue, 3, visibilityTimeoutMs=MANY)
        assert sorted(priorities(messages)) == sorted(PRIORITIES)
        for message in messages:
            await nack(tenant, queue, message, "retry", delayMs=MANY)
        for job in jobs.values():
            (await tenant.client.post(f"/v1/jobs/{job}/run", {})).ok()
        again = await tenant.pull(queue, 3)
        assert sorted(priorities(again)) == sorted(PRIORITIES) and {one["attempt"] for one in again} == {2}
        for priority in PRIORITIES:
            later = (await tenant.publish(queue, [priority], priority=priority, delayMs=MANY))["jobId"]
            (await tenant.client.post(f"/v1/jobs/{later}/run", {})).ok()
            [message] = await tenant.pull(queue, waitMs=20_000)
            assert message["jobId"] == later and priorities([message]) == [priority]


async def test_a_unique_key_holds_over_priorities(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await tenant.publish(queue, ["low"], priority="low", uniqueKey="k")
    again = await tenant.publish(queue, ["high"], priority="high", uniqueKey="k")
    assert again["messageId"] == first["messageId"] and again["duplicate"]
    later = await tenant.publish(queue, ["high"], priority="high", uniqueKey="l", delayMs=300)
    assert (await tenant.publish(queue, ["normal"], uniqueKey="l"))["messageId"] == later["messageId"]
    found = await tenant.pull(queue, 2, waitMs=10_000) + await tenant.pull(queue, 1, waitMs=10_000)
    assert sorted(priorities(found)) == ["high", "low"]
    for message in found:
        (await tenant.ack(queue, message["receiptId"])).ok()
    assert "duplicate" not in await tenant.publish(queue, ["normal"], uniqueKey="k")
    assert priorities(await tenant.pull(queue)) == ["normal"]


async def test_a_paused_queue_delivers_no_priority(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/pause", {})).ok()
    await publish_each(tenant, queue, 1)
    assert await tenant.pull(queue, 3) == []
    (await tenant.client.patch(queue, {"maxAttempts": 7})).ok()
    assert await tenant.pull(queue, 3, waitMs=100) == []
    (await second_gateway.seen_by(tenant).client.post(f"{queue}/resume", {})).ok()
    assert priorities(await tenant.pull(queue, 3)) == ["high", "normal", "low"]
    (await tenant.client.post(f"{queue}/pause", {})).ok()
    await publish_each(tenant, queue, 1)
    assert await tenant.pull(queue, 3) == []


async def test_a_limit_in_flight_excludes_priorities(tenant: Tenant) -> None:
    limited = await tenant.queue("limited", maxInFlight=2)
    problem = (await tenant.client.post(f"{limited}/messages", {"payload": 1, "priority": "high"})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.priority"
    batch = {"messages": [{"payload": 1}, {"payload": 2, "priority": "low"}]}
    result = (await tenant.client.post(f"{limited}/messages/batch", batch)).ok()
    assert (result["published"], result["failed"]) == (1, 1)
    assert result["results"][1]["problem"]["errors"][0]["path"] == "$.messages[1].priority"
    queue = await prepared(tenant)
    problem = (await tenant.client.patch(queue, {"maxInFlight": 1})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.maxInFlight"
    (await tenant.client.put(queue, {"maxInFlight": 1})).problem(422, "invalid-body")
    assert (await tenant.client.get(queue)).ok()["settings"]["maxInFlight"] == 0


async def test_a_priority_that_does_not_exist_is_refused(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for value in ("urgent", "HIGH", 1, None):
        (await tenant.client.post(f"{queue}/messages", {"payload": 1, "priority": value})).problem(422, "invalid-body")


async def test_the_same_idempotency_key_with_another_priority_is_refused(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await tenant.publish(queue, 1, priority="high", idempotencyKey="k")
    assert await tenant.publish(queue, 1, priority="high", idempotencyKey="k") == first
    body = {"payload": 1, "idempotencyKey": "k"}
    (await tenant.client.post(f"{queue}/messages", body)).problem(422, "idempotency-mismatch")


async def test_messages_of_all_priorities_count_for_the_limit_of_messages(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=3)
    await publish_each(tenant, queue, 1)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1, "priority": "low"})).problem(507, "storage-full")
    assert len(await tenant.pull(queue, 10)) == 3


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_an_expired_message_is_not_delivered(tenant: Tenant, clock: ShiftedClock, priority: str) -> None:
    queue = await prepared(tenant)
    expires = rfc3339(clock() + 3_000_000)
    await tenant.publish(queue, ["expired"], priority=priority, expiresAt=expires)
    await tenant.publish(queue, [priority], priority=priority)
    clock.ahead_ms += 3_000_001
    assert priorities(await tenant.pull(queue, 2)) == [priority]
    clock.ahead_ms = 0
    await becomes(tenant, queue, leased=1)


async def test_messages_and_receipts_survive_a_restart(gateway: Gateway) -> None:
    async with running_gateway(gateway.settings) as first:
        tenant = await first.tenant()
        queue = await tenant.queue()
        await publish_each(tenant, queue, 3)
        leased = await tenant.pull(queue, 4, visibilityTimeoutMs=MANY)
        assert priorities(leased) == ["high", "high", "high", "normal"]
    async with running_gateway(gateway.settings) as second:
        after = second.seen_by(tenant)
        await becomes(after, queue, ready=5, leased=4)
        for message in leased:
            (await after.ack(queue, message["receiptId"])).ok()
        assert priorities(await after.pull(queue, 10)) == ["normal", "normal", "low", "low", "low"]


async def test_a_deleted_queue_ends_waiting_pulls(tenant: Tenant) -> None:
    queue = await prepared(tenant)
    waiting = asyncio.create_task(tenant.client.post(f"{queue}/pull", {"waitMs": 20_000}))
    await becomes(tenant, queue, waiting=1)
    (await tenant.client.delete(queue)).ok(204)
    (await waiting).problem(404, "queue-not-found")


async def test_a_pull_that_is_cancelled_loses_nothing(gateway: Gateway, tenant: Tenant) -> None:
    queue = await prepared(tenant)
    waiting = [asyncio.create_task(tenant.pull(queue, waitMs=20_000)) for _ in range(4)]
    await becomes(tenant, queue, waiting=4)
    for one in waiting[:3]:
        one.cancel()
    await becomes(tenant, queue, waiting=1)
    await tenant.publish(queue, ["low"], priority="low")
    [message] = await waiting[3]
    assert message["attempt"] == 1
    assert (await stream_info(gateway.node.platform.connection, queue_stream(tenant.id, "q"))) is not None


async def test_many_workers_lose_nothing_and_get_nothing_twice(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await prepared(tenant, second_gateway)
    await publish_each(tenant, queue, 30)
    clients = [tenant.client, second_gateway.seen_by(tenant).client]
    done = Counter[tuple[str, int]]()

    async def work(client: Client) -> None:
        while len(done) < 100:
            body = {"maxMessages": 3, "waitMs": 500, "visibilityTimeoutMs": MANY}
            pulled = (await client.post(f"{queue}/pull", body)).ok()["messages"]
            for message in pulled:
                assert message["attempt"] == 1
                done[message["payload"][0], message["payload"][1]] += 1
                (await client.post(f"{queue}/ack", {"receiptId": message["receiptId"]})).ok()

    async def add() -> None:
        for number in range(10):
            await tenant.publish(queue, [PRIORITIES[number % 3], 100 + number], priority=PRIORITIES[number % 3])

    async with asyncio.timeout(120):
        await asyncio.gather(add(), *(work(clients[number % 2]) for number in range(6)))
    assert set(done.values()) == {1} and len(done) == 100
    await becomes(tenant, queue)


@pytest.mark.parametrize("seed", range(4))
async def test_pulls_take_messages_as_their_order_says(tenant: Tenant, seed: int) -> None:
    """Random publishes and pulls, compared with a model: of three lists, in the order of each pull."""
    queue = await prepared(tenant)
    chance, orders = random.Random(seed), cycle(PULL_ORDERS)
    next(orders)  # of `prepared`
    ready: dict[str, list[int]] = {priority: [] for priority in PRIORITIES}
    published = 0
    for _ in range(40):
        if chance.random() < 0.6:
            messages = []
            for _ in range(chance.randint(1, 4)):
                priority = chance.choice(PRIORITIES)
                published += 1
                ready[priority].append(published)
                messages.append({"payload": [priority, published], "priority": priority})
            assert (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()["failed"] == 0
        else:
            count, expected = chance.randint(1, 5), list[tuple[str, int]]()
            for priority in next(orders):
                while ready[priority] and len(expected) < count:
                    expected.append((priority, ready[priority].pop(0)))
            pulled = await tenant.pull(queue, count, visibilityTimeoutMs=MANY)
            assert [tuple(message["payload"]) for message in pulled] == expected
            for message in pulled:
                (await tenant.ack(queue, message["receiptId"])).ok()
    await becomes(tenant, queue, **({"ready": left} if (left := sum(map(len, ready.values()))) else {}))
