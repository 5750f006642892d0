"""Topic lifecycle: create, update, list, delete, recover."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from postroad.api.topics import StrictTopicSettings
from postroad.jetstream import stream_lifecycle
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, stream_info
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, topic_stream, topic_subject
from postroad.topics.lifecycle import TOPICS_BUCKET, Dependent, topic_key
from postroad.topics.records import TopicRecord
from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.topics.topic_samples import make_topic, publish, replay, stats, topics_of, try_publish
from tests.waiting import eventually

DEFAULTS = {
    "dedupeByContent": False,
    "dedupeScope": "topic",
    "retentionMs": 7 * 86_400_000,
    "maxMessages": 0,
    "maxBytes": 0,
    "onFull": "drop",
    "dedupeWindowMs": 600_000,
    "replicas": None,
    "geo": None,
    "schema": None,
    "tags": {},
    "snsAttributes": {},
}


async def config_of(gateway: Gateway, tenant: Tenant, name: str = "orders") -> dict[str, Any] | None:
    info = await stream_info(gateway.node.platform.connection, topic_stream(tenant.id, name))
    return None if info is None else dict(info.config)


# Create, show, update


async def test_a_topic_is_created_with_default_settings(gateway: Gateway, tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/topics/orders", {})).ok(201)
    assert made["name"] == "orders"
    assert made["settings"] == DEFAULTS
    assert made["effective"] == {"replicas": 1, "dedupeWindowMs": 600_000}
    assert made["createdAt"] == made["updatedAt"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["createdAt"])
    assert "stats" not in made and "fedBy" not in made
    config = await config_of(gateway, tenant)
    assert config is not None
    assert config["name"] == f"T_{tenant.id}__orders" and config["subjects"] == [f"t.{tenant.id}__orders.>"]
    assert config["retention"] == "limits" and config["allow_direct"] and config["republish"]["dest"].startswith("live.t.")


async def test_settings_of_limits_reach_the_engine(gateway: Gateway, tenant: Tenant) -> None:
    given = {"retentionMs": 30_000, "maxMessages": 5, "maxBytes": 1_000_000, "onFull": "refuse", "dedupeWindowMs": 120_000}
    made = (await tenant.client.put("/v1/topics/orders", given)).ok(201)
    assert made["settings"] == {**DEFAULTS, **given}
    assert made["effective"]["dedupeWindowMs"] == 30_000, "an id is not remembered longer than its message"
    config = await config_of(gateway, tenant)
    assert config is not None
    wanted = {"max_age": 30 * 10**9, "max_msgs": 5, "max_bytes": 1_000_000, "discard": "new", "duplicate_window": 30 * 10**9}
    assert {name: config[name] for name in wanted} == wanted


async def test_put_replaces_all_settings_and_patch_some(tenant: Tenant, clock: ShiftedClock) -> None:
    made = (await tenant.client.put("/v1/topics/orders", {"maxMessages": 5, "retentionMs": 90_000})).ok(201)
    clock.ahead_ms = 5000
    patched = (await tenant.client.call("PATCH", "/v1/topics/orders", {"maxMessages": 7})).ok()
    assert patched["settings"] == {**DEFAULTS, "maxMessages": 7, "retentionMs": 90_000}
    assert patched["createdAt"] == made["createdAt"] and patched["updatedAt"] > made["updatedAt"]
    replaced = (await tenant.client.put("/v1/topics/orders", {"onFull": "refuse"})).ok(200)
    assert replaced["settings"] == {**DEFAULTS, "onFull": "refuse"}
    assert replaced["incarnation"] == made["incarnation"]
    shown = (await tenant.client.get("/v1/topics/orders")).ok()
    del shown["stats"], shown["placement"]
    assert shown == replaced


async def test_null_restores_a_default(tenant: Tenant) -> None:
    given: dict[str, Any] = {"schema": {"type": "object"}, "replicas": 1, "retentionMs": 1000, "maxMessages": 5}
    topic = await make_topic(tenant, **given, onFull="refuse", maxBytes=70_000, dedupeWindowMs=70_000)
    changed = (await tenant.client.call("PATCH", topic, dict.fromkeys(DEFAULTS))).ok()
    assert changed["settings"] == DEFAULTS
    await publish(tenant, topic, payload=1)


async def test_a_change_of_a_missing_topic_is_404(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    (await tenant.client.call("PATCH", "/v1/topics/orders", {"maxMessages": 1})).problem(404, "topic-not-found")


async def test_the_same_settings_again_have_no_effect(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/topics/orders", {"maxMessages": 5})).ok(201)
    assert (await tenant.client.put("/v1/topics/orders", {"maxMessages": 5})).ok(200) == made
    assert (await tenant.client.call("PATCH", "/v1/topics/orders", {})).ok(200) == made
    assert (await tenant.client.delete("/v1/topics/orders")).status == 204

    async def recorded() -> list[tuple[str, str]]:
        events = [(event["event"], event["change"]) for event in await tenant.events("TELEMETRY")]
        return events if ("topic.changed", "deleted") in events else []

    assert await eventually(recorded) == [("topic.changed", "created"), ("topic.changed", "deleted")]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"retentionMs": -1}, "$.retentionMs"),
        ({"dedupeWindowMs": 59_999}, "$.dedupeWindowMs"),
        ({"dedupeWindowMs": 86_400_001}, "$.dedupeWindowMs"),
        ({"onFull": "explode"}, "$.onFull"),
        ({"replicas": 2}, "$.replicas"),
        ({"geo": "a b"}, "$.geo"),
        ({"geo": "eu"}, "$.geo"),
        ({"schema": {"type": "nonsense"}}, "$.schema"),
        ({"color": "red"}, "$"),
        ({"maxBytes": 2**53 - 1}, "$.maxBytes"),
    ],
)
async def test_invalid_settings_create_no_topic(tenant: Tenant, settings: dict[str, Any], path: str) -> None:
    problem = (await tenant.client.put("/v1/topics/orders", settings)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path
    (await tenant.client.get("/v1/topics/orders")).problem(404, "topic-not-found")
    (await tenant.client.put("/v1/topics/orders", {})).ok(201)
    problem = (await tenant.client.call("PATCH", "/v1/topics/orders", settings)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path


async def test_three_replicas_on_one_server_are_stored_and_one_is_kept(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/topics/orders", {"replicas": 3})).ok(201)
    assert made["settings"]["replicas"] == 3 and made["effective"]["replicas"] == 1
    shown = (await tenant.client.get("/v1/topics/orders")).ok()
    assert shown["settings"]["replicas"] == 3 and shown["effective"]["replicas"] == 1


async def test_messages_survive_a_change_of_settings(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    for number in range(3):
        await publish(tenant, topic, payload=number)
    (await tenant.client.put(topic, {"retentionMs": 60_000})).ok()
    assert [message["payload"] for message in await replay(tenant, topic)] == [0, 1, 2]
    (await tenant.client.put(topic, {"maxMessages": 2})).ok()
    assert [message["payload"] for message in await replay(tenant, topic)] == [1, 2], "a lower limit drops the oldest"


async def test_a_topic_shows_its_stats(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    empty = await stats(tenant, topic)
    assert (empty["messages"], empty["lastSequence"], empty["firstAt"], empty["lastAt"]) == (0, 0, None, None)
    for subject in ("a", "b", "a"):
        await publish(tenant, topic, subject, "x")
    found = await stats(tenant, topic)
    assert {name: found[name] for name in ("messages", "subjects", "firstSequence", "lastSequence")} == {
        "messages": 3,
        "subjects": 2,
        "firstSequence": 1,
        "lastSequence": 3,
    }
    assert found["bytes"] > 0 and found["firstAt"] <= found["lastAt"]


# Names


@pytest.mark.parametrize("name", ["a", "A-Z.0:9_x", "x" * 80, "a.b.c", "with:colon", "-", "..."])
async def test_a_name_has_letters_digits_and_some_punctuation(tenant: Tenant, name: str) -> None:
    topic = await make_topic(tenant, name)
    published = await publish(tenant, topic, "s", name)
    assert published["natsSubject"] == f"t.{tenant.id}__{escape(name)}.s"
    assert [message["payload"] for message in await replay(tenant, topic)] == [name]


@pytest.mark.parametrize("name", ["x" * 257, "a%20b", "%C3%A9", "a*", "%3E", "a%00b", "%0A"])
async def test_other_names_are_refused(tenant: Tenant, name: str) -> None:
    for answer in (
        await tenant.client.put(f"/v1/topics/{name}", {}),
        await tenant.client.get(f"/v1/topics/{name}"),
        await try_publish(tenant, f"/v1/topics/{name}"),
        await tenant.client.get(f"/v1/topics/{name}/messages"),
        await tenant.client.delete(f"/v1/topics/{name}"),
    ):
        answer.problem(400, "invalid-parameter")


async def test_names_that_start_with_an_underscore_are_reserved(tenant: Tenant) -> None:
    (await tenant.client.put("/v1/topics/_mine", {})).problem(400, "invalid-parameter")
    (await tenant.client.post("/v1/admin/settings", {"autoCreateTopics": True})).ok()
    (await try_publish(tenant, "/v1/topics/_mine")).problem(404, "topic-not-found")


async def test_similar_names_are_different_topics(gateway: Gateway, tenant: Tenant) -> None:
    names = ["a.b", "a_b", "a:b", "a-b", "A.b", "a_db", "a__b"]
    other = await gateway.tenant()
    for name in names:
        await publish(tenant, await make_topic(tenant, name), payload=name)
        await publish(other, await make_topic(other, name), payload=f"other {name}")
    for name in names:
        assert [message["payload"] for message in await replay(tenant, f"/v1/topics/{name}")] == [name]
        assert [message["payload"] for message in await replay(other, f"/v1/topics/{name}")] == [f"other {name}"]


# Lists


async def test_a_long_list_has_pages_and_a_filter(gateway: Gateway, tenant: Tenant) -> None:
    names = [f"topic-{number:02}" for number in range(12)] + ["a.b", "a_b", "a:b"]
    await asyncio.gather(*[make_topic(tenant, name) for name in names])
    await make_topic(await gateway.tenant(), "theirs")
    for limit in (1, 4, 15, 100):
        found: list[str] = []
        cursor = ""
        while True:
            page = (await tenant.client.get(f"/v1/topics?limit={limit}{cursor}")).ok()
            found += [topic["name"] for topic in page["topics"]]
            if page["nextCursor"] is None:
                break
            cursor = f"&cursor={page['nextCursor']}"
        assert sorted(found) == sorted(names)
    page = (await tenant.client.get("/v1/topics?name=topic-0*&limit=7")).ok()
    assert [topic["name"] for topic in page["topics"]] == [f"topic-{number:02}" for number in range(7)]
    rest = (await tenant.client.get(f"/v1/topics?name=topic-0*&cursor={page['nextCursor']}")).ok()
    assert [topic["name"] for topic in rest["topics"]] == ["topic-07", "topic-08", "topic-09"]


async def test_a_list_has_stats_if_requested(tenant: Tenant) -> None:
    await publish(tenant, await make_topic(tenant))
    [plain] = (await tenant.client.get("/v1/topics")).ok()["topics"]
    assert "stats" not in plain
    [listed] = (await tenant.client.get("/v1/topics?stats=true")).ok()["topics"]
    shown = (await tenant.client.get("/v1/topics/orders")).ok()
    assert {**listed, "placement": shown["placement"]} == shown


async def test_a_restricted_key_uses_and_lists_its_topics_only(tenant: Tenant) -> None:
    for name in ("mine", "other"):
        await make_topic(tenant, name)
    narrow = await tenant.another_key(allowed_topics=("mine",))
    assert [topic["name"] for topic in (await narrow.client.get("/v1/topics")).ok()["topics"]] == ["mine"]
    await publish(narrow, "/v1/topics/mine")
    (await try_publish(narrow, "/v1/topics/other")).problem(403, "forbidden")
    (await narrow.client.get("/v1/topics/other/messages")).problem(403, "forbidden")
    (await narrow.client.delete("/v1/topics/other")).problem(403, "forbidden")


# Deletion


async def test_a_deleted_topic_is_gone_with_its_messages(gateway: Gateway, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    first = (await tenant.client.get(topic)).ok()
    await publish(tenant, topic)
    assert (await tenant.client.delete(topic)).status == 204
    assert await config_of(gateway, tenant) is None
    for gone in (
        await tenant.client.get(topic),
        await tenant.client.delete(topic),
        await try_publish(tenant, topic),
        await tenant.client.get(f"{topic}/messages"),
        await tenant.client.post(f"{topic}/purge", {}),
    ):
        gone.problem(404, "topic-not-found")
    await make_topic(tenant)
    again = (await tenant.client.get(topic)).ok()
    assert again["stats"]["messages"] == 0 and again["incarnation"] != first["incarnation"]
    assert (await publish(tenant, topic))["sequence"] == 1


async def test_a_topic_with_dependents_is_only_deleted_with_them(gateway: Gateway, tenant: Tenant) -> None:
    """As subscriptions will register themselves."""
    lifecycle, removed = topics_of(gateway).lifecycle, list[str]()

    async def count(record: TopicRecord) -> int:
        return 2 if record.tenant == tenant.id and record.name == "used" else 0

    async def remove(record: TopicRecord) -> None:
        removed.append(record.incarnation)

    dependent = Dependent("widgets", count, remove)
    lifecycle.add_dependent(dependent)
    try:
        used, unused = await make_topic(tenant, "used"), await make_topic(tenant, "unused")
        problem = (await tenant.client.delete(used)).problem(409, "topic-in-use")
        assert "2 widgets" in problem["detail"]
        assert removed == [] and (await tenant.client.get(used)).status == 200
        incarnation = (await tenant.client.get(used)).ok()["incarnation"]
        assert (await tenant.client.delete(f"{used}?cascade=true")).status == 204
        assert removed == [incarnation]
        assert (await tenant.client.delete(unused)).status == 204
    finally:
        lifecycle._dependents.remove(dependent)


async def test_the_end_of_a_topic_is_noticed_by_every_process(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    ended: list[tuple[int, str]] = []
    for index, one in enumerate((gateway, second_gateway)):
        topics_of(one).lifecycle.on_end(
            lambda record, index=index: ended.append((index, record.incarnation)) if record.tenant == tenant.id else None  # type: ignore[misc]
        )
    incarnations = []
    for _ in range(2):
        topic = await make_topic(tenant)
        incarnations.append((await tenant.client.get(topic)).ok()["incarnation"])
        await eventually(lambda: topics_of(second_gateway).lifecycle.cached(tenant.id, "orders"))
        assert (await tenant.client.delete(topic)).status == 204
        await eventually(lambda: not topics_of(second_gateway).lifecycle.cached(tenant.id, "orders"))
    await eventually(lambda: len(ended) == 4)
    assert sorted(ended) == [(index, one) for index in (0, 1) for one in sorted(incarnations)]


async def test_a_publish_during_the_deletion_of_its_topic_fails_soon(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    """The stream is deleted before the record: JetStream never responds to a publish in between."""
    topic = await make_topic(tenant)
    await delete_stream(gateway.node.platform.connection, topic_stream(tenant.id, "orders"))
    publishing = asyncio.create_task(try_publish(tenant, topic))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    assert (await second_gateway.seen_by(tenant).client.delete(topic)).status == 204
    async with asyncio.timeout(30):
        (await publishing).problem(404, "topic-not-found")
    assert gateway.node.platform.committers.buffer_limit.bytes == 0


async def test_topics_of_a_deleted_tenant_are_deleted(gateway: Gateway, tenant: Tenant) -> None:
    await publish(tenant, await make_topic(tenant))
    await topics_of(gateway).delete_tenant(tenant.id)
    assert await config_of(gateway, tenant) is None
    assert topics_of(gateway).lifecycle.cached(tenant.id, "orders") is None


# Creation by publishing


async def test_publishing_creates_a_missing_topic_if_the_tenant_wants_that(tenant: Tenant) -> None:
    (await try_publish(tenant, "/v1/topics/orders")).problem(404, "topic-not-found")
    batch = {"messages": [{"subject": "a", "payload": 1}]}
    (await tenant.client.post("/v1/topics/orders/messages/batch", batch)).problem(404, "topic-not-found")
    (await tenant.client.post("/v1/admin/settings", {"autoCreateTopics": True})).ok()
    assert (await publish(tenant, "/v1/topics/orders"))["sequence"] == 1
    assert (await tenant.client.get("/v1/topics/orders")).ok()["settings"] == DEFAULTS
    assert (await tenant.client.post("/v1/topics/batch/messages/batch", batch)).ok()["published"] == 1
    (await tenant.client.get("/v1/topics/read/messages")).problem(404, "topic-not-found")


async def test_concurrent_first_publishes_on_two_gateways_all_arrive(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    (await tenant.client.post("/v1/admin/settings", {"autoCreateTopics": True})).ok()
    settings = second_gateway.node.platform.tenant_settings
    await eventually(lambda: settings.of(tenant.id).auto_create_topics)
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[publish(both[number % 2], "/v1/topics/orders", payload=number) for number in range(30)])
    assert sorted(one["sequence"] for one in published) == list(range(1, 31))
    assert sorted(message["payload"] for message in await replay(tenant, "/v1/topics/orders")) == list(range(30))


# Concurrency, limits


async def test_a_topic_created_by_two_gateways_is_created_once(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    both = (tenant, second_gateway.seen_by(tenant))
    answers = await asyncio.gather(*[one.client.put("/v1/topics/orders", {}) for one in both for _ in range(5)])
    assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
    assert len({answer.json["incarnation"] for answer in answers}) == 1


async def test_concurrent_changes_by_two_gateways_are_all_made(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    here, there = tenant.client, second_gateway.seen_by(tenant).client
    changes: list[dict[str, Any]] = [{"maxMessages": 7}, {"maxBytes": 70_000}, {"onFull": "refuse"}, {"retentionMs": 70_000}]
    answers = await asyncio.gather(*[(here, there)[at % 2].call("PATCH", topic, one) for at, one in enumerate(changes)])
    assert {answer.status for answer in answers} == {200}

    async def has_all() -> bool:
        found = (await here.get(topic)).ok()["settings"]
        return all(found[name] == value for one in changes for name, value in one.items())

    await eventually(has_all)


async def test_the_number_of_topics_and_reserved_bytes_of_a_tenant_are_limited(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, topics_per_tenant_max=2)) as gateway:
        tenant = await gateway.tenant()
        await make_topic(tenant, "first")
        await make_topic(tenant, "second")
        assert "2" in (await tenant.client.put("/v1/topics/third", {})).problem(403, "forbidden")["detail"]
        (await tenant.client.put("/v1/topics/first", {"maxMessages": 1})).ok()
        assert topics_of(gateway).lifecycle._streams._locks == {}, "refusals leave nothing behind"
        await make_topic(await gateway.tenant(), "other-tenant")
        admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
        (await admin.post("/v1/admin/settings", {"maxStorageBytes": 1_000_000})).ok()
        storage = gateway.node.platform.committers.storage
        storage.refresh_quotas()
        (await tenant.client.put("/v1/topics/first", {"maxBytes": 600_000})).ok()
        problem = (await tenant.client.put("/v1/topics/second", {"maxBytes": 600_000})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.maxBytes" and "600000" in problem["detail"]
        (await tenant.client.put("/v1/topics/first", {"maxBytes": 700_000})).ok()


# Recovery of interrupted operations


def interrupted(tenant: Tenant, state: RecordState, *, at_ms: int = 0) -> TopicRecord:
    return TopicRecord(
        state=state,
        tenant=tenant.id,
        name="orders",
        incarnation=new_id(),
        settings=StrictTopicSettings(max_messages=77),
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
    )


async def write(gateway: Gateway, record: TopicRecord, *, with_stream: bool, stream_of: str = "") -> None:
    """Write the record, and a stream with a message, of this or another incarnation."""
    engine = gateway.node.platform
    if with_stream:
        subject = topic_subject(record.tenant, record.name)
        metadata = {"postroad.incarnation": stream_of or record.incarnation}
        spec = StreamSpec(record.stream, (f"{subject}.>",), {"allow_atomic": True, "metadata": metadata})
        await ensure_stream(engine.connection, spec)
        await engine.committers.of(record.stream).append(PendingMessage(f"{subject}.a", b"leftover", new_id()))
    bucket = Bucket(engine.connection, TOPICS_BUCKET, engine.committers)
    await bucket.put(topic_key(record.tenant, record.name), msgspec.json.encode(record))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recover after 0.1 seconds instead of ten."""
    monkeypatch.setattr(stream_lifecycle, "_RECOVER_SECONDS", 0.1)


@pytest.mark.parametrize("with_stream", [False, True])
async def test_an_interrupted_creation_is_finished_by_the_next_look_up(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await write(gateway, interrupted(tenant, RecordState.CREATING), with_stream=with_stream)
    published = await publish(tenant, "/v1/topics/orders")
    shown = (await tenant.client.get("/v1/topics/orders")).ok()
    assert shown["settings"]["maxMessages"] == 77
    assert published["sequence"] == shown["stats"]["messages"] == (2 if with_stream else 1), "its own stream is kept"


async def test_an_interrupted_creation_keeps_nothing_of_an_earlier_topic(gateway: Gateway, tenant: Tenant, soon: None) -> None:
    await write(gateway, interrupted(tenant, RecordState.CREATING), with_stream=True, stream_of="earlier")
    assert (await publish(tenant, "/v1/topics/orders"))["sequence"] == 1


@pytest.mark.parametrize("with_stream", [False, True])
async def test_an_interrupted_deletion_is_finished_by_the_next_look_up(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await write(gateway, interrupted(tenant, RecordState.DELETING), with_stream=with_stream)
    assert (await tenant.client.get("/v1/topics")).ok()["topics"] == []
    (await tenant.client.get("/v1/topics/orders")).problem(404, "topic-not-found")
    assert await config_of(gateway, tenant) is None
    await make_topic(tenant)


@pytest.mark.parametrize("state", [RecordState.CREATING, RecordState.DELETING])
async def test_the_control_role_recovers_what_was_left_for_a_minute(
    gateway: Gateway, tenant: Tenant, clock: ShiftedClock, state: RecordState
) -> None:
    lifecycle = topics_of(gateway).lifecycle
    await write(gateway, interrupted(tenant, state, at_ms=clock()), with_stream=True)
    await eventually(lambda: lifecycle.table.get(topic_key(tenant.id, "orders")))
    await lifecycle.recover_all()
    found = lifecycle.table.get(topic_key(tenant.id, "orders"))
    assert found is not None and found.state is state, "another process may be at work"
    clock.ahead_ms = 61_000
    await lifecycle.recover_all()
    found = lifecycle.table.get(topic_key(tenant.id, "orders"))
    assert (found is not None and found.state is RecordState.READY) if state is RecordState.CREATING else found is None


async def test_any_place_is_accepted_on_a_single_server(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/topics/orders", {"replicas": 3, "geo": "auto"})).ok(201)
    assert (made["settings"]["replicas"], made["settings"]["geo"], made["effective"]["replicas"]) == (3, "auto", 1)
