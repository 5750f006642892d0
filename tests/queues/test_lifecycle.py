"""Queue lifecycle: create, update, list, delete, recover."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from postroad.api.queues import StrictQueueSettings
from postroad.jetstream import stream_lifecycle
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, stream_info
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, queue_stream, queue_subject
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.records import QueueRecord, StoredMessage, encode_message
from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

DEFAULTS: dict[str, Any] = {
    "visibilityTimeoutMs": 30_000,
    "retentionMs": 0,
    "dedupeWindowMs": None,
    "maxMessages": 0,
    "maxInFlight": 0,
    "replicas": None,
    "maxAttempts": 10,
    "retryDelaysMs": [1_000, 5_000, 30_000, 120_000, 600_000],
    "geo": None,
    "schema": None,
    "expectedDrainSeconds": None,
    "archive": False,
    "deadLetterQueue": None,
    "delayMs": 0,
    "sqsAttributes": {},
    "tags": {},
    "ordered": False,
    "dedupeByContent": False,
    "dedupeScope": "queue",
    "backend": "engine",
}


async def stream_exists(gateway: Gateway, tenant: Tenant, name: str) -> bool:
    return await stream_info(gateway.node.platform.connection, queue_stream(tenant.id, name)) is not None


def lifecycle_of(gateway: Gateway) -> QueueLifecycle:
    [listing] = [route.handler for route in gateway.node.routes if route.path == "/v1/queues"]
    found = getattr(listing, "__self__")._lifecycle  # noqa: B009
    assert isinstance(found, QueueLifecycle)
    return found


# Create, show, update


async def test_a_queue_is_created_with_default_settings(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/queues/orders", {})).ok(201)
    assert made["name"] == "orders"
    assert made["settings"] == DEFAULTS
    assert made["createdAt"] == made["updatedAt"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["createdAt"])
    assert "stats" not in made


async def test_the_same_settings_again_have_no_effect(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/queues/orders", {"maxMessages": 5})).ok(201)
    assert (await tenant.client.put("/v1/queues/orders", {"maxMessages": 5})).ok(200) == made
    assert (await tenant.client.delete("/v1/queues/orders")).status == 204

    async def recorded() -> list[str]:
        events = [event["event"] for event in await tenant.events("TELEMETRY")]
        return events if "queue.deleted" in events else []

    assert await eventually(recorded) == ["queue.changed", "queue.deleted"], "no second `queue.changed`"


async def test_new_settings_replace_all_of_the_old_ones(tenant: Tenant, clock: ShiftedClock) -> None:
    made = (await tenant.client.put("/v1/queues/orders", {"maxMessages": 5, "visibilityTimeoutMs": 7})).ok(201)
    clock.ahead_ms = 5000
    changed = (await tenant.client.put("/v1/queues/orders", {"retentionMs": 60_000})).ok(200)
    assert changed["settings"] == {**DEFAULTS, "retentionMs": 60_000}
    assert changed["createdAt"] == made["createdAt"] and changed["updatedAt"] > made["updatedAt"]
    assert (await tenant.client.get("/v1/queues/orders")).ok()["settings"] == changed["settings"]


async def test_messages_survive_a_change_of_settings(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "kept")
    (await tenant.client.put(queue, {"visibilityTimeoutMs": 1000})).ok(200)
    assert [message["payload"] for message in await tenant.pull(queue)] == ["kept"]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"visibilityTimeoutMs": -1}, "$.visibilityTimeoutMs"),
        ({"dedupeWindowMs": 999}, "$.dedupeWindowMs"),
        ({"replicas": 2}, "$.replicas"),
        ({"replicas": 4}, "$.replicas"),
        ({"color": "red"}, "$"),
    ],
)
async def test_invalid_settings_create_no_queue(tenant: Tenant, settings: dict[str, Any], path: str) -> None:
    problem = (await tenant.client.put("/v1/queues/orders", settings)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")


async def test_a_single_server_keeps_one_copy_and_reports_both_numbers(tenant: Tenant) -> None:
    created = (await tenant.client.put("/v1/queues/q", {"replicas": 3})).ok(201)
    assert (created["settings"]["replicas"], created["replicas"]) == (3, 1)
    await tenant.publish("/v1/queues/q", "kept")
    changed = (await tenant.client.patch("/v1/queues/q", {"replicas": 5})).ok()
    assert (changed["settings"]["replicas"], changed["replicas"]) == (5, 1)
    shown = (await tenant.client.get("/v1/queues/q")).ok()
    assert (shown["settings"]["replicas"], shown["replicas"]) == (5, 1)
    assert [message["payload"] for message in await tenant.pull("/v1/queues/q")] == ["kept"]


async def test_any_place_is_accepted_on_a_single_server(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/queues/q", {"replicas": 3, "geo": "auto"})).ok(201)
    assert (made["settings"]["replicas"], made["settings"]["geo"]) == (3, "auto")


async def test_what_cannot_be_put_into_effect_is_refused_without_effect(tenant: Tenant) -> None:
    body = {"geo": "eu"}
    problem = (await tenant.client.put("/v1/queues/orders", body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.geo"
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")
    queue = await tenant.queue("orders")
    (await tenant.client.patch(queue, body)).problem(422, "invalid-body")
    assert (await tenant.client.get(queue)).ok()["settings"] == DEFAULTS


async def test_a_change_keeps_the_other_settings(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue(maxAttempts=3, retentionMs=60_000, schema={"type": "object"})
    changed = (await tenant.client.patch(queue, {"maxAttempts": 5, "retryDelaysMs": [1]})).ok()
    expected = DEFAULTS | {"maxAttempts": 5, "retentionMs": 60_000, "schema": {"type": "object"}, "retryDelaysMs": [1]}
    assert changed["settings"] == expected
    reset = (await tenant.client.patch(queue, {"maxAttempts": None, "schema": None, "visibilityTimeoutMs": None})).ok()
    assert reset["settings"] == DEFAULTS | {"retentionMs": 60_000, "retryDelaysMs": [1]}
    assert (await tenant.client.patch(queue, {})).ok() == reset

    async def is_known() -> bool:
        return bool((await second_gateway.seen_by(tenant).client.get(queue)).ok()["settings"] == reset["settings"])

    await eventually(is_known)
    audited = (await tenant.client.get("/api/control/audit?limit=100")).ok()["entries"]
    assert [one["action"] for one in audited if one["target"] == "q"].count("queue.change") == 2, "not for a change of nothing"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"maxAttempts": -1}, "$.maxAttempts"),
        ({"retryDelaysMs": []}, "$.retryDelaysMs"),
        ({"schema": {"type": 1}}, "$.schema"),
        ({"unknown": 1}, "$.unknown"),
        ({"replicas": 2}, "$.replicas"),
    ],
)
async def test_an_invalid_change_has_no_effect(tenant: Tenant, body: dict[str, Any], path: str) -> None:
    queue = await tenant.queue()
    problem = (await tenant.client.patch(queue, body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"].startswith(path) or path == "$.unknown"
    assert (await tenant.client.get(queue)).ok()["settings"] == DEFAULTS


async def test_a_change_needs_the_queue(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    (await tenant.client.patch("/v1/queues/none", {"maxAttempts": 1})).problem(404, "queue-not-found")
    (await tenant.client.get("/v1/queues/none")).problem(404, "queue-not-found")


async def test_a_queue_shows_its_stats(tenant: Tenant) -> None:
    queue = await tenant.queue()
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}
    for number in range(3):
        await tenant.publish(queue, number, idempotencyKey=str(number))
    await tenant.publish(queue, "later", delayMs=60_000)
    assert await tenant.stats(queue) == {"ready": 3, "leased": 0, "delayed": 1}
    [message] = await tenant.pull(queue)
    assert await tenant.stats(queue) == {"ready": 2, "leased": 1, "delayed": 1}
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert await tenant.stats(queue) == {"ready": 2, "leased": 0, "delayed": 1}


# Names


@pytest.mark.parametrize("name", ["a", "A-Z.0:9_x", "x" * 80, "a.b.c", "with:colon", "-", "..."])
async def test_a_name_has_letters_digits_and_some_punctuation(tenant: Tenant, name: str) -> None:
    queue = await tenant.queue(name)
    await tenant.publish(queue, name)
    assert [message["payload"] for message in await tenant.pull(queue, waitMs=5000)] == [name]


@pytest.mark.parametrize("name", ["x" * 81, "a%20b", "a%2Bb", "%C3%A9", "a*", "%3E", "a%00b", "%0A", "a%5C"])
async def test_other_names_are_refused(tenant: Tenant, name: str) -> None:
    for answer in (
        await tenant.client.put(f"/v1/queues/{name}", {}),
        await tenant.client.get(f"/v1/queues/{name}"),
        await tenant.client.post(f"/v1/queues/{name}/messages", {"payload": 1}),
        await tenant.client.post(f"/v1/queues/{name}/pull", {}),
        await tenant.client.delete(f"/v1/queues/{name}"),
    ):
        answer.problem(400, "invalid-parameter")


async def test_names_that_start_with_an_underscore_are_reserved(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    (await tenant.client.put("/v1/queues/_mine", {})).problem(400, "invalid-parameter")
    (await tenant.client.post("/v1/queues/_mine/messages", {"payload": 1})).problem(404, "queue-not-found")


async def test_similar_names_are_different_queues(tenant: Tenant) -> None:
    names = ["a.b", "a_b", "a:b", "a-b", "A.b", "a_db", "a__b"]
    for name in names:
        await tenant.publish(await tenant.queue(name), name)
    for name in names:
        assert [message["payload"] for message in await tenant.pull(f"/v1/queues/{name}", 10)] == [name]


# Lists


async def walk(tenant: Tenant, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"/v1/queues?limit={limit}{cursor}")).ok()
        pages.append([queue["name"] for queue in page["queues"]])
        if page["nextCursor"] is None:
            return pages
        cursor = f"&cursor={page['nextCursor']}"


async def test_a_long_list_has_pages(gateway: Gateway, tenant: Tenant) -> None:
    names = [f"queue-{number:02}" for number in range(20)] + ["a.b", "a_b", "a:b", "Z", "_z"[1:]]
    await asyncio.gather(*[tenant.queue(name) for name in names])
    other = await gateway.tenant()
    await other.queue("theirs")
    assert len(names) == len(set(names)) == 25
    for limit, sizes in ((10, [10, 10, 5]), (25, [25]), (24, [24, 1]), (1000, [25])):
        pages = await walk(tenant, limit)
        assert [len(page) for page in pages] == sizes
        assert sorted(name for page in pages for name in page) == sorted(names)
    assert sorted(name for page in await walk(tenant, 1) for name in page) == sorted(names)


async def test_a_queue_that_is_deleted_between_two_pages_does_not_end_the_list(tenant: Tenant) -> None:
    for name in "abc":
        await tenant.queue(name)
    first = (await tenant.client.get("/v1/queues?limit=1")).ok()
    assert (await tenant.client.delete(f"/v1/queues/{first['nextCursor']}")).status == 204
    rest = (await tenant.client.get(f"/v1/queues?cursor={first['nextCursor']}")).ok()
    assert [queue["name"] for queue in rest["queues"]] == ["b", "c"]


async def test_a_listed_queue_differs_from_a_shown_one_only_in_stats_placement_and_features(tenant: Tenant) -> None:
    queue = await tenant.queue("orders", maxMessages=9)
    [listed] = (await tenant.client.get("/v1/queues")).ok()["queues"]
    shown = (await tenant.client.get(queue)).ok()
    assert {**listed, **{name: shown[name] for name in ("stats", "placement", "features")}} == shown


# Deleting


async def test_a_deleted_queue_is_deleted_with_its_stream(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    await tenant.publish(queue, 1)
    answer = await tenant.client.delete(queue)
    assert (answer.status, answer.body) == (204, b"")
    for gone in (
        await tenant.client.get(queue),
        await tenant.client.delete(queue),
        await tenant.client.post(f"{queue}/messages", {"payload": 1}),
        await tenant.client.post(f"{queue}/pull", {}),
        await tenant.client.post(f"{queue}/ack", {"receiptId": "x"}),
        await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1}]}),
    ):
        gone.problem(404, "queue-not-found")
    assert not await stream_exists(gateway, tenant, "orders")
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []


async def test_a_recreated_queue_is_empty(tenant: Tenant) -> None:
    for round_number in range(3):
        queue = await tenant.queue("orders")
        assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}
        await tenant.publish(queue, round_number, idempotencyKey="same")
        await tenant.publish(queue, "later", delayMs=60_000)
        assert [message["payload"] for message in await tenant.pull(queue, 10)] == [round_number]
        assert (await tenant.client.delete(queue)).status == 204


async def test_a_waiting_pull_fails_when_its_queue_is_deleted(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    for deleting in (tenant, second_gateway.seen_by(tenant)):
        await tenant.client.put(queue, {})
        waiting = asyncio.create_task(tenant.client.post(f"{queue}/pull", {"waitMs": 20_000}))
        await eventually(lambda: gateway.node.app._usage.open_requests == 1)
        assert (await deleting.client.delete(queue)).status == 204
        async with asyncio.timeout(30):
            (await waiting).problem(404, "queue-not-found")


@pytest.mark.parametrize("path", ["messages", "messages/batch"])
async def test_a_publish_during_the_deletion_of_its_queue_fails_soon(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, path: str
) -> None:
    """The stream is deleted before the record: JetStream never responds to a publish in between."""
    queue = await tenant.queue("orders")
    await delete_stream(gateway.node.platform.connection, queue_stream(tenant.id, "orders"))
    messages: list[dict[str, Any]] = [{"payload": number, "idempotencyKey": str(number)} for number in range(20)]
    body = {"messages": messages} if path.endswith("batch") else messages[0]
    publishing = asyncio.create_task(tenant.client.post(f"{queue}/{path}", body))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    assert (await second_gateway.seen_by(tenant).client.delete(queue)).status == 204
    async with asyncio.timeout(30):
        answer = await publishing
    if path.endswith("batch"):
        assert {result["problem"]["code"] for result in answer.ok()["results"]} == {"queue-not-found"}
    else:
        answer.problem(404, "queue-not-found")
    assert gateway.node.platform.committers.buffer_limit.bytes == 0


async def test_concurrent_deletions_of_a_queue_delete_it_once(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    both = (tenant, second_gateway.seen_by(tenant))
    answers = await asyncio.gather(*[one.client.delete(queue) for one in both for _ in range(5)])
    statuses = [answer.status for answer in answers]
    assert statuses.count(204) == 1 and set(statuses) <= {204, 404, 409}
    assert not await stream_exists(gateway, tenant, "orders")


async def test_a_queue_deleted_by_another_gateway_is_not_found(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert (await second_gateway.seen_by(tenant).client.delete(queue)).status == 204

    async def is_missing() -> bool:
        return (await tenant.client.get(queue)).status == 404

    await eventually(is_missing)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1})).problem(404, "queue-not-found")


# Creation by publishing


async def test_publishing_to_a_missing_queue_is_404(tenant: Tenant) -> None:
    (await tenant.client.post("/v1/queues/orders/messages", {"payload": 1})).problem(404, "queue-not-found")
    batch = {"messages": [{"payload": 1}]}
    (await tenant.client.post("/v1/queues/orders/messages/batch", batch)).problem(404, "queue-not-found")
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []


async def test_publishing_creates_the_queue_with_auto_create_queues(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    await tenant.publish("/v1/queues/orders", 1)
    (await tenant.client.post("/v1/queues/more/messages/batch", {"messages": [{"payload": 1}]})).ok()
    listed = (await tenant.client.get("/v1/queues")).ok()["queues"]
    assert [(queue["name"], queue["settings"]) for queue in listed] == [("more", DEFAULTS), ("orders", DEFAULTS)]


async def test_pulling_creates_no_queue(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    (await tenant.client.post("/v1/queues/orders/pull", {})).problem(404, "queue-not-found")


async def test_concurrent_first_publishes_all_arrive(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[both[number % 2].publish("/v1/queues/orders", number) for number in range(30)])
    assert len({one["messageId"] for one in published}) == 30
    pulled = await tenant.pull("/v1/queues/orders", 100)
    assert sorted(message["payload"] for message in pulled) == list(range(30))


async def test_concurrent_first_publishes_to_one_gateway_all_arrive(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    await asyncio.gather(*[tenant.publish("/v1/queues/orders", number) for number in range(30)])
    pulled = await tenant.pull("/v1/queues/orders", 100)
    assert sorted(message["payload"] for message in pulled) == list(range(30))
    made = await eventually(lambda: tenant.events("TELEMETRY"))
    assert [(event["event"], event["is_new"]) for event in made] == [("queue.changed", True)]


# Concurrency


async def test_a_queue_created_by_two_gateways_is_created_once(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    both = (tenant, second_gateway.seen_by(tenant))
    for number in range(5):
        queue = f"/v1/queues/orders-{number}"
        answers = await asyncio.gather(*[one.client.put(queue, {}) for one in both for _ in range(5)])
        assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
        await asyncio.gather(*[one.publish(queue, 1) for one in both])
        assert await tenant.stats(queue) == {"ready": 2, "leased": 0, "delayed": 0}


async def test_of_concurrent_settings_one_wins_on_all_gateways(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    elsewhere = second_gateway.seen_by(tenant)
    puts = [one.client.put(queue, {"maxMessages": index + 1}) for index, one in enumerate((tenant, elsewhere) * 5)]
    assert {answer.status for answer in await asyncio.gather(*puts)} == {200}

    async def agree() -> bool:
        here, there = await tenant.client.get(queue), await elsewhere.client.get(queue)
        return bool(here.ok()["settings"] == there.ok()["settings"] and here.json["settings"]["maxMessages"] > 0)

    await eventually(agree)


async def test_concurrent_creations_and_deletions_leave_a_usable_queue(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    both = (tenant, second_gateway.seen_by(tenant))
    calls = [one.client.put("/v1/queues/orders", {"maxMessages": number}) for number in range(1, 7) for one in both]
    calls += [one.client.delete("/v1/queues/orders") for one in both for _ in range(6)]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} <= {200, 201, 204, 404, 409}, [answer.json for answer in answers if answer.body]
    # Afterwards the queue can be created, used and deleted.
    assert (await tenant.client.put("/v1/queues/orders", {})).status in (200, 201)
    await tenant.publish("/v1/queues/orders", "after")
    assert [message["payload"] for message in await both[1].pull("/v1/queues/orders", 10)] == ["after"]
    assert (await both[1].client.delete("/v1/queues/orders")).status == 204
    assert not await stream_exists(gateway, tenant, "orders")


async def test_the_number_of_queues_of_a_tenant_is_limited(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, queues_per_tenant_max=2)) as gateway:
        tenant = await gateway.tenant(auto_create_queues=True)
        await tenant.queue("first")
        await tenant.publish("/v1/queues/second", 1)
        problem = (await tenant.client.put("/v1/queues/third", {})).problem(403, "forbidden")
        assert "2" in problem["detail"]
        (await tenant.client.post("/v1/queues/fourth/messages", {"payload": 1})).problem(403, "forbidden")
        assert (await tenant.client.put("/v1/queues/first", {"maxMessages": 1})).status == 200, "existing queues can change"
        assert lifecycle_of(gateway)._streams._locks == {}, "refusals leave nothing behind"
        assert (await tenant.client.delete("/v1/queues/first")).status == 204
        await tenant.queue("third")
        await (await gateway.tenant()).queue("other-tenant")


# Recovery of interrupted operations


def interrupted(tenant: Tenant, state: RecordState, *, at_ms: int = 0, incarnation: str = "") -> QueueRecord:
    return QueueRecord(
        state=state,
        tenant=tenant.id,
        name="orders",
        incarnation=incarnation or new_id(),
        settings=StrictQueueSettings(max_messages=77),
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
    )


async def write(gateway: Gateway, record: QueueRecord, *, with_stream: bool, stream_of: str = "") -> None:
    """Write the record, and a stream with a message, of this or another incarnation."""
    engine = gateway.node.platform
    if with_stream:
        subject = queue_subject(record.tenant, record.name)
        metadata = {"postroad.incarnation": stream_of or record.incarnation}
        options = {"retention": "workqueue", "allow_atomic": True, "allow_msg_ttl": True, "allow_msg_schedules": True}
        await ensure_stream(engine.connection, StreamSpec(record.stream, (f"{subject}.>",), {**options, "metadata": metadata}))
        message = StoredMessage(v=1, id=new_id(), job=new_id(), at=0, payload=msgspec.Raw(b'"leftover"'))
        await engine.committers.of(record.stream).append(PendingMessage(f"{subject}.ready", encode_message(message), message.id))
    bucket = Bucket(engine.connection, QUEUES_BUCKET, engine.committers)
    await bucket.put(f"{record.tenant}.{escape(record.name)}", msgspec.json.encode(record))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recover after 0.1 seconds instead of ten."""
    monkeypatch.setattr(stream_lifecycle, "_RECOVER_SECONDS", 0.1)


@pytest.mark.parametrize("with_stream", [False, True])
async def test_an_interrupted_creation_is_finished_by_the_next_look_up(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await write(gateway, interrupted(tenant, RecordState.CREATING), with_stream=with_stream)
    await tenant.publish("/v1/queues/orders", "first")
    shown = (await tenant.client.get("/v1/queues/orders")).ok()
    assert shown["settings"]["maxMessages"] == 77
    assert shown["stats"]["ready"] == (2 if with_stream else 1), "a stream of the same incarnation is kept"


async def test_an_interrupted_creation_does_not_keep_messages_of_an_earlier_queue(
    gateway: Gateway, tenant: Tenant, soon: None
) -> None:
    await write(gateway, interrupted(tenant, RecordState.CREATING), with_stream=True, stream_of="earlier")
    await tenant.publish("/v1/queues/orders", "first")
    assert [message["payload"] for message in await tenant.pull("/v1/queues/orders", 10)] == ["first"]


@pytest.mark.parametrize("with_stream", [False, True])
async def test_an_interrupted_deletion_is_finished_by_the_next_look_up(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await write(gateway, interrupted(tenant, RecordState.DELETING), with_stream=with_stream)
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")
    assert not await stream_exists(gateway, tenant, "orders")
    queue = await tenant.queue("orders")
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_two_gateways_recover_the_same_queue(gateway: Gateway, second_gateway: Gateway, tenant: Tenant, soon: None) -> None:
    await write(gateway, interrupted(tenant, RecordState.CREATING), with_stream=False)
    both = (tenant, second_gateway.seen_by(tenant))
    await asyncio.gather(*[one.publish("/v1/queues/orders", number) for one in both for number in range(5)])
    assert (await tenant.stats("/v1/queues/orders"))["ready"] == 10


async def test_a_look_up_waits_for_a_creation_in_progress(gateway: Gateway, tenant: Tenant) -> None:
    """Another process creates the queue and finishes in time: no recovery."""
    record = interrupted(tenant, RecordState.CREATING)
    await write(gateway, record, with_stream=False)
    look_up = asyncio.create_task(tenant.client.get("/v1/queues/orders"))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    ready = msgspec.structs.replace(record, state=RecordState.READY)
    await lifecycle_of(gateway)._ensure_streams(ready)
    bucket = Bucket(gateway.node.platform.connection, QUEUES_BUCKET, gateway.node.platform.committers)
    assert not look_up.done()
    await bucket.put(f"{tenant.id}.orders", msgspec.json.encode(ready))
    async with asyncio.timeout(30):
        assert (await look_up).ok()["settings"]["maxMessages"] == 77


async def test_recovery_finishes_old_operations_only(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    other = await gateway.tenant()
    await write(gateway, interrupted(tenant, RecordState.DELETING, at_ms=clock() - 61_000), with_stream=True)
    await write(gateway, interrupted(other, RecordState.CREATING, at_ms=clock()), with_stream=False)
    queues = lifecycle_of(gateway)

    async def both_are_known() -> bool:
        table = queues._table
        return table.get(f"{tenant.id}.orders") is not None and table.get(f"{other.id}.orders") is not None

    await eventually(both_are_known)
    assert await queues.recover_all() == 1
    assert not await stream_exists(gateway, tenant, "orders")
    clock.ahead_ms = 61_000
    assert await queues.recover_all() == 1
    assert await stream_exists(gateway, other, "orders")
    assert await queues.recover_all() == 0


async def test_a_ready_queue_is_not_recovered(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    clock.ahead_ms = 10_000_000
    assert await lifecycle_of(gateway).recover_all() == 0
    assert (await tenant.stats(queue))["ready"] == 1
