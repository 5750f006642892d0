"""Publishing to topics: one message, batches, limits, schemas, idempotency keys."""

import asyncio
import base64
from typing import Any

import pytest

from postroad.api.queues import IdempotencyMismatch
from postroad.api.topics import NewTopicMessage, TopicFed
from postroad.jetstream.commit import Committer, PendingMessage, PublishAck
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from tests.gateway import Answer, Gateway, Tenant
from tests.topics.topic_samples import make_topic, publish, replay, stats, stored, topics_of, try_publish
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


# One message


async def test_a_published_message_has_a_position_and_is_stored_as_it_was_sent(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    sent = b'{"subject": "orders.eu.created", "payload": {"b": 1.0,  "a": "\xc3\xa9"}, "headers": {"X-Kind": "a b"}}'
    headers = {"Content-Type": "application/json", "traceparent": TRACE, "X-MQ-Hops": "3"}
    published = (await tenant.client.post(f"{topic}/messages", data=sent, headers=headers)).ok(201)
    nats_subject = f"t.{tenant.id}__orders.orders.eu.created"
    assert published == {
        "sequence": 1,
        "timestamp": published["timestamp"],
        "subject": "orders.eu.created",
        "natsSubject": nats_subject,
    }
    [entry] = await stored(tenant)
    assert entry.subject == nats_subject and entry.payload == b'{"b": 1.0,  "a": "\xc3\xa9"}'
    del entry.headers["Nats-Msg-Id"]
    assert entry.headers == {
        "Content-Type": "application/json",
        "X-Kind": "a b",
        "traceparent": TRACE,
        "Postroad-Hops": "3",
    }
    [message] = await replay(tenant, topic)
    del message["timestamp"]
    assert message == {
        "sequence": 1,
        "subject": "orders.eu.created",
        "natsSubject": nats_subject,
        "headers": {"X-Kind": "a b"},
        "payload": {"b": 1.0, "a": "é"},
        "contentType": "application/json",
        "traceparent": TRACE,
        "hops": 3,
    }


@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}])
async def test_empty_payloads_are_payloads(tenant: Tenant, payload: object) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload=payload)
    [message] = await replay(tenant, topic)
    assert message["payload"] == payload and "body_b64" not in message


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"text", b'{"not": "declared"}'])
async def test_bytes_are_published_in_base64(tenant: Tenant, body: bytes) -> None:
    topic = await make_topic(tenant)
    new = {"subject": "a", "body_b64": base64.b64encode(body).decode(), "contentType": "image/png; a=b"}
    (await tenant.client.post(f"{topic}/messages", new)).ok(201)
    (await tenant.client.post(f"{topic}/messages", {**new, "contentType": None})).ok(201)
    assert [entry.payload for entry in await stored(tenant)] == [body, body]
    png, plain = await replay(tenant, topic)
    assert base64.b64decode(png["body_b64"]) == body and png["contentType"] == "image/png; a=b" and "payload" not in png
    assert plain["contentType"] == "application/octet-stream"


async def test_json_bytes_are_read_as_a_payload(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    for body in (b"[1]", b"[1"):
        new = {"subject": "a", "body_b64": base64.b64encode(body).decode(), "contentType": "application/cloudevents+json"}
        (await tenant.client.post(f"{topic}/messages", new)).ok(201)
    valid, invalid = await replay(tenant, topic)
    assert valid["payload"] == [1] and "body_b64" not in valid
    assert base64.b64decode(invalid["body_b64"]) == b"[1" and "payload" not in invalid


@pytest.mark.parametrize(
    ("new", "path"),
    [
        ({"subject": ""}, "$.subject"),
        ({"subject": "a..b"}, "$.subject"),
        ({"subject": ".a"}, "$.subject"),
        ({"subject": "a.*"}, "$.subject"),
        ({"subject": "a.>"}, "$.subject"),
        ({"subject": "a b"}, "$.subject"),
        ({"subject": "a\tb"}, "$.subject"),
        ({"subject": "a\r\nPUB x 0"}, "$.subject"),
        ({"subject": "$JS.API"}, "$.subject"),
        ({"subject": ".".join("a" * 17)}, "$.subject"),
        ({"subject": "x" * 257}, "$.subject"),
        ({"subject": 5}, "$.subject"),
        ({"payload": 1, "body_b64": "YQ=="}, "$"),
        ({"payload": ...}, "$"),
        ({"payload": ..., "body_b64": "YQ"}, "$.body_b64"),
        ({"payload": ..., "body_b64": "Y Q=="}, "$.body_b64"),
        ({"payload": ..., "body_b64": "é"}, "$.body_b64"),
        ({"contentType": "text/plain"}, "$.contentType"),
        ({"payload": ..., "body_b64": "YQ==", "contentType": "nonsense"}, "$.contentType"),
        ({"payload": ..., "body_b64": "YQ==", "contentType": "a/b;\r\nNats-Rollup: all"}, "$.contentType"),
        ({"headers": {"Nats-Rollup": "all"}}, "$.headers"),
        ({"headers": {"nats-expected-last-sequence": "5"}}, "$.headers"),
        ({"headers": {"Postroad-Hops": "0"}}, "$.headers"),
        ({"headers": {"content-type": "a/b"}}, "$.headers"),
        ({"headers": {"Status": "204"}}, "$.headers"),
        ({"headers": {"a: b\r\nc": "d"}}, "$.headers"),
        ({"headers": {"a:b": "d"}}, "$.headers"),
        ({"headers": {"a": "b\r\nNats-Rollup: all"}}, "$.headers"),
        ({"headers": {"a": " b"}}, "$.headers"),
        ({"headers": {f"h{number}": "v" for number in range(65)}}, "$.headers"),
        ({"headers": {"a": "v" * 16 * 1024}}, "$.headers"),
        ({"idempotencyKey": ""}, "$.idempotencyKey"),
        ({"color": "red"}, "$"),
    ],
)
async def test_an_invalid_message_is_refused_with_its_path(tenant: Tenant, new: dict[str, Any], path: str) -> None:
    topic = await make_topic(tenant)
    given = {name: value for name, value in {"subject": "a", "payload": 1, **new}.items() if value is not ...}
    problem = (await tenant.client.post(f"{topic}/messages", given)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"].startswith(path)
    batch = {"messages": [{"subject": "a", "payload": 1}, given]}
    answer = await tenant.client.post(f"{topic}/messages/batch", batch)
    if answer.status == 200:
        good, bad = answer.json["results"]
        assert good["sequence"] == 1 and bad["problem"]["errors"][0]["path"].startswith(path.replace("$", "$.messages[1]"))
    else:
        answer.problem(422, "invalid-body")
    assert (await stats(tenant, topic))["messages"] == (1 if answer.status == 200 else 0)


@pytest.mark.parametrize("subject", ["a", ".".join("a" * 16), "x" * 256, "ümläut.名前", "a-b_c:d/e@f", "a,b;c|d"])
async def test_subjects_are_stored_as_they_were_published(tenant: Tenant, subject: str) -> None:
    topic = await make_topic(tenant)
    published = await publish(tenant, topic, subject, 1)
    assert published["subject"] == subject and published["natsSubject"] == f"t.{tenant.id}__orders.{subject}"
    [message] = await replay(tenant, topic)
    assert message["subject"] == subject
    assert len(await replay(tenant, topic, f"?subject={'.'.join('*' * (subject.count('.') + 1))}")) == 1


async def test_header_values_keep_their_text(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    headers = {"a": "b: c", "A": "", "x-ümlaut"[:2] + "y": "größe ☃", "quote": '"\\', "long": "v" * 10_000}
    await publish(tenant, topic, payload=1, headers=headers)
    [message] = await replay(tenant, topic)
    assert message["headers"] == headers


async def test_a_message_over_the_limit_is_413(gateway: Gateway, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    limit = gateway.node.platform.tenant_settings.of(tenant.id).max_message_bytes
    body = {"subject": "a", "body_b64": base64.b64encode(b"x" * (limit + 1)).decode()}
    (await tenant.client.post(f"{topic}/messages", body)).problem(413, "too-large")
    body["body_b64"] = base64.b64encode(b"x" * limit).decode()
    assert (await tenant.client.post(f"{topic}/messages", body)).ok(201)["sequence"] == 1


@pytest.mark.parametrize(("hops", "status"), [("15", 201), ("16", 409), ("x", 400), ("-1", 400), ("9999999", 400)])
async def test_a_message_that_was_forwarded_too_often_is_refused(tenant: Tenant, hops: str, status: int) -> None:
    topic = await make_topic(tenant)
    body = {"subject": "a", "payload": 1}
    answer = await tenant.client.post(f"{topic}/messages", body, headers={"X-MQ-Hops": hops})
    assert answer.status == status
    if status == 422:
        answer.problem(422, "loop-detected")


async def test_a_publish_needs_its_scope(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    reader = await tenant.another_key(tuple(scope for scope in ALL_SCOPES if scope == "read"))
    (await try_publish(reader, topic)).problem(403, "forbidden")
    assert await replay(reader, topic) == []


async def test_usage_counts_messages_and_bytes(gateway: Gateway, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload="12345678")
    batch = {"messages": [{"subject": "a", "payload": "12345678"}] * 3}
    (await tenant.client.post(f"{topic}/messages/batch", batch)).ok()
    counters = gateway.node.platform.usage.of(tenant.id)
    assert (counters.topic_messages, counters.topic_bytes) == (4, 40)


# Fed topics


async def test_only_its_feeder_publishes_to_a_fed_topic(gateway: Gateway, tenant: Tenant) -> None:
    topic, topics = await make_topic(tenant), topics_of(gateway)
    await topics.lifecycle.set_feeder(tenant.id, "orders", "the bucket 'cart'")
    assert (await tenant.client.get(topic)).ok()["fedBy"] == "the bucket 'cart'"
    assert "cart" in (await try_publish(tenant, topic)).problem(409, "topic-fed")["detail"]
    batch = {"messages": [{"subject": "a", "payload": 1}]}
    (await tenant.client.post(f"{topic}/messages/batch", batch)).problem(409, "topic-fed")
    context = RequestContext(Caller(tenant.id, "", frozenset()))
    new = NewTopicMessage(subject="key", body_b64="YQ==")
    assert (await topics.publisher.publish(context, "orders", new, feeder="the bucket 'cart'")).sequence == 1
    with pytest.raises(TopicFed):
        await topics.publisher.publish(context, "orders", new, feeder="another")
    (await tenant.client.delete(topic)).problem(409, "topic-in-use")
    await topics.lifecycle.set_feeder(tenant.id, "orders", None)
    await publish(tenant, topic)


# Batches


async def test_a_batch_has_a_result_for_each_message(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    messages = [{"subject": f"s.{number}", "payload": number} for number in range(1000)]
    answer = (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()
    assert (answer["published"], answer["failed"]) == (1000, 0)
    assert [one["sequence"] for one in answer["results"]] == list(range(1, 1001))
    assert answer["results"][7]["subject"] == "s.7" and answer["results"][7]["natsSubject"].endswith("__orders.s.7")
    for wrong in (messages[:0], messages + messages[:1]):
        (await tenant.client.post(f"{topic}/messages/batch", {"messages": wrong})).problem(422, "invalid-body")


async def test_concurrent_publishes_have_sequences_without_gaps(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    topic = await make_topic(tenant)
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[publish(both[number % 2], topic, payload=number) for number in range(200)])
    assert sorted(one["sequence"] for one in published) == list(range(1, 201))
    found = {message["sequence"]: message["payload"] for message in await replay(tenant, topic, "?limit=1000")}
    assert found == {one["sequence"]: number for number, one in enumerate(published)}


# Limits


def full(answer: Answer) -> None:
    assert answer.problem(507, "storage-full")["retryable"] is True
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize("count", [1, 40])
async def test_a_full_topic_that_refuses_keeps_exactly_its_limit(tenant: Tenant, count: int) -> None:
    topic = await make_topic(tenant, maxMessages=10, onFull="refuse")
    for number in range(10 - count // 40):
        await publish(tenant, topic, payload=number, idempotencyKey=str(number))
    answers = await asyncio.gather(*[try_publish(tenant, topic, payload=f"late {number}") for number in range(count)])
    refused = [answer for answer in answers if answer.status != 201]
    assert len(refused) == count - count // 40
    for answer in refused:
        full(answer)
    assert (await stats(tenant, topic))["messages"] == 10
    again = await publish(tenant, topic, payload=3, idempotencyKey="3")
    assert again["sequence"] == 4, "a known key is answered although the topic is full"


async def test_a_batch_fills_a_topic_up_to_its_limit(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxMessages=10, onFull="refuse")
    messages = [{"subject": "a", "payload": number} for number in range(25)]
    answer = (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()
    assert (answer["published"], answer["failed"]) == (10, 15)
    assert {one["problem"]["code"] for one in answer["results"] if "problem" in one} == {"storage-full"}
    assert (await stats(tenant, topic))["messages"] == 10


async def test_a_full_topic_drops_the_oldest_messages_by_default(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxMessages=3)
    for number in range(5):
        await publish(tenant, topic, payload=number)
    assert [(one["sequence"], one["payload"]) for one in await replay(tenant, topic)] == [(3, 2), (4, 3), (5, 4)]


async def test_a_topic_is_limited_by_bytes(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxBytes=10_000, onFull="refuse")
    statuses = [(await try_publish(tenant, topic, payload="x" * 3000)).status for _ in range(5)]
    assert statuses == [201, 201, 201, 507, 507]


async def test_messages_expire(tenant: Tenant) -> None:
    topic = await make_topic(tenant, retentionMs=1)
    assert (await tenant.client.get(topic)).ok()["settings"]["retentionMs"] == 1
    await publish(tenant, topic)

    async def is_empty() -> bool:
        return bool((await stats(tenant, topic))["messages"] == 0)

    await eventually(is_empty)


async def test_the_storage_quota_of_the_tenant_applies(gateway: Gateway, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    budget = gateway.node.platform.committers.storage.of_tenant(tenant.id)
    used = budget.used
    await publish(tenant, topic, payload="x" * 1000)
    assert budget.used > used + 1000
    budget.quota = budget.used
    (await try_publish(tenant, topic)).problem(429, "storage-quota-exceeded")


# Schemas


async def test_payloads_must_match_the_schema(tenant: Tenant) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    topic = await make_topic(tenant, schema=schema)
    await publish(tenant, topic, payload={"id": 1})
    problem = (await try_publish(tenant, topic, payload={"id": "x"})).problem(422, "schema-mismatch")
    assert problem["errors"][0]["path"] == "$.payload.id"
    for body, kind, path in (
        (b'{"id": "x"}', "application/json", "$.body_b64.id"),
        (b"x", "text/plain", "$.contentType"),
        (b"{", "application/json", "$.body_b64"),
    ):
        new = {"subject": "a", "body_b64": base64.b64encode(body).decode(), "contentType": kind}
        problem = (await tenant.client.post(f"{topic}/messages", new)).problem(422, "schema-mismatch")
        assert problem["errors"][0]["path"] == path
    batch = {"messages": [{"subject": "a", "payload": {"id": 2}}, {"subject": "a", "payload": 2}]}
    good, bad = (await tenant.client.post(f"{topic}/messages/batch", batch)).ok()["results"]
    assert good["sequence"] == 2 and bad["problem"]["errors"][0]["path"] == "$.messages[1].payload"


# Idempotency keys


async def test_a_used_key_returns_the_position_of_the_first_message(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    first = await publish(tenant, topic, payload={"a": 1, "b": 2}, idempotencyKey="k")
    await publish(tenant, topic, payload="between")
    same = b'{"subject":"a.b","payload":{"b":2,"a":1},"idempotencyKey":"k"}'
    for _ in range(3):
        answer = await tenant.client.post(f"{topic}/messages", data=same, headers={"Content-Type": "application/json"})
        assert answer.ok(201) == first
    body = {"subject": "a.b", "payload": {"a": 1, "b": 2}}
    assert (await tenant.client.post(f"{topic}/messages", body, headers={"Idempotency-Key": "k"})).ok(201) == first
    assert len(await replay(tenant, topic)) == 2


@pytest.mark.parametrize("other", [{"payload": 2}, {"headers": {"a": "b"}}, {"subject": "other"}, {"contentType": "a/b+json"}])
async def test_a_used_key_with_another_message_is_422(tenant: Tenant, other: dict[str, Any]) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, "a", 1, idempotencyKey="k")
    body = {"subject": "a", "payload": 1, "idempotencyKey": "k", **other}
    (await tenant.client.post(f"{topic}/messages", body)).problem(422, "idempotency-mismatch")
    batch = {"messages": [body, {"subject": "a", "payload": "new"}]}
    used, new = (await tenant.client.post(f"{topic}/messages/batch", batch)).ok()["results"]
    assert used["problem"]["code"] == "idempotency-mismatch" and new["sequence"] == 2
    assert (await stats(tenant, topic))["messages"] == 2


async def test_keys_are_separate_for_each_api_key_and_topic(tenant: Tenant) -> None:
    topics = [await make_topic(tenant, name) for name in ("one", "two")]
    colleague = await tenant.another_key()
    for topic in topics:
        assert [(await publish(one, topic, idempotencyKey="k"))["sequence"] for one in (tenant, colleague)] == [1, 2]


async def test_a_key_whose_message_was_purged_still_returns_its_position(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    first = await publish(tenant, topic, idempotencyKey="k")
    (await tenant.client.post(f"{topic}/purge", {})).ok()
    again = await publish(tenant, topic, idempotencyKey="k")
    assert again["sequence"] == first["sequence"]
    assert (await stats(tenant, topic))["messages"] == 0


async def test_concurrent_publishes_with_one_key_store_one_message(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    topic = await make_topic(tenant)
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[publish(one, topic, idempotencyKey="k") for one in both for _ in range(20)])
    assert {one["sequence"] for one in published} == {1}
    assert len({one["timestamp"] for one in published}) == 1
    assert (await stats(tenant, topic))["messages"] == 1


async def test_of_concurrent_messages_with_one_key_one_is_stored_and_the_others_are_422(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    answers = await asyncio.gather(*[try_publish(tenant, topic, payload=number, idempotencyKey="k") for number in range(30)])
    assert sorted(answer.status for answer in answers) == [201] + [422] * 29
    [message] = await replay(tenant, topic)
    [stored_answer] = [number for number, answer in enumerate(answers) if answer.status == 201]
    assert message["payload"] == stored_answer


async def test_a_batch_may_use_a_key_twice(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    known = await publish(tenant, topic, payload="known", idempotencyKey="known")
    messages = [
        {"subject": "a.b", "payload": 1, "idempotencyKey": "a"},
        {"subject": "a.b", "payload": "known", "idempotencyKey": "known"},
        {"subject": "a.b", "payload": 1, "idempotencyKey": "a"},
        {"subject": "a.b", "payload": "else", "idempotencyKey": "known"},
        {"subject": "a.b", "payload": 2},
    ]
    answer = (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()
    first, second, third, fourth, fifth = answer["results"]
    assert first == third and second == known
    assert fourth["problem"]["code"] == "idempotency-mismatch"
    assert (answer["published"], answer["failed"]) == (4, 1)
    assert sorted(str(message["payload"]) for message in await replay(tenant, topic)) == ["1", "2", "known"]
    assert len({first["sequence"], second["sequence"], fifth["sequence"]}) == 3


async def test_a_message_of_which_an_earlier_attempt_may_be_stored_is_compared_with_the_stored_one(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer repeats a write without an answer and takes the known id for its own; another message may have used it."""
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload="first", idempotencyKey="k")

    async def append(self: Committer, message: PendingMessage, **_: object) -> PublishAck:
        return PublishAck(1, is_duplicate=False, is_known=True)

    monkeypatch.setattr(Committer, "append", append)
    (await try_publish(tenant, topic, payload="second", idempotencyKey="k")).problem(422, IdempotencyMismatch.code)
    assert (await publish(tenant, topic, payload="first", idempotencyKey="k"))["sequence"] == 1


# Groups and deduplication


async def test_a_message_keeps_its_group(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload=1, groupId="account-17")
    [message] = await replay(tenant, topic)
    assert message["groupId"] == "account-17" and message["headers"] == {}


async def test_a_dedupe_id_is_that_of_all_publishers(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    new = {"subject": "a", "payload": 1, "dedupeId": "d"}
    first = (await tenant.client.post(f"{topic}/messages", new)).ok(201)
    other = await tenant.another_key()
    again = (await other.client.post(f"{topic}/messages", {**new, "payload": 2, "groupId": "g"})).ok(201)
    stored_at = again["timestamp"]  # by the engine's clock, which was read a moment after the gateway's
    assert again == {**first, "duplicate": True, "timestamp": stored_at} and stored_at >= first["timestamp"]
    assert [one["payload"] for one in await replay(tenant, topic)] == [1]


@pytest.mark.parametrize(("scope", "stored_count"), [("topic", 1), ("group", 2)])
async def test_the_scope_of_a_dedupe_id(tenant: Tenant, scope: str, stored_count: int) -> None:
    topic = await make_topic(tenant, dedupeScope=scope)
    for group in ("a", "b", "a"):
        await publish(tenant, topic, payload=1, groupId=group, dedupeId="d")
    assert len(await replay(tenant, topic)) == stored_count


async def test_content_is_a_dedupe_id(tenant: Tenant) -> None:
    topic = await make_topic(tenant, dedupeByContent=True)
    for payload, more in ((1, {}), (1, {}), (2, {}), (1, {"dedupeId": "own"}), (1, {"idempotencyKey": "k"})):
        await publish(tenant, topic, payload=payload, **more)
    assert [one["payload"] for one in await replay(tenant, topic)] == [1, 2, 1, 1]


async def test_a_batch_keeps_the_order_of_a_group_also_with_duplicates(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload="x", groupId="a", dedupeId="3")
    messages = [{"subject": "s", "payload": n, "groupId": "ab"[n % 2], "dedupeId": str(n)} for n in range(40)]
    results = (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()["results"]
    assert [n for n, one in enumerate(results) if one.get("duplicate")] == [3]
    found = [(one["groupId"], one["payload"]) for one in (await replay(tenant, topic))[1:]]
    assert [n for group, n in found if group == "a"] == list(range(0, 40, 2))
    assert [n for group, n in found if group == "b"] == [n for n in range(1, 40, 2) if n != 3]


@pytest.mark.parametrize(
    "wrong", [{"groupId": "a b"}, {"groupId": ""}, {"dedupeId": "x" * 129}, {"dedupeId": "a", "idempotencyKey": "b"}]
)
async def test_invalid_groups_and_dedupe_ids(tenant: Tenant, wrong: dict[str, str]) -> None:
    topic = await make_topic(tenant)
    refused = await tenant.client.post(f"{topic}/messages", {"subject": "a", "payload": 1, **wrong})
    assert refused.status == 422
