"""The API of subscriptions: validation, names, changes, visibility, dead letters, replay."""

from typing import Any

import pytest

from postroad.api.subscriptions import SubscriptionDeadLetterFilter
from postroad.kernel.identity import Scope
from postroad.subscriptions import redrive
from postroad.subscriptions.capability import SubscriptionsCapability
from postroad.subscriptions.records import record_key
from postroad.tasks.service import TaskContext
from postroad.topics.records import StoredTopicMessage
from tests.gateway import Gateway, Tenant
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually

URL = "https://example.com/hook"
_OF_ATTEMPTS = ("x-mq-attempt", "x-mq-timestamp", "x-mq-signature", "webhook-timestamp", "webhook-signature")


async def _refused(tenant: Tenant, body: dict[str, Any], status: int, code: str) -> dict[str, Any]:
    return (await tenant.client.post("/v1/topics/orders/subscriptions", body)).problem(status, code)


@pytest.mark.parametrize(
    "body, status, code, text",
    [
        ({"delivery_type": "carrier_pigeon", "url": URL}, 422, "invalid-body", "http_push"),
        ({"url": URL}, 422, "invalid-body", "delivery_type"),
        ({"delivery_type": "http_push"}, 422, "invalid-body", "$.url"),
        ({"delivery_type": "http_push", "url": URL, "queue": "q"}, 422, "invalid-body", "$.queue"),
        ({"delivery_type": "queue"}, 422, "invalid-body", "$.queue"),
        ({"delivery_type": "sse", "url": URL}, 422, "invalid-body", "$.url"),
        ({"delivery_type": "sse", "queue": "q"}, 422, "invalid-body", "$.queue"),
        ({"delivery_type": "sse", "secret": "a long secret"}, 422, "invalid-body", "$.secret"),
        ({"delivery_type": "sse", "headers": {"X-A": "b"}}, 422, "invalid-body", "$.headers"),
        ({"delivery_type": "sse", "startFrom": "all"}, 422, "invalid-body", "$.startFrom"),
        ({"delivery_type": "sse", "maxPerSecond": 1}, 422, "invalid-body", "$.maxPerSecond"),
        ({"delivery_type": "queue", "queue": "q", "secret": "a long secret"}, 422, "invalid-body", "$.secret"),
        ({"delivery_type": "queue", "queue": "missing"}, 404, "queue-not-found", "missing"),
        ({"delivery_type": "http_push", "url": "http://93.184.216.34/"}, 400, "webhook-refused", "scheme is not https"),
        ({"delivery_type": "http_push", "url": "https://10.0.0.1/"}, 400, "webhook-refused", "neither public nor"),
        ({"delivery_type": "http_push", "url": URL, "headers": {"Host": "x"}}, 400, "webhook-refused", "header"),
        ({"delivery_type": "http_push", "url": URL, "headers": {"X-MQ-Id": "1"}}, 422, "invalid-body", "$.headers"),
        ({"delivery_type": "http_push", "url": URL, "filter": ["a", "b..c"]}, 422, "invalid-body", "$.filter[1]"),
        ({"delivery_type": "http_push", "url": URL, "filter": []}, 422, "invalid-body", "$.filter"),
        ({"delivery_type": "http_push", "url": URL, "filter": ["a"] * 17}, 422, "invalid-body", "$.filter"),
        (
            {"delivery_type": "http_push", "url": URL, "contentFilter": {"payload": {"a": {"near": 1}}}},
            422,
            "filter-invalid",
            "near",
        ),
        ({"delivery_type": "http_push", "url": URL, "startFrom": "sequence"}, 422, "invalid-body", "$.startSequence"),
        ({"delivery_type": "http_push", "url": URL, "startSequence": 5}, 422, "invalid-body", "$.startSequence"),
        ({"delivery_type": "http_push", "url": URL, "startFrom": "time"}, 422, "invalid-body", "$.startTime"),
        ({"delivery_type": "http_push", "url": URL, "maxDeliver": 0}, 422, "invalid-body", "$.maxDeliver"),
        ({"delivery_type": "http_push", "url": URL, "unknown": 1}, 422, "invalid-body", "unknown"),
    ],
)
async def test_invalid_subscriptions_are_refused_with_the_path(
    tenant: Tenant, body: dict[str, Any], status: int, code: str, text: str
) -> None:
    await TopicClient(tenant).create()
    problem = await _refused(tenant, body, status, code)
    assert text in str(problem)
    assert (await tenant.client.get("/v1/subscriptions")).ok()["subscriptions"] == []


async def test_an_invalid_subject_of_a_test_is_named(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL)
    for path in (f"/v1/subscriptions/{made['id']}/test", "/v1/subscriptions/filters/test"):
        problem = (await tenant.client.post(path, {"subject": "a..b"})).problem(422, "invalid-body")
        assert [one["path"] for one in problem["errors"]] == ["$.subject"]


async def test_a_missing_topic_is_not_found(tenant: Tenant) -> None:
    await _refused(tenant, {"delivery_type": "http_push", "url": URL}, 404, "topic-not-found")


async def test_a_named_subscription_is_created_once(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL, name="crm", maxDeliver=5)
    body = {"delivery_type": "http_push", "url": URL, "name": "crm", "maxDeliver": 5}
    again = (await tenant.client.post("/v1/topics/orders/subscriptions", body)).ok(200)
    assert again["id"] == made["id"]
    assert "secret" not in again
    refused = await _refused(tenant, {**body, "maxDeliver": 6, "filter": "eu.>"}, 409, "already-exists")
    assert [one["path"] for one in refused["errors"]] == ["$.filter", "$.maxDeliver"]


async def test_a_repeated_creation_with_another_secret_other_headers_or_another_start_is_refused(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    start = {"startFrom": "sequence", "startSequence": 1}
    body = {"delivery_type": "http_push", "url": URL, "name": "crm", "secret": "the secret of it", "headers": {"X-Key": "k"}}
    made = (await tenant.client.post("/v1/topics/orders/subscriptions", {**body, **start})).ok(201)
    for same in ({}, {"secret": None}):
        again = (await tenant.client.post("/v1/topics/orders/subscriptions", {**body, **start, **same})).ok(200)
        assert again["id"] == made["id"]
    for other, differences in (
        ({"secret": "another secret"}, ["secret"]),
        ({"headers": {"X-Key": "other"}}, ["headers"]),
        ({"headers": {}}, ["headers"]),
        ({"startSequence": 2}, ["startFrom"]),
        ({"startFrom": "all", "startSequence": None, "maxInFlight": 2}, ["startFrom", "maxInFlight"]),
    ):
        refused = await _refused(tenant, {**body, **start, **other}, 409, "already-exists")
        assert [one["path"] for one in refused["errors"]] == [f"$.{name}" for name in differences]
        assert "secret of it" not in str(refused)
    (await tenant.client.call("PATCH", f"/v1/subscriptions/{made['id']}", {"headers": {"X-Key": "new"}})).ok()
    await _refused(tenant, {**body, **start}, 409, "already-exists")


@pytest.mark.parametrize(
    ("field", "alternative"),
    [("startFrom", "/rewind"), ("secret", "/secret"), ("delivery_type", "create another"), ("state", "/pause"), ("other", "")],
)
async def test_a_field_that_cannot_be_changed_is_refused_with_the_alternative(
    tenant: Tenant, field: str, alternative: str
) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL)
    answer = await tenant.client.call("PATCH", f"/v1/subscriptions/{made['id']}", {"maxDeliver": 5, field: "new"})
    [error] = answer.problem(422, "invalid-body")["errors"]
    assert f"`{field}`" in error["detail"] and alternative in error["detail"]


async def test_a_subscription_that_was_deleted_leaves_nothing_to_its_successor(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, name="crm")
    await topic.publish()

    async def dead() -> bool:
        return bool(await topic.dead(made))

    await eventually(dead)
    (await tenant.client.delete(f"/v1/subscriptions/{made['id']}")).ok(204)
    (await tenant.client.get(f"/v1/subscriptions/{made['id']}")).problem(404, "subscription-not-found")
    again = await topic.subscribe(receiver.url, name="crm", startFrom="new")
    assert again["id"] == made["id"]
    assert await topic.dead(again) == []
    assert await topic.attempts(again) == []
    assert (await topic.status(again))["deliveredCount"] == 0


async def test_subscriptions_are_changed_in_part(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL, maxPerSecond=10, contentFilter={"payload": {"a": 1}})
    path = f"/v1/subscriptions/{made['id']}"
    change = {"url": receiver.url, "filter": "eu.>", "maxPerSecond": None, "contentFilter": None, "headers": {"X-Key": "k"}}
    changed = (await tenant.client.call("PATCH", path, change)).ok()
    assert (changed["url"], changed["filter"], changed["headerNames"]) == (receiver.url, ["eu.>"], ["X-Key"])
    assert "maxPerSecond" not in changed
    assert "contentFilter" not in changed
    assert changed["maxDeliver"] == 20
    (await tenant.client.call("PATCH", path, {"queue": "q"})).problem(422, "invalid-body")
    (await tenant.client.call("PATCH", path, {"url": "https://127.0.0.2:1/"})).ok()  # allowed by the operator
    (await tenant.client.call("PATCH", path, {"url": "https://10.1.1.1/"})).problem(400, "webhook-refused")
    (await tenant.client.call("PATCH", path, {"filter": ["a..b"]})).problem(422, "invalid-body")


async def test_a_changed_ordering_takes_effect(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish()
    await eventually(lambda: receiver.sequences == [1])
    change = {"ordering": "key", "orderingKey": "header:x-customer"}
    (await tenant.client.call("PATCH", f"/v1/subscriptions/{made['id']}", change)).ok()
    await topic.publish(headers={"X-Customer": "c"})
    await eventually(lambda: receiver.sequences == [1, 2])  # the concurrency has grown
    receiver.hold()
    for customer in ("a", "a", "b"):
        await topic.publish(headers={"X-Customer": customer})
    await eventually(lambda: receiver.in_flight == 2)
    assert sorted(receiver.sequences) == [1, 2, 3, 5]
    receiver.released.set()
    await eventually(lambda: sorted(receiver.sequences) == [1, 2, 3, 4, 5])


async def test_a_topic_with_subscriptions_is_deleted_by_cascade_only(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL)
    (await tenant.client.delete("/v1/topics/orders")).problem(409, "topic-in-use")
    (await tenant.client.delete("/v1/topics/orders?cascade=true")).ok(204)
    (await tenant.client.get(f"/v1/subscriptions/{made['id']}")).problem(404, "subscription-not-found")


async def test_keys_see_the_subscriptions_of_their_topics_only(node: Gateway, tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL)
    other = await tenant.another_key(allowed_topics=("other-*",))
    path = f"/v1/subscriptions/{made['id']}"
    (await other.client.get(path)).problem(404, "subscription-not-found")
    assert (await other.client.get("/v1/subscriptions")).ok()["subscriptions"] == []
    stranger = await node.tenant()
    (await stranger.client.get(path)).problem(404, "subscription-not-found")
    (await stranger.client.delete(path)).problem(404, "subscription-not-found")
    narrow = await tenant.another_key(allowed_queues=("mine",))
    await tenant.queue("work")
    body = {"delivery_type": "queue", "queue": "work"}
    (await narrow.client.post("/v1/topics/orders/subscriptions", body)).problem(403, "forbidden")


async def test_lists_are_paged_and_filtered(tenant: Tenant) -> None:
    topic, other = TopicClient(tenant), TopicClient(tenant, "other")
    await topic.create()
    await other.create()
    ids = [(await topic.subscribe(URL))["id"] for _ in range(3)]
    await other.subscribe(URL)
    (await tenant.client.post(f"/v1/subscriptions/{ids[1]}/pause")).ok()
    first = (await tenant.client.get("/v1/subscriptions?topic=orders&limit=2")).ok()
    rest = (await tenant.client.get(f"/v1/subscriptions?topic=orders&limit=2&cursor={first['nextCursor']}")).ok()
    assert [one["id"] for one in first["subscriptions"] + rest["subscriptions"]] == ids
    assert rest["nextCursor"] is None
    paused = (await tenant.client.get("/v1/subscriptions?state=paused")).ok()["subscriptions"]
    assert [one["id"] for one in paused] == [ids[1]]


async def test_scopes(node: Gateway, tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL)
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.get(f"/v1/subscriptions/{made['id']}")).ok()
    (await reader.client.post(f"/v1/subscriptions/{made['id']}/pause")).problem(403, "forbidden")
    (await reader.client.delete(f"/v1/subscriptions/{made['id']}")).problem(403, "forbidden")


async def test_dead_letters_are_searched_grouped_redriven_and_purged(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda got: 400 if b"bad" in got.body else 422 if b"worse" in got.body else 200
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    path = f"/v1/subscriptions/{made['id']}/dlq"
    for text in ("bad", "bad", "worse", "fine"):
        await topic.publish(f"eu.{text}", {"text": text})

    async def dead() -> bool:
        return len(await topic.dead(made)) == 3

    await eventually(dead)
    groups = (await tenant.client.get(f"{path}/groups")).ok()["groups"]
    assert [(group["reason"], group["count"]) for group in groups] == [("HTTP 400", 2), ("HTTP 422", 1)]
    found = (await tenant.client.get(f"{path}?reason=HTTP%20422")).ok()
    assert [one["sequence"] for one in found["messages"]] == [3]
    assert found["total"] == 3
    found = (await tenant.client.get(f"{path}?subject=eu.bad&limit=1")).ok()
    assert [one["sequence"] for one in found["messages"]] == [1]
    following = (await tenant.client.get(f"{path}?subject=eu.bad&limit=1&cursor={found['nextCursor']}")).ok()
    assert [one["sequence"] for one in following["messages"]] == [2]
    dry = (await tenant.client.post(f"{path}/redrive", {"filter": {"search": "bad"}, "dryRun": True})).ok(200)
    assert (dry["count"], dry["task"]) == (2, None)
    receiver.answer = lambda got: 422 if b"worse" in got.body else 200
    task = (await tenant.client.post(f"{path}/redrive", {})).ok(202)["task"]

    async def is_done() -> bool:
        return bool((await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()["state"] == "done")

    await eventually(is_done)
    progress = (await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()["progress"]
    assert (progress["moved"], progress["failed"]) == (2, 1)
    [left] = await topic.dead(made)
    assert (left["sequence"], left["attempt_count"]) == (3, 2)
    assert (await tenant.client.post(f"{path}/purge", {"filter": {"reason": "HTTP 400"}})).ok()["count"] == 0
    assert (await tenant.client.post(f"{path}/purge", {"dryRun": True})).ok()["count"] == 1
    assert (await tenant.client.post(f"{path}/purge")).ok()["count"] == 1
    assert await topic.dead(made) == []


async def _dead_letters(topic: TopicClient, made: dict[str, Any], count: int) -> None:
    async def are_there() -> bool:
        return len(await topic.dead(made)) == count

    await eventually(are_there)


async def _task(tenant: Tenant, task: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()
    return found


async def test_a_redriven_message_is_the_one_that_was_published(node: Gateway, tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish("eu", {"a": 1}, headers={"x-source": "shop"}, groupId="customer-42")
    await _dead_letters(topic, made, 1)
    receiver.answer = lambda _got: 200
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/dlq/redrive", {})).ok(202)
    await eventually(lambda: len(receiver.received) == 2)
    first, second = (
        {name: value for name, value in one.headers.items() if name not in _OF_ATTEMPTS} for one in receiver.received
    )
    assert first == second and first["x-mq-group"] == "customer-42"
    capability = node.node.platform.use(SubscriptionsCapability)
    record = await capability.table.fetch(record_key(tenant.id, made["id"]))
    assert record is not None
    message = StoredTopicMessage(7, 1, "eu", "t.x.eu", {"a": "b"}, "text/plain", None, 3, b"\xff", '{"v":1,"subject":"s"}', "g")
    await capability._dead_letters.store(record, message, "a reason", 1, 5)
    scan = await capability._dead_letters.scan(record, SubscriptionDeadLetterFilter(sequences=(7,)), 1)
    assert [one.letter.message for one in scan.found] == [message]


async def test_a_redrive_keeps_to_the_limits_of_the_subscription(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=2)
    await topic.publish_many(7)
    await _dead_letters(topic, made, 7)
    receiver.answer = lambda _got: 200
    receiver.hold()
    receiver.in_flight_max = 0
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/dlq/redrive", {})).ok(202)
    await eventually(lambda: receiver.in_flight == 2)
    receiver.released.set()
    await _dead_letters(topic, made, 0)
    assert receiver.in_flight_max == 2


async def test_a_redrive_waits_while_the_subscription_is_paused(
    tenant: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=1)
    path = f"/v1/subscriptions/{made['id']}"
    await topic.publish_many(3)
    await _dead_letters(topic, made, 3)
    waits: list[float] = []
    sleep = TaskContext.sleep

    async def sleep_counted(task: TaskContext, seconds: float) -> None:
        waits.append(seconds)
        await sleep(task, seconds)

    monkeypatch.setattr(redrive, "_PAUSE_SECONDS", 0.0625)
    monkeypatch.setattr(TaskContext, "sleep", sleep_counted)
    receiver.answer = lambda _got: 200
    receiver.hold()
    task = (await tenant.client.post(f"{path}/dlq/redrive", {})).ok(202)["task"]
    await eventually(lambda: receiver.in_flight == 1)
    (await tenant.client.post(f"{path}/pause")).ok()
    receiver.released.set()
    await eventually(lambda: waits.count(0.0625) >= 3)
    assert (await _task(tenant, task))["progress"]["moved"] == 1
    refused = await tenant.client.post(f"{path}/dlq/redrive", {})
    assert "paused" in refused.problem(409, "precondition-failed")["detail"]
    assert (await tenant.client.post(f"{path}/dlq/redrive", {"dryRun": True})).ok()["count"] == 2
    (await tenant.client.post(f"{path}/resume")).ok()
    await _dead_letters(topic, made, 0)


async def test_a_redrive_waits_while_the_endpoint_asked_for_a_pause(
    node: Gateway, tenant: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish()
    await _dead_letters(topic, made, 1)
    receiver.answer = lambda got: (429, {"Retry-After": "600"}, b"") if got.attempt == 1 else 200
    await topic.publish()

    async def is_waiting() -> bool:
        return bool((await topic.status(made))["nextAttemptAt"])

    await eventually(is_waiting)
    waits: list[float] = []
    sleep = TaskContext.sleep

    async def sleep_counted(task: TaskContext, seconds: float) -> None:
        waits.append(seconds)
        await sleep(task, seconds)

    monkeypatch.setattr(redrive, "_PAUSE_SECONDS", 0.0625)
    monkeypatch.setattr(TaskContext, "sleep", sleep_counted)
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/dlq/redrive", {})).ok(202)
    await eventually(lambda: waits.count(0.0625) >= 3)
    assert receiver.sequences == [1, 2]
    node.clock.ahead_ms = 601_000
    await eventually(lambda: sorted(receiver.sequences) == [1, 1, 2, 2])


async def test_a_redrive_shows_its_attempts_and_keeps_to_the_pause_that_it_is_asked_for(
    tenant: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=1)
    await topic.publish_many(2)
    await _dead_letters(topic, made, 2)
    waits: list[float] = []
    sleep = TaskContext.sleep

    async def sleep_counted(task: TaskContext, seconds: float) -> None:
        waits.append(seconds)
        await sleep(task, seconds)

    monkeypatch.setattr(TaskContext, "sleep", sleep_counted)
    receiver.answer = lambda _got: (429, {"Retry-After": "120"}, b"later")
    task = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/dlq/redrive", {})).ok(202)["task"]
    await eventually(lambda: 120.0 in waits)
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).ok(202)
    [last] = [one for one in await topic.attempts(made) if one["attempt"] == 2]
    assert (last["sequence"], last["status"], last["outcome"], last["response"]) == (1, 429, "transient", "later")
    assert len(receiver.received) == 3


async def test_a_redrive_to_an_endpoint_that_is_gone_disables_the_subscription(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 400
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=1)
    await topic.publish_many(2)
    await _dead_letters(topic, made, 2)
    receiver.answer = lambda _got: 410
    task = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/dlq/redrive", {})).ok(202)["task"]

    async def is_disabled() -> bool:
        return bool((await topic.show(made))["state"] == "disabled")

    await eventually(is_disabled)
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).ok(202)
    assert len(receiver.received) == 3 and len(await topic.dead(made)) == 2, "the others wait until it is resumed"


async def test_a_replay_delivers_a_range_again(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, filter="eu.*")
    for subject in ("eu.a", "us.a", "eu.b", "eu.c"):
        await topic.publish(subject)
    await eventually(lambda: sorted(receiver.sequences) == [1, 3, 4])
    path = f"/v1/subscriptions/{made['id']}/replay"
    dry = (await tenant.client.post(path, {"fromSequence": 1, "toSequence": 3, "dryRun": True})).ok(200)
    assert (dry["count"], dry["task"]) == (2, None)
    (await tenant.client.post(path, {})).problem(422, "invalid-body")
    (await tenant.client.post(path, {"fromSequence": 100})).problem(422, "invalid-body")
    task = (await tenant.client.post(path, {"fromSequence": 1, "toSequence": 3, "ratePerSecond": 1000})).ok(202)["task"]
    await eventually(lambda: len(receiver.received) == 5)
    assert sorted(receiver.sequences) == [1, 1, 3, 3, 4]

    async def is_done() -> bool:
        return bool((await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()["state"] == "done")

    await eventually(is_done)
    await topic.publish("eu.d")
    await eventually(lambda: receiver.sequences.count(5) == 1)
    assert len(receiver.received) == 6


async def test_a_cancelled_replay_stops(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish_many(50)
    await eventually(lambda: len(receiver.received) == 50)
    task = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/replay", {"fromSequence": 1, "ratePerSecond": 2})).ok(202)
    await eventually(lambda: len(receiver.received) > 51)
    (await tenant.client.delete(f"/v1/tasks/{task['task']['id']}")).ok(202)

    async def is_cancelled() -> bool:
        return bool((await tenant.client.get(f"/v1/tasks/{task['task']['id']}")).ok()["state"] == "cancelled")

    await eventually(is_cancelled)
    assert len(receiver.received) < 90
    await topic.publish()
    await eventually(lambda: receiver.sequences.count(51) == 1)


async def test_filters_can_be_tried(tenant: Tenant) -> None:
    body = {"subject": "eu.created", "filter": ["eu.>"], "contentFilter": {"payload": {"a": {"gt": 1}}}, "payload": {"a": 2}}
    result = (await tenant.client.post("/v1/subscriptions/filters/test", body)).ok()
    assert result == {"matches": True, "subjectMatches": True, "contentMatches": True}
    result = (await tenant.client.post("/v1/subscriptions/filters/test", {**body, "payload": {"a": 1}})).ok()
    assert result == {"matches": False, "subjectMatches": True, "contentMatches": False}


async def test_changes_are_audited_without_secrets(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(URL, secret="never in the audit log", headers={"Authorization": "nor this"})
    (await tenant.client.delete(f"/v1/subscriptions/{made['id']}")).ok(204)
    entries = (await tenant.client.get("/api/control/audit")).ok()
    text = str(entries)
    assert "subscription.create" in text
    assert "subscription.delete" in text
    assert "never in the audit log" not in text
    assert "nor this" not in text
