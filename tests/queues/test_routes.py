"""HTTP API of queues: fields, formats, limits."""

import asyncio
import base64
import re
import time
import uuid
from typing import Any

import msgspec
import pytest

from postroad.kernel.clock import now_ms
from postroad.kernel.names import escape
from tests.gateway import Answer, Gateway, ShiftedClock, Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def send(tenant: Tenant, queue: str, payload: bytes, more: bytes = b"") -> Answer:
    """Publish a payload of exactly this text."""
    body = b'{"payload":' + payload + more + b"}"
    return await tenant.client.post(f"{queue}/messages", data=body, headers={"Content-Type": "application/json"})


def raw_payloads(pulled: Answer) -> list[bytes]:
    class Message(msgspec.Struct):
        payload: msgspec.Raw

    class Pulled(msgspec.Struct):
        messages: list[Message]

    return [bytes(message.payload) for message in msgspec.json.decode(pulled.body, type=Pulled).messages]


# Publish


async def test_a_publish_returns_ids_and_time(tenant: Tenant) -> None:
    queue = await tenant.queue()
    before = now_ms()
    published = await tenant.publish(queue, {"any": "json"})
    assert published.keys() == {"messageId", "jobId", "enqueuedAt"}
    assert uuid.UUID(published["messageId"]).version == 7
    assert uuid.UUID(published["jobId"]).version == 7
    assert published["messageId"] != published["jobId"]
    assert STAMP.fullmatch(published["enqueuedAt"])
    stamped_ms = int(published["messageId"].replace("-", "")[:12], 16)
    assert before <= stamped_ms <= now_ms()


async def test_a_pulled_message_has_all_published_fields(tenant: Tenant) -> None:
    queue = await tenant.queue()
    headers = {"kind": "order", "\u20ac": "\u2028\n", "x" * 256: ""}
    published = await tenant.publish(queue, {"any": "json"}, headers=headers, correlationId="c-1")
    [message] = await tenant.pull(queue)
    receipt = message.pop("receiptId")
    assert isinstance(receipt, str) and re.fullmatch(r"[A-Za-z0-9_-]+", receipt)
    assert message == {
        "messageId": published["messageId"],
        "jobId": published["jobId"],
        "payload": {"any": "json"},
        "headers": headers,
        "attempt": 1,
        "enqueuedAt": published["enqueuedAt"],
        "correlationId": "c-1",
    }


async def test_a_message_leaves_out_optional_fields(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, None)
    [message] = await tenant.pull(queue)
    assert message.keys() == {"receiptId", "messageId", "jobId", "payload", "headers", "attempt", "enqueuedAt"}
    assert (message["payload"], message["headers"]) == (None, {})


PAYLOADS = [
    b"null",
    b"0",
    b"-0",
    b"1.0",
    b"1e400",
    b"123456789012345678901234567890.123456789012345678901234567890",
    b"9" * 5000,
    b'""',
    b'"\\u00e9 \\ud83d\\ude00 \\/"',
    '"\u00e9 \U0001f600 \u2028"'.encode(),
    b'{ "a" : [ 1 ,\n2 ] ,\t"b":{} }',
    b'{"a":1,"a":2}',
    b"[" * 300 + b"]" * 300,
    b'"' + b"x" * 100_000 + b'"',
]


async def test_a_payload_is_delivered_unchanged(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for index, payload in enumerate(PAYLOADS):
        more = b',"idempotencyKey":"%d"' % index if index % 2 else b""
        assert (await send(tenant, queue, payload, more)).status == 201, payload[:50]
    pulled = await tenant.client.post(f"{queue}/pull", {"maxMessages": 100})
    assert raw_payloads(pulled) == PAYLOADS


async def test_a_payload_of_a_batch_is_delivered_unchanged(tenant: Tenant) -> None:
    queue = await tenant.queue()
    body = b'{"messages":[' + b",".join(b'{"payload":%b}' % payload for payload in PAYLOADS) + b"]}"
    answer = await tenant.client.post(f"{queue}/messages/batch", data=body, headers={"Content-Type": "application/json"})
    assert answer.ok()["published"] == len(PAYLOADS)
    assert raw_payloads(await tenant.client.post(f"{queue}/pull", {"maxMessages": 100})) == PAYLOADS


@pytest.mark.parametrize("more", [b"", b',"idempotencyKey":"k%d"'])
async def test_every_accepted_nesting_depth_can_be_delivered(tenant: Tenant, more: bytes) -> None:
    """The maximum depth depends on the interpreter; reading must not be stricter than accepting."""
    queue = await tenant.queue()
    accepted = []
    for depth in range(820, 1020):
        answer = await send(tenant, queue, b"[" * depth + b"]" * depth, more % depth if more else b"")
        if answer.status != 201:
            answer.problem(400, "malformed-json")
            break
        accepted.append(depth)
    assert accepted
    delivered: list[int] = []
    for wait_ms in (1, 0):  # the two cases decode at different stack depths
        pulled = await tenant.client.post(f"{queue}/pull", {"maxMessages": len(accepted) // 2 + 1, "waitMs": wait_ms})
        delivered += [payload.count(b"[") for payload in raw_payloads(pulled)]
    assert delivered == accepted


async def test_a_payload_over_the_limit_is_413(tenant: Tenant) -> None:
    queue = await tenant.queue()
    largest = b'"' + b"x" * (1024 * 1024) + b'"'  # the size of a JSON string is that of its text
    assert (await send(tenant, queue, largest)).status == 201
    problem = (await send(tenant, queue, largest[:-1] + b'x"')).problem(413, "too-large")
    assert "1048577" in problem["detail"]
    assert (await tenant.stats(queue))["ready"] == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"headers": {f"h{number}": "" for number in range(65)}}, "$.headers"),
        ({"headers": {"h": "x" * 16_384}}, "$.headers"),
        ({"headers": {"": "x"}}, "$.headers"),
        ({"headers": {"h": None}}, "$.headers[...]"),
        ({"headers": None}, "$.headers"),
        ({"delayMs": 15 * 86_400_000 + 1}, "$.delayMs"),
        ({"delayMs": 1.5}, "$.delayMs"),
        ({"idempotencyKey": ""}, "$.idempotencyKey"),
        ({"idempotencyKey": "x" * 257}, "$.idempotencyKey"),
        ({"correlationId": "x" * 257}, "$.correlationId"),
    ],
)
async def test_an_invalid_field_is_named(tenant: Tenant, body: dict[str, Any], path: str) -> None:
    queue = await tenant.queue()
    problem = (await tenant.client.post(f"{queue}/messages", {"payload": 1, **body})).problem(422, "invalid-body")
    assert [error["path"] for error in problem["errors"]] == [path]
    assert (await tenant.stats(queue))["ready"] == 0


@pytest.mark.parametrize("key", ["x" * 256, "a b/c", "\xe9"])
async def test_the_idempotency_key_may_be_a_header(tenant: Tenant, key: str) -> None:
    queue = await tenant.queue()
    sent = [
        await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"Idempotency-Key": key}),
        await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"Idempotency-Key": key}),
    ]
    assert sent[0].ok(201) == sent[1].ok(201)
    assert (await tenant.stats(queue))["ready"] == 1


async def test_the_header_and_the_field_are_the_same_key(tenant: Tenant) -> None:
    queue = await tenant.queue()
    by_field = await tenant.publish(queue, 1, idempotencyKey="k")
    both = {"payload": 1, "idempotencyKey": "k"}
    assert (await tenant.client.post(f"{queue}/messages", both, headers={"Idempotency-Key": "k"})).ok(201) == by_field
    assert (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"Idempotency-Key": "k"})).ok(201) == by_field
    differing = await tenant.client.post(f"{queue}/messages", both, headers={"Idempotency-Key": "other"})
    assert differing.problem(422, "invalid-body")["errors"][0]["path"] == "$.idempotencyKey"
    for bad in ("", "x" * 257):
        answer = await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"Idempotency-Key": bad})
        assert answer.problem(422, "invalid-body")["errors"][0]["path"] == "$.idempotencyKey"


# Batches


async def test_a_batch_has_a_result_for_each_message_in_order(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages: list[dict[str, Any]] = [{"payload": number} for number in range(1000)]
    messages[500] = {"payload": "x" * (1024 * 1024 + 1)}
    answer = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert (answer["published"], answer["failed"], len(answer["results"])) == (999, 1, 1000)
    bad = answer["results"][500]
    assert bad.keys() == {"problem"}
    assert (bad["problem"]["code"], bad["problem"]["status"]) == ("too-large", 413)
    assert "$.messages[500].payload" in bad["problem"]["detail"]
    good = [result for index, result in enumerate(answer["results"]) if index != 500]
    assert all(result.keys() == {"messageId", "jobId", "enqueuedAt"} for result in good)

    pulled = await tenant.pull(queue, 500) + await tenant.pull(queue, 500)
    assert [message["messageId"] for message in pulled] == [result["messageId"] for result in good]
    assert [message["payload"] for message in pulled] == [number for number in range(1000) if number != 500]


async def test_the_problem_of_a_message_has_its_index(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": 1}, {"payload": 2, "headers": {f"h{number}": "" for number in range(65)}}]
    answer = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert answer["results"][1]["problem"]["errors"][0]["path"] == "$.messages[1].headers"


@pytest.mark.parametrize("count", [0, 1001])
async def test_a_batch_has_1_to_1000_messages(tenant: Tenant, count: int) -> None:
    queue = await tenant.queue()
    answer = await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1}] * count})
    assert answer.problem(422, "invalid-body")["errors"][0]["path"] == "$.messages"
    assert (await tenant.stats(queue))["ready"] == 0


async def test_a_malformed_batch_is_refused_as_a_whole(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": 1}, {"payload": 2, "delay": 5}]
    answer = await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})
    assert answer.problem(422, "invalid-body")["errors"][0]["path"] == "$.messages[1]"
    assert (await tenant.stats(queue))["ready"] == 0


# Pull


async def test_messages_are_delivered_in_order(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(20):
        await tenant.publish(queue, number)
    assert [message["payload"] for message in await tenant.pull(queue, 15)] == list(range(15))
    assert [message["payload"] for message in await tenant.pull(queue, 15)] == list(range(15, 20))
    assert await tenant.pull(queue, 15) == []


async def test_a_pull_returns_one_message_by_default(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    assert len((await tenant.client.post(f"{queue}/pull", {})).ok()["messages"]) == 1
    assert len(await tenant.pull(queue, 2)) == 2


async def test_a_pull_without_a_body_uses_the_defaults(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert len((await tenant.client.post(f"{queue}/pull")).ok()["messages"]) == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"maxMessages": 0}, "$.maxMessages"),
        ({"maxMessages": 501}, "$.maxMessages"),
        ({"waitMs": -1}, "$.waitMs"),
        ({"waitMs": 20_001}, "$.waitMs"),
        ({"visibilityTimeoutMs": -1}, "$.visibilityTimeoutMs"),
        ({"visibilityTimeoutMs": 12 * 3_600_000 + 1}, "$.visibilityTimeoutMs"),
    ],
)
async def test_an_invalid_pull_is_refused_and_leases_nothing(tenant: Tenant, body: dict[str, int], path: str) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    problem = (await tenant.client.post(f"{queue}/pull", body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path
    assert await tenant.stats(queue) == {"ready": 1, "leased": 0, "delayed": 0}


@pytest.mark.parametrize("body", [{"maxMessages": 500}, {"visibilityTimeoutMs": 12 * 3_600_000}])
async def test_a_pull_at_the_limits_is_accepted(tenant: Tenant, body: dict[str, int]) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert len((await tenant.client.post(f"{queue}/pull", body)).ok()["messages"]) == 1


async def test_a_pull_from_an_empty_queue_returns_after_the_wait(tenant: Tenant) -> None:
    queue = await tenant.queue()
    assert await tenant.pull(queue) == []
    started = time.perf_counter()
    assert await tenant.pull(queue, waitMs=300) == []
    assert time.perf_counter() - started >= 0.29


async def test_a_long_poll_ends_with_the_first_message(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    waiting = asyncio.create_task(tenant.pull(queue, 10, waitMs=20_000))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    await tenant.publish(queue, "now")
    assert [message["payload"] for message in await asyncio.wait_for(waiting, 15)] == ["now"], "before its wait is over"


async def test_a_long_poll_does_not_wait_if_messages_are_ready(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    async with asyncio.timeout(15):
        assert len(await tenant.pull(queue, 10, waitMs=20_000)) == 1


# Acknowledge


async def test_an_acknowledged_message_is_deleted(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    assert (await tenant.ack(queue, message["receiptId"])).ok() == {"ok": True}
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_an_ack_of_many_receipts_has_a_result_for_each(tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    for number in range(4):
        await tenant.publish(queue, number)
    [old] = await tenant.pull(queue, visibilityTimeoutMs=1000)
    good = [message["receiptId"] for message in await tenant.pull(queue, 3)]
    clock.ahead_ms = 1001
    receipts = [good[0], "nonsense", old["receiptId"], good[1]]
    answer = (await tenant.client.post(f"{queue}/ack", {"receiptIds": receipts})).ok()
    assert answer["ok"] is False
    assert [result["receiptId"] for result in answer["results"]] == receipts
    assert [result["ok"] for result in answer["results"]] == [True, False, False, True]
    codes = [result.get("problem", {}).get("code") for result in answer["results"]]
    assert codes == [None, "receipt-invalid", "lease-expired", None]
    assert (await tenant.client.post(f"{queue}/ack", {"receiptIds": good})).ok() == {
        "ok": True,
        "results": [{"receiptId": receipt, "ok": True} for receipt in good],
    }
    assert await tenant.stats(queue) == {"ready": 1, "leased": 0, "delayed": 0}


@pytest.mark.parametrize(
    "body", [{}, {"receiptId": "a", "receiptIds": ["b"]}, {"receiptIds": []}, {"receiptId": ""}, {"receiptIds": ["a"] * 1001}]
)
async def test_an_ack_needs_one_receipt_or_a_list(tenant: Tenant, body: dict[str, Any]) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/ack", body)).problem(422, "invalid-body")


async def test_a_repeated_ack_has_no_further_effect(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    receipt = message["receiptId"]
    for _ in range(3):
        assert (await tenant.ack(queue, receipt)).ok() == {"ok": True}
    assert (await tenant.client.post(f"{queue}/ack", {"receiptIds": [receipt, receipt]})).ok()["ok"] is True


async def test_an_expired_receipt_is_refused(tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=30_000)
    clock.ahead_ms = 30_001
    problem = (await tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    assert problem["retryable"] is False
    assert STAMP.search(problem["detail"])
    assert await tenant.stats(queue) == {"ready": 1, "leased": 0, "delayed": 0}


async def test_a_receipt_is_valid_until_its_deadline(tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=30_000)
    clock.ahead_ms = 25_000
    assert (await tenant.ack(queue, message["receiptId"])).ok() == {"ok": True}


def altered(receipt: str, place: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4)))
    raw[place] ^= 1
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


async def test_a_receipt_of_another_queue_is_refused_without_effect(gateway: Gateway, tenant: Tenant) -> None:
    queue, other_queue = await tenant.queue("one"), await tenant.queue("other")
    other_tenant = await gateway.tenant()
    strangers_queue = await other_tenant.queue("one")
    for one, where in ((tenant, queue), (tenant, other_queue), (other_tenant, strangers_queue)):
        await one.publish(where, 1)
    [mine] = await tenant.pull(queue)
    [others] = await tenant.pull(other_queue)
    [other_clients] = await other_tenant.pull(strangers_queue)
    receipt = mine["receiptId"]
    size = len(base64.urlsafe_b64decode(receipt + "=="))
    forged = [altered(receipt, place) for place in range(size)]
    bad = [
        *forged,
        receipt[:-4],
        receipt + "AAAA",
        others["receiptId"],
        other_clients["receiptId"],
        mine["messageId"],
        "x",
        "\u20ac",
    ]
    results = (await tenant.client.post(f"{queue}/ack", {"receiptIds": bad})).ok()["results"]
    assert {result["problem"]["code"] for result in results} == {"receipt-invalid"}
    (await tenant.ack(queue, forged[-1])).problem(400, "receipt-invalid")
    assert (await tenant.stats(queue))["leased"] == 1
    assert (await tenant.ack(queue, receipt)).ok() == {"ok": True}


async def test_a_receipt_of_an_earlier_queue_with_the_same_name_is_refused(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    await tenant.publish(queue, "old")
    [old] = await tenant.pull(queue)
    assert (await tenant.client.delete(queue)).status == 204
    await tenant.queue("orders")
    await tenant.publish(queue, "new")
    [new] = await tenant.pull(queue)
    (await tenant.ack(queue, old["receiptId"])).problem(400, "receipt-invalid")
    assert await tenant.stats(queue) == {"ready": 0, "leased": 1, "delayed": 0}
    assert (await tenant.ack(queue, new["receiptId"])).ok() == {"ok": True}


async def test_invalid_names_are_not_cached(tenant: Tenant) -> None:
    """Otherwise a publisher could fill the memory of a worker."""
    before = escape.cache_info().currsize
    for number in range(20):
        path = f"/v1/queues/{'x' * 5000}{number}/messages"
        (await tenant.client.post(path, {"payload": 1})).problem(400, "invalid-parameter")
    assert escape.cache_info().currsize <= before + 1
