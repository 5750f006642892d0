"""Delays, idempotency keys, limits, retention, leases and events of messages."""

import asyncio
import time
from collections import Counter
from typing import Any

import msgspec
import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.ids import new_id
from postroad.kernel.names import queue_stream, queue_subject
from tests.gateway import Answer, Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")


async def stored(tenant: Tenant, name: str = "q") -> list[Entry]:
    """All entries of the queue's stream, markers included."""
    subject = f"{queue_subject(tenant.id, name)}.>"
    page = await stream_reader.read(tenant.gateway.node.platform.connection, queue_stream(tenant.id, name), subject, 1, 1000)
    return list(page.entries)


async def write_raw(tenant: Tenant, payload: bytes, name: str = "q") -> None:
    """Write to the stream as another client of the NATS server could."""
    committer = tenant.gateway.node.platform.committers.of(queue_stream(tenant.id, name))
    await committer.append(PendingMessage(f"{queue_subject(tenant.id, name)}.ready", payload, new_id()))


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["payload"] for message in messages]


# Delay


async def test_a_delayed_message_is_delivered_when_due_and_not_before(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published_at = time.time()
    await tenant.publish(queue, "later", delayMs=700)
    await tenant.publish(queue, "now")
    assert payloads(await tenant.pull(queue, 10)) == ["now"]
    assert (await tenant.stats(queue))["delayed"] == 1
    [message] = await tenant.pull(queue, waitMs=5000)
    assert 0.7 <= time.time() - published_at < 2
    assert (message["payload"], message["attempt"]) == ("later", 1)
    assert (await tenant.ack(queue, message["receiptId"])).ok() == {"ok": True}
    assert await tenant.stats(queue) == {"ready": 0, "leased": 1, "delayed": 0}


async def test_delayed_messages_are_delivered_in_the_order_of_their_due_times(tenant: Tenant) -> None:
    """JetStream checks about four times a second; the order of closer due times is undefined."""
    queue = await tenant.queue()
    batch = [{"payload": delay, "delayMs": delay} for delay in (700, 100)]
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": batch})).ok()
    assert [payloads(await tenant.pull(queue, 1, waitMs=5000)) for _ in range(2)] == [[100], [700]]


async def test_a_delayed_message_keeps_all_its_fields(tenant: Tenant) -> None:
    queue = await tenant.queue()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"payload": [1.0], "headers": {"a": "b"}, "correlationId": "c", "delayMs": 50, "idempotencyKey": "k"}
    published = (await tenant.client.post(f"{queue}/messages", body, headers={"traceparent": trace})).ok(201)
    [message] = await tenant.pull(queue, waitMs=5000)
    del message["receiptId"]
    assert message == {
        **published,
        "payload": [1.0],
        "headers": {"a": "b"},
        "attempt": 1,
        "correlationId": "c",
        "traceparent": trace,
    }


# Idempotency keys


async def test_a_used_key_returns_the_ids_of_the_first_message(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await tenant.publish(queue, {"a": 1, "b": 2}, idempotencyKey="k")
    for same in (b'{"payload":{"b":2,"a":1},"idempotencyKey":"k"}', b'{ "idempotencyKey" : "k", "payload" : {"a":1 , "b":2} }'):
        answer = await tenant.client.post(f"{queue}/messages", data=same, headers={"Content-Type": "application/json"})
        assert answer.ok(201) == first
    assert len(await tenant.pull(queue, 10)) == 1


@pytest.mark.parametrize("other", [{"payload": 2}, {"headers": {"a": "b"}}, {"delayMs": 5}, {"correlationId": "c"}])
async def test_a_used_key_with_another_body_is_422(tenant: Tenant, other: dict[str, Any]) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, idempotencyKey="k")
    body = {"payload": 1, "idempotencyKey": "k", **other}
    assert (await tenant.client.post(f"{queue}/messages", body)).problem(422, "idempotency-mismatch")["retryable"] is False
    assert (await tenant.stats(queue))["ready"] == 1


async def test_a_key_is_remembered_after_its_message_is_acknowledged(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await tenant.publish(queue, 1, idempotencyKey="k")
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert await tenant.publish(queue, 1, idempotencyKey="k") == first
    assert await tenant.pull(queue) == []


async def test_keys_are_separate_for_each_api_key_and_queue(tenant: Tenant) -> None:
    queue, other_queue = await tenant.queue("q"), await tenant.queue("other")
    colleague = await tenant.another_key()
    ids = [
        (await one.publish(where, 1, idempotencyKey="k"))["messageId"]
        for one in (tenant, colleague)
        for where in (queue, other_queue)
    ]
    assert len(set(ids)) == 4


async def test_a_key_can_be_used_again_after_its_window(tenant: Tenant) -> None:
    queue = await tenant.queue(dedupeWindowMs=1000)
    started = time.perf_counter()
    first = await tenant.publish(queue, 1, idempotencyKey="k")

    async def is_free() -> bool:
        return bool((await tenant.publish(queue, 1, idempotencyKey="k"))["messageId"] != first["messageId"])

    await eventually(is_free)
    assert time.perf_counter() - started >= 1
    (await tenant.client.post(f"{queue}/messages", {"payload": 2, "idempotencyKey": "k"})).problem(422, "idempotency-mismatch")
    assert (await tenant.stats(queue))["ready"] == 2


@pytest.mark.parametrize(("window_ms", "expected"), [(None, "86400s"), (1000, "1s"), (1001, "2s"), (60_000, "60s")])
async def test_a_key_is_remembered_for_at_least_its_window(tenant: Tenant, window_ms: int | None, expected: str) -> None:
    queue = await tenant.queue(dedupeWindowMs=window_ms)
    await tenant.publish(queue, 1, idempotencyKey="k")
    [marker] = [entry for entry in await stored(tenant) if ".idem." in entry.subject]
    assert marker.headers["Nats-TTL"] == expected


async def test_concurrent_publishes_with_one_key_store_one_message(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[one.publish(queue, 1, idempotencyKey="k") for one in both for _ in range(20)])
    assert len({one["messageId"] for one in published}) == 1
    assert len({one["jobId"] for one in published}) == 1
    assert payloads(await tenant.pull(queue, 10)) == [1]


async def test_a_batch_may_use_a_key_twice(tenant: Tenant) -> None:
    queue = await tenant.queue()
    known = await tenant.publish(queue, "known", idempotencyKey="known")
    messages = [
        {"payload": 1, "idempotencyKey": "a"},
        {"payload": "known", "idempotencyKey": "known"},
        {"payload": 1, "idempotencyKey": "a"},
        {"payload": "else", "idempotencyKey": "known"},
        {"payload": 2},
    ]
    answer = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    first, second, third, fourth, fifth = answer["results"]
    assert first == third and second == known
    assert fourth["problem"]["code"] == "idempotency-mismatch"
    assert (answer["published"], answer["failed"]) == (4, 1)
    assert sorted(map(str, payloads(await tenant.pull(queue, 10)))) == ["1", "2", "known"]
    assert len({first["messageId"], second["messageId"], fifth["messageId"]}) == 3


# Limits


async def publish_many(tenant: Tenant, queue: str, count: int) -> Counter[int]:
    answers = await asyncio.gather(*[tenant.client.post(f"{queue}/messages", {"payload": number}) for number in range(count)])
    for answer in answers:
        if answer.status != 201:
            full(answer)
    return Counter(answer.status for answer in answers)


def full(answer: Answer) -> None:
    assert answer.problem(507, "storage-full")["retryable"] is True
    assert answer.headers["retry-after"] == "5"


async def test_a_full_queue_refuses_messages(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=10)
    for number in range(10):
        await tenant.publish(queue, number)
    full(await tenant.client.post(f"{queue}/messages", {"payload": 11}))
    assert (await tenant.stats(queue))["ready"] == 10


@pytest.mark.parametrize("already", [0, 7])
async def test_concurrent_publishes_do_not_exceed_the_limit(tenant: Tenant, already: int) -> None:
    queue = await tenant.queue(maxMessages=10)
    await publish_many(tenant, queue, already)
    assert await publish_many(tenant, queue, 40) == {201: 10 - already, 507: 40 - (10 - already)}
    assert (await tenant.stats(queue))["ready"] == 10


async def test_a_new_process_knows_that_a_queue_is_full(tenant: Tenant, engine_url: str) -> None:
    queue = await tenant.queue(maxMessages=10)
    for number in range(6):
        await tenant.publish(queue, number, idempotencyKey=str(number))
    for _ in range(2):
        await tenant.publish(queue, "later", delayMs=60_000)
    assert len(await tenant.pull(queue, 3)) == 3
    async with running_gateway(gateway_settings(engine_url)) as fresh:
        assert await publish_many(fresh.seen_by(tenant), queue, 20) == {201: 2, 507: 18}
    assert await tenant.stats(queue) == {"ready": 5, "leased": 3, "delayed": 2}


async def test_leased_and_delayed_messages_count_towards_the_limit_and_markers_do_not(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=3)
    for number in range(2):
        await tenant.publish(queue, number, idempotencyKey=str(number))
    await tenant.publish(queue, "later", delayMs=60_000)
    [message] = await tenant.pull(queue)
    full(await tenant.client.post(f"{queue}/messages", {"payload": 4}))
    (await tenant.ack(queue, message["receiptId"])).ok()

    async def has_capacity() -> bool:
        return (await tenant.client.post(f"{queue}/messages", {"payload": 4})).status == 201

    await eventually(has_capacity)
    assert await tenant.stats(queue) == {"ready": 2, "leased": 0, "delayed": 1}


async def test_a_repeated_publish_returns_its_ids_from_a_full_queue(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=1)
    first = await tenant.publish(queue, 1, idempotencyKey="k")
    assert await tenant.publish(queue, 1, idempotencyKey="k") == first
    mismatch = await tenant.client.post(f"{queue}/messages", {"payload": 2, "idempotencyKey": "k"})
    mismatch.problem(422, "idempotency-mismatch")
    full(await tenant.client.post(f"{queue}/messages", {"payload": 1, "idempotencyKey": "other"}))
    messages = [{"payload": 1, "idempotencyKey": "k"}, {"payload": 2}]
    results = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()["results"]
    assert results[0] == first
    assert results[1]["problem"]["code"] == "storage-full"


async def test_refused_publishes_do_not_count_towards_the_limit(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=3)
    await tenant.publish(queue, 1, idempotencyKey="k")
    for _ in range(5):
        mismatch = await tenant.client.post(f"{queue}/messages", {"payload": 2, "idempotencyKey": "k"})
        mismatch.problem(422, "idempotency-mismatch")
    assert await publish_many(tenant, queue, 5) == {201: 2, 507: 3}


async def test_a_batch_is_stored_up_to_the_limit(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=5)
    await tenant.publish(queue, "first")
    batch = {"messages": [{"payload": number} for number in range(10)]}
    answer = (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
    assert (answer["published"], answer["failed"]) == (4, 6)
    assert ["problem" in result for result in answer["results"]] == [False] * 4 + [True] * 6
    assert payloads(await tenant.pull(queue, 10)) == ["first", 0, 1, 2, 3]


async def test_a_limit_can_be_raised(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=1)
    await tenant.publish(queue, 1)
    full(await tenant.client.post(f"{queue}/messages", {"payload": 2}))
    (await tenant.client.put(queue, {"maxMessages": 2})).ok()
    await tenant.publish(queue, 2)
    (await tenant.client.put(queue, {})).ok()
    assert await publish_many(tenant, queue, 5) == {201: 5}


# Retention


async def test_a_message_is_deleted_after_its_retention(tenant: Tenant) -> None:
    queue = await tenant.queue(retentionMs=1000)
    started = time.perf_counter()
    await tenant.publish(queue, "ready")
    await tenant.publish(queue, "leased")
    await tenant.publish(queue, "later", delayMs=100)
    assert payloads(await tenant.pull(queue, visibilityTimeoutMs=60_000)) == ["ready"]

    async def is_empty() -> bool:
        return (await tenant.stats(queue))["ready"] == 0 and (await tenant.stats(queue))["delayed"] == 0

    await eventually(is_empty)
    assert time.perf_counter() - started >= 1
    assert await tenant.pull(queue, 10) == []


@pytest.mark.parametrize(("retention_ms", "expected"), [(1, "1s"), (1000, "1s"), (1999, "2s"), (86_400_000, "86400s")])
async def test_a_message_is_kept_for_at_least_its_retention(tenant: Tenant, retention_ms: int, expected: str) -> None:
    queue = await tenant.queue(retentionMs=retention_ms)
    await tenant.publish(queue, 1)
    await tenant.publish(queue, 2, delayMs=60_000)
    ready, later = await stored(tenant)
    assert ready.headers["Nats-TTL"] == expected
    assert later.headers["Nats-Schedule-TTL"] == expected


async def test_a_message_without_retention_has_no_ttl(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [entry] = await stored(tenant)
    assert "Nats-TTL" not in entry.headers


# Leases


async def test_a_message_whose_lease_expires_is_delivered_with_the_next_attempt(tenant: Tenant) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=200)
    published = await tenant.publish(queue, "again")
    for attempt in (1, 2, 3):
        started = time.perf_counter()
        [message] = await tenant.pull(queue, waitMs=5000)
        assert (message["messageId"], message["attempt"]) == (published["messageId"], attempt)
        if attempt > 1:
            assert time.perf_counter() - started >= 0.15
    assert (await tenant.ack(queue, message["receiptId"])).ok() == {"ok": True}


async def test_a_leased_message_is_hidden_from_other_consumers(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert len(await tenant.pull(queue, visibilityTimeoutMs=60_000)) == 1
    assert await second_gateway.seen_by(tenant).pull(queue, 10, waitMs=200) == []


async def test_a_message_with_a_timeout_of_zero_is_delivered_again(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [first] = await tenant.pull(queue, visibilityTimeoutMs=0)
    [second] = await tenant.pull(queue, waitMs=2000)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert (await tenant.ack(queue, second["receiptId"])).ok() == {"ok": True}


async def test_an_acknowledged_message_is_not_delivered_when_its_lease_would_expire(tenant: Tenant) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=200)
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert await tenant.pull(queue, waitMs=500) == []


async def test_an_expired_receipt_does_not_affect_the_next_lease(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [old] = await tenant.pull(queue, visibilityTimeoutMs=100)
    [new] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
    (await tenant.ack(queue, old["receiptId"])).problem(409, "lease-expired")
    assert await tenant.stats(queue) == {"ready": 0, "leased": 1, "delayed": 0}
    assert (await tenant.ack(queue, new["receiptId"])).ok() == {"ok": True}


async def test_concurrent_pulls_share_the_messages(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    batch = {"messages": [{"payload": number} for number in range(100)]}
    (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
    both = (tenant, second_gateway.seen_by(tenant))
    pulls = await asyncio.gather(*[one.pull(queue, 7, waitMs=100) for one in both for _ in range(10)])
    pulled = [payload for messages in pulls for payload in payloads(messages)]
    assert sorted(pulled) == list(range(100))


async def test_a_disconnect_during_a_long_poll_loses_no_message(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    for round_number in range(5):
        waiting = [asyncio.create_task(tenant.pull(queue, 10, waitMs=20_000)) for _ in range(5)]
        await eventually(lambda: gateway.node.app._usage.open_requests == 5)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await tenant.publish(queue, round_number)
        [message] = await tenant.pull(queue, waitMs=5000)
        assert message["payload"] == round_number
        assert message["attempt"] <= 2
        (await tenant.ack(queue, message["receiptId"])).ok()
        await eventually(lambda: gateway.node.app._usage.open_requests == 0)


async def test_a_disconnect_at_the_moment_of_delivery_loses_no_message(gateway: Gateway, tenant: Tenant) -> None:
    """The message is delivered again, at the latest when the unused lease expires."""
    for number in range(10):
        queue = await tenant.queue(f"q{number}", visibilityTimeoutMs=200)
        waiting = asyncio.create_task(tenant.pull(queue, 1, waitMs=20_000))
        await eventually(lambda: gateway.node.app._usage.open_requests == 1)
        publishing = asyncio.create_task(tenant.publish(queue, number))
        await asyncio.sleep(number / 2000)  # a different moment each time, around the delivery
        waiting.cancel()
        await asyncio.gather(publishing, waiting, return_exceptions=True)
        assert payloads(await tenant.pull(queue, 1, waitMs=15_000)) == [number]
        await eventually(lambda: gateway.node.app._usage.open_requests == 0)


# Several gateways


async def test_gateways_share_queues_keys_and_receipts(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    elsewhere = second_gateway.seen_by(tenant)
    queue = await tenant.queue()
    published = await elsewhere.publish(queue, "there", idempotencyKey="k")
    assert await tenant.publish(queue, "there", idempotencyKey="k") == published
    [message] = await tenant.pull(queue)
    assert message["messageId"] == published["messageId"]
    assert (await elsewhere.ack(queue, message["receiptId"])).ok() == {"ok": True}
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_a_long_poll_ends_with_a_publish_on_another_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    waiting = asyncio.create_task(tenant.pull(queue, waitMs=20_000))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    await second_gateway.seen_by(tenant).publish(queue, 1)
    assert payloads(await asyncio.wait_for(waiting, 15)) == [1], "before the wait of the poll is over"


# Foreign messages in the stream


IDS = {"id": new_id(), "job": new_id()}
FOREIGN = {
    "not JSON": b"hello",
    "empty": b"",
    "an array": b"[]",
    "no payload": msgspec.json.encode({"v": 1, **IDS, "at": 1}),
    "ids that are not UUIDs": msgspec.json.encode({"v": 1, "id": "a", "job": "b", "at": 1, "payload": 1}),
    "a job that is not a UUID": msgspec.json.encode({"v": 1, **IDS, "job": "b", "at": 1, "payload": 1}),
    "a time out of range": msgspec.json.encode({"v": 1, **IDS, "at": 10**18, "payload": 1}),
    "a negative time out of range": msgspec.json.encode({"v": 1, **IDS, "at": -(10**18), "payload": 1}),
    "a payload that is not UTF-8": b'{"v":1,"id":"%b","job":"%b","at":1,"payload":"\xff"}'
    % (IDS["id"].encode(), IDS["job"].encode()),
    "nested too deeply": b'{"payload":' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("foreign", FOREIGN)
async def test_an_unreadable_message_does_not_block_the_queue(tenant: Tenant, foreign: str) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "before")
    await write_raw(tenant, FOREIGN[foreign])
    await tenant.publish(queue, "after")
    messages = await tenant.pull(queue, 10)
    assert payloads(messages) == ["before", "after"]
    for message in messages:
        assert (await tenant.ack(queue, message["receiptId"])).ok() == {"ok": True}
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["leased"], stats["retrying"]) == (0, 0, 1), "it stays in the queue"


# Events


async def test_each_step_of_a_job_is_an_event(tenant: Tenant) -> None:
    queue = await tenant.queue()
    answer = await tenant.client.post(
        f"{queue}/messages", {"payload": 1, "correlationId": "c", "delayMs": 50}, headers={"X-Request-Id": "publishing"}
    )
    published = answer.ok(201)
    [message] = (await tenant.client.post(f"{queue}/pull", {"waitMs": 5000}, headers={"X-Request-Id": "pulling"})).ok()[
        "messages"
    ]
    ack = {"receiptId": message["receiptId"]}
    (await tenant.client.post(f"{queue}/ack", ack, headers={"X-Request-Id": "acking"})).ok()

    queued, leased, done = await tenant.events()
    for event in (queued, leased, done):
        assert (event["job_id"], event["message_id"]) == (published["jobId"], published["messageId"])
        assert (event["tenant"], event["queue"], event["key_id"]) == (tenant.id, "q", tenant.record.id)
    assert (queued["event"], leased["event"], done["event"]) == ("job.queued", "job.leased", "job.done")
    assert [event["request_id"] for event in (queued, leased, done)] == ["publishing", "pulling", "acking"]
    assert (queued["timestamp"], queued["delay_ms"], queued["correlation_id"]) == (published["enqueuedAt"], 50, "c")
    assert queued["payload_bytes"] > 0
    assert leased["attempt"] == done["attempt"] == 1
    assert leased["wait_ms"] >= 50 and leased["lease_until"] > leased["timestamp"]
    assert done["processing_ms"] >= 0


async def test_the_event_of_a_publish_is_stored_before_the_response(tenant: Tenant) -> None:
    queue = await tenant.queue()
    ids = [(await tenant.publish(queue, number))["messageId"] for number in range(3)]
    assert [event["message_id"] for event in await tenant.events()] == ids
    batch = {"messages": [{"payload": number} for number in range(3)]}
    results = (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()["results"]
    assert [event["message_id"] for event in await tenant.events()] == ids + [result["messageId"] for result in results]


async def test_a_repeated_publish_is_the_same_event(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for _ in range(3):
        published = await tenant.publish(queue, 1, idempotencyKey="k")
    events = await tenant.events()
    assert {(event["event"], event["event_id"], event["message_id"], event["job_id"]) for event in events} == {
        ("job.queued", published["messageId"], published["messageId"], published["jobId"])
    }


async def test_a_refused_publish_has_no_event(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=1)
    await tenant.publish(queue, 1)
    full(await tenant.client.post(f"{queue}/messages", {"payload": 2}))
    assert len(await tenant.events()) == 1


async def test_a_refused_receipt_has_no_event(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    (await tenant.client.post(f"{queue}/ack", {"receiptIds": ["x", message["receiptId"]]})).ok()
    assert [event["event"] for event in await tenant.events()] == ["job.queued", "job.leased", "job.done"]


async def test_a_repeated_ack_is_the_same_event(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    for _ in range(2):
        (await tenant.ack(queue, message["receiptId"])).ok()
    first, again = (await tenant.events())[2:]
    assert first["event"] == again["event"]
    assert first["event_id"] == again["event_id"]


@pytest.mark.parametrize("action", ["retry", "requeue", "dlq"])
async def test_a_repeated_nack_has_one_event(tenant: Tenant, action: str) -> None:
    queue = await tenant.queue(retryDelaysMs=[60_000])
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    for _ in range(2):
        (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": action})).ok()
    assert len(await tenant.events()) == 3


async def test_the_size_in_the_event_is_that_of_the_payload(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, headers={"kind": "x" * 100}, idempotencyKey="k")
    await tenant.publish(queue, "12345")
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": {"a": 1}}]})).ok()
    assert [event["payload_bytes"] for event in await tenant.events()] == [1, 7, 7]


async def test_a_repeated_batch_with_an_idempotency_key_stores_nothing_twice(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    batch = {"messages": [{"payload": number} for number in range(3)] + [{"payload": "own", "idempotencyKey": "own"}]}
    key = {"Idempotency-Key": "batch-1"}
    first = (await tenant.client.post(f"{queue}/messages/batch", batch, headers=key)).ok()
    again = (await second_gateway.seen_by(tenant).client.post(f"{queue}/messages/batch", batch, headers=key)).ok()
    assert again["results"] == first["results"] and again["failed"] == 0
    assert await tenant.stats(queue) == {"ready": 4, "leased": 0, "delayed": 0}
    (await tenant.client.post(f"{queue}/messages/batch", batch, headers={"Idempotency-Key": "batch-2"})).ok()
    assert (await tenant.stats(queue))["ready"] == 7, "the message with its own key is not stored again"


async def test_another_batch_with_the_same_key_is_refused_by_message(tenant: Tenant) -> None:
    queue = await tenant.queue()
    key = {"Idempotency-Key": "batch-1"}
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1}, {"payload": 2}]}, headers=key)).ok()
    changed = {"messages": [{"payload": 1}, {"payload": 3}]}
    answer = (await tenant.client.post(f"{queue}/messages/batch", changed, headers=key)).ok()
    assert [one.get("problem", {}).get("code") for one in answer["results"]] == [None, "idempotency-mismatch"]
    too_long = {"Idempotency-Key": "k" * 257}
    (await tenant.client.post(f"{queue}/messages/batch", changed, headers=too_long)).problem(422, "invalid-body")
