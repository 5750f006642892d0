import asyncio
import re
from typing import Any

import msgspec
import pytest

from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, stream_info
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, queue_stream, queue_subject
from postroad.queues import lifecycle
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.rules import QueueRecord, QueueSettings, QueueState, StoredMessage, encode_message
from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

DEFAULTS = {
    "visibilityTimeoutMs": 30_000,
    "retentionMs": 0,
    "dedupeWindowMs": None,
    "maxMessages": 0,
    "replicas": None,
    "maxAttempts": 10,
    "retryDelaysMs": [1_000, 5_000, 30_000, 120_000, 600_000],
    "geo": None,
    "schema": None,
    "expectedDrainSeconds": None,
    "archive": False,
}


async def stream_exists(gateway: Gateway, tenant: Tenant, name: str) -> bool:
    return await stream_info(gateway.node.platform.connection, queue_stream(tenant.id, name)) is not None


def definitions_of(gateway: Gateway) -> QueueLifecycle:
    [listing] = [route.handler for route in gateway.node.routes if route.path == "/v1/queues"]
    found = getattr(listing, "__self__")._definitions  # noqa: B009
    assert isinstance(found, QueueLifecycle)
    return found


# Made, shown, changed


async def test_a_queue_is_made_with_the_defaults(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/queues/orders", {})).ok(201)
    assert made["name"] == "orders"
    assert made["settings"] == DEFAULTS
    assert made["createdAt"] == made["updatedAt"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["createdAt"])
    assert "stats" not in made


async def test_the_same_settings_again_change_nothing(tenant: Tenant) -> None:
    made = (await tenant.client.put("/v1/queues/orders", {"maxMessages": 5})).ok(201)
    assert (await tenant.client.put("/v1/queues/orders", {"maxMessages": 5})).ok(200) == made
    assert (await tenant.client.delete("/v1/queues/orders")).status == 204

    async def told() -> list[str]:
        events = [event["event"] for event in await tenant.events("TELEMETRY")]
        return events if "queue.deleted" in events else []

    assert await eventually(told) == ["queue.changed", "queue.deleted"], "and nobody is told that they did"


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
async def test_settings_that_do_not_fit_make_no_queue(tenant: Tenant, settings: dict[str, Any], path: str) -> None:
    problem = (await tenant.client.put("/v1/queues/orders", settings)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")


async def test_more_copies_than_there_are_servers_are_refused_and_change_nothing(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "kept")
    problem = (await tenant.client.put(queue, {"replicas": 3})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.replicas"
    assert (await tenant.client.get(queue)).ok()["settings"]["replicas"] is None
    assert [message["payload"] for message in await tenant.pull(queue)] == ["kept"]


async def test_a_new_queue_with_more_copies_than_there_are_servers_leaves_its_name_free(tenant: Tenant) -> None:
    (await tenant.client.put("/v1/queues/orders", {"replicas": 3})).problem(422, "invalid-body")
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")
    (await tenant.client.put("/v1/queues/orders", {"replicas": 1})).ok(201)


async def test_a_queue_shows_what_is_in_it(tenant: Tenant) -> None:
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
async def test_a_name_may_have_letters_digits_and_a_few_marks(tenant: Tenant, name: str) -> None:
    queue = await tenant.queue(name)
    await tenant.publish(queue, name)
    assert [message["payload"] for message in await tenant.pull(queue)] == [name]


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


async def test_names_that_begin_with_an_underscore_are_postroads_own(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    (await tenant.client.put("/v1/queues/_mine", {})).problem(400, "invalid-parameter")
    (await tenant.client.post("/v1/queues/_mine/messages", {"payload": 1})).problem(404, "queue-not-found")


async def test_names_that_look_alike_are_different_queues(tenant: Tenant) -> None:
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


async def test_a_list_of_many_comes_in_pages(gateway: Gateway, tenant: Tenant) -> None:
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


async def test_a_listed_queue_is_as_it_is_shown_alone_but_for_what_is_in_it(tenant: Tenant) -> None:
    queue = await tenant.queue("orders", maxMessages=9)
    [listed] = (await tenant.client.get("/v1/queues")).ok()["queues"]
    shown = (await tenant.client.get(queue)).ok()
    assert {**listed, "stats": shown["stats"]} == shown


# Deleting


async def test_a_deleted_queue_is_gone_with_its_stream(gateway: Gateway, tenant: Tenant) -> None:
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


async def test_a_queue_that_is_made_again_has_nothing_of_the_old_one(tenant: Tenant) -> None:
    for round_number in range(3):
        queue = await tenant.queue("orders")
        assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}
        await tenant.publish(queue, round_number, idempotencyKey="same")
        await tenant.publish(queue, "later", delayMs=60_000)
        assert [message["payload"] for message in await tenant.pull(queue, 10)] == [round_number]
        assert (await tenant.client.delete(queue)).status == 204


async def test_who_waits_for_a_message_of_a_queue_that_is_deleted_is_told(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    for deleting in (tenant, second_gateway.seen_by(tenant)):
        await tenant.client.put(queue, {})
        waiting = asyncio.create_task(tenant.client.post(f"{queue}/pull", {"waitMs": 20_000}))
        await eventually(lambda: gateway.node.app._usage.open_requests == 1)
        assert (await deleting.client.delete(queue)).status == 204
        async with asyncio.timeout(2):
            (await waiting).problem(404, "queue-not-found")


@pytest.mark.parametrize("path", ["messages", "messages/batch"])
async def test_who_publishes_as_the_queue_is_deleted_is_told_soon(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, path: str
) -> None:
    """The stream goes before the record does: a publish in between waits for an answer that never comes."""
    queue = await tenant.queue("orders")
    await delete_stream(gateway.node.platform.connection, queue_stream(tenant.id, "orders"))
    messages: list[dict[str, Any]] = [{"payload": number, "idempotencyKey": str(number)} for number in range(20)]
    body = {"messages": messages} if path.endswith("batch") else messages[0]
    publishing = asyncio.create_task(tenant.client.post(f"{queue}/{path}", body))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    assert (await second_gateway.seen_by(tenant).client.delete(queue)).status == 204
    async with asyncio.timeout(3):
        answer = await publishing
    if path.endswith("batch"):
        assert {result["problem"]["code"] for result in answer.ok()["results"]} == {"queue-not-found"}
    else:
        answer.problem(404, "queue-not-found")
    assert gateway.node.platform.committers._buffer_limit.bytes == 0


async def test_of_many_who_delete_a_queue_at_once_none_fails_badly(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue("orders")
    both = (tenant, second_gateway.seen_by(tenant))
    answers = await asyncio.gather(*[one.client.delete(queue) for one in both for _ in range(5)])
    statuses = [answer.status for answer in answers]
    assert statuses.count(204) == 1 and set(statuses) <= {204, 404, 409}
    assert not await stream_exists(gateway, tenant, "orders")


async def test_a_queue_that_was_deleted_elsewhere_is_missing_here_at_once(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert (await second_gateway.seen_by(tenant).client.delete(queue)).status == 204

    async def is_missing() -> bool:
        return (await tenant.client.get(queue)).status == 404

    await eventually(is_missing, 1)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1})).problem(404, "queue-not-found")


# Made by publishing


async def test_publishing_to_a_queue_that_is_not_there_is_404(tenant: Tenant) -> None:
    (await tenant.client.post("/v1/queues/orders/messages", {"payload": 1})).problem(404, "queue-not-found")
    batch = {"messages": [{"payload": 1}]}
    (await tenant.client.post("/v1/queues/orders/messages/batch", batch)).problem(404, "queue-not-found")
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []


async def test_where_the_tenant_wants_it_publishing_makes_the_queue(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    await tenant.publish("/v1/queues/orders", 1)
    (await tenant.client.post("/v1/queues/more/messages/batch", {"messages": [{"payload": 1}]})).ok()
    listed = (await tenant.client.get("/v1/queues")).ok()["queues"]
    assert [(queue["name"], queue["settings"]) for queue in listed] == [("more", DEFAULTS), ("orders", DEFAULTS)]


async def test_pulling_makes_no_queue(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    (await tenant.client.post("/v1/queues/orders/pull", {})).problem(404, "queue-not-found")


async def test_many_first_publishes_at_once_all_arrive(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    both = (tenant, second_gateway.seen_by(tenant))
    published = await asyncio.gather(*[both[number % 2].publish("/v1/queues/orders", number) for number in range(30)])
    assert len({one["messageId"] for one in published}) == 30
    pulled = await tenant.pull("/v1/queues/orders", 100)
    assert sorted(message["payload"] for message in pulled) == list(range(30))


async def test_many_first_publishes_to_one_gateway_all_arrive(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    await asyncio.gather(*[tenant.publish("/v1/queues/orders", number) for number in range(30)])
    pulled = await tenant.pull("/v1/queues/orders", 100)
    assert sorted(message["payload"] for message in pulled) == list(range(30))
    made = await eventually(lambda: tenant.events("TELEMETRY"))
    assert [(event["event"], event["is_new"]) for event in made] == [("queue.changed", True)]


# Several at once


async def test_a_queue_that_two_gateways_make_at_once_is_made_once(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    both = (tenant, second_gateway.seen_by(tenant))
    for number in range(5):
        queue = f"/v1/queues/orders-{number}"
        answers = await asyncio.gather(*[one.client.put(queue, {}) for one in both for _ in range(5)])
        assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
        await asyncio.gather(*[one.publish(queue, 1) for one in both])
        assert await tenant.stats(queue) == {"ready": 2, "leased": 0, "delayed": 0}


async def test_of_settings_that_come_at_once_one_wins_everywhere(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    elsewhere = second_gateway.seen_by(tenant)
    puts = [one.client.put(queue, {"maxMessages": index + 1}) for index, one in enumerate((tenant, elsewhere) * 5)]
    assert {answer.status for answer in await asyncio.gather(*puts)} == {200}

    async def agree() -> bool:
        here, there = await tenant.client.get(queue), await elsewhere.client.get(queue)
        return bool(here.ok()["settings"] == there.ok()["settings"] and here.json["settings"]["maxMessages"] > 0)

    await eventually(agree, 2)


async def test_a_queue_made_and_deleted_by_many_at_once_ends_whole(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    both = (tenant, second_gateway.seen_by(tenant))
    calls = [one.client.put("/v1/queues/orders", {"maxMessages": number}) for number in range(1, 7) for one in both]
    calls += [one.client.delete("/v1/queues/orders") for one in both for _ in range(6)]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} <= {200, 201, 204, 404, 409}, [answer.json for answer in answers if answer.body]
    # Whatever the outcome, the queue can be made, used and deleted afterwards.
    assert (await tenant.client.put("/v1/queues/orders", {})).status in (200, 201)
    await tenant.publish("/v1/queues/orders", "after")
    assert [message["payload"] for message in await both[1].pull("/v1/queues/orders", 10)] == ["after"]
    assert (await both[1].client.delete("/v1/queues/orders")).status == 204
    assert not await stream_exists(gateway, tenant, "orders")


async def test_a_tenant_may_have_so_many_queues_and_no_more(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, queues_per_tenant_max=2)) as gateway:
        tenant = await gateway.tenant(auto_create_queues=True)
        await tenant.queue("first")
        await tenant.publish("/v1/queues/second", 1)
        problem = (await tenant.client.put("/v1/queues/third", {})).problem(403, "forbidden")
        assert "2" in problem["detail"]
        (await tenant.client.post("/v1/queues/fourth/messages", {"payload": 1})).problem(403, "forbidden")
        assert (await tenant.client.put("/v1/queues/first", {"maxMessages": 1})).status == 200, "those that are there can change"
        assert definitions_of(gateway)._locks == {}, "refusals leave nothing behind"
        assert (await tenant.client.delete("/v1/queues/first")).status == 204
        await tenant.queue("third")
        await (await gateway.tenant()).queue("another tenant's limit is its own".replace(" ", "-").replace("'", ""))


# What a process that died has left


def left_behind(tenant: Tenant, state: QueueState, *, at_ms: int = 0, incarnation: str = "") -> QueueRecord:
    return QueueRecord(
        state=state,
        tenant=tenant.id,
        name="orders",
        incarnation=incarnation or new_id(),
        settings=QueueSettings(max_messages=77),
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
    )


async def leave(gateway: Gateway, record: QueueRecord, *, with_stream: bool, stream_of: str = "") -> None:
    """The record as it was when the process died, and a stream with a message in it, of this or another incarnation."""
    engine = gateway.node.platform
    if with_stream:
        subject = queue_subject(record.tenant, record.name)
        metadata = {"postroad.incarnation": stream_of or record.incarnation}
        options = {"retention": "workqueue", "allow_atomic": True, "allow_msg_ttl": True, "allow_msg_schedules": True}
        await ensure_stream(engine.connection, StreamSpec(record.stream, (f"{subject}.>",), {**options, "metadata": metadata}))
        message = StoredMessage(v=1, id=new_id(), job=new_id(), at=0, payload=msgspec.Raw(b'"left behind"'))
        await engine.committers.of(record.stream).append(PendingMessage(f"{subject}.ready", encode_message(message), message.id))
    bucket = Bucket(engine.connection, QUEUES_BUCKET, engine.committers)
    await bucket.put(f"{record.tenant}.{escape(record.name)}", msgspec.json.encode(record))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-done work is taken up after a moment, not after ten seconds."""
    monkeypatch.setattr(lifecycle, "_TAKE_UP_SECONDS", 0.1)


@pytest.mark.parametrize("with_stream", [False, True])
async def test_a_queue_that_was_being_made_is_finished_by_who_needs_it(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await leave(gateway, left_behind(tenant, QueueState.MAKING), with_stream=with_stream)
    await tenant.publish("/v1/queues/orders", "first")
    shown = (await tenant.client.get("/v1/queues/orders")).ok()
    assert shown["settings"]["maxMessages"] == 77
    assert shown["stats"]["ready"] == (2 if with_stream else 1), "a stream of the same life is kept"


async def test_a_queue_that_was_being_made_does_not_take_over_an_older_ones_messages(
    gateway: Gateway, tenant: Tenant, soon: None
) -> None:
    await leave(gateway, left_behind(tenant, QueueState.MAKING), with_stream=True, stream_of="an earlier life")
    await tenant.publish("/v1/queues/orders", "first")
    assert [message["payload"] for message in await tenant.pull("/v1/queues/orders", 10)] == ["first"]


@pytest.mark.parametrize("with_stream", [False, True])
async def test_a_queue_that_was_being_deleted_is_gone_for_who_asks(
    gateway: Gateway, tenant: Tenant, soon: None, with_stream: bool
) -> None:
    await leave(gateway, left_behind(tenant, QueueState.DELETING), with_stream=with_stream)
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []
    (await tenant.client.get("/v1/queues/orders")).problem(404, "queue-not-found")
    assert not await stream_exists(gateway, tenant, "orders")
    queue = await tenant.queue("orders")
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_two_gateways_that_take_up_the_same_work_do_not_hurt_each_other(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, soon: None
) -> None:
    await leave(gateway, left_behind(tenant, QueueState.MAKING), with_stream=False)
    both = (tenant, second_gateway.seen_by(tenant))
    await asyncio.gather(*[one.publish("/v1/queues/orders", number) for one in both for number in range(5)])
    assert (await tenant.stats("/v1/queues/orders"))["ready"] == 10


async def test_work_in_progress_is_waited_for(gateway: Gateway, tenant: Tenant) -> None:
    """Somebody is making the queue, and finishes in time: nobody else touches it."""
    record = left_behind(tenant, QueueState.MAKING)
    await leave(gateway, record, with_stream=False)
    asking = asyncio.create_task(tenant.client.get("/v1/queues/orders"))
    await eventually(lambda: gateway.node.app._usage.open_requests == 1)
    ready = msgspec.structs.replace(record, state=QueueState.READY)
    await definitions_of(gateway)._ensure_streams(ready)
    bucket = Bucket(gateway.node.platform.connection, QUEUES_BUCKET, gateway.node.platform.committers)
    assert not asking.done()
    await bucket.put(f"{tenant.id}.orders", msgspec.json.encode(ready))
    async with asyncio.timeout(2):
        assert (await asking).ok()["settings"]["maxMessages"] == 77


async def test_the_sweep_finishes_what_is_old_and_leaves_what_is_young(
    gateway: Gateway, tenant: Tenant, clock: ShiftedClock
) -> None:
    other = await gateway.tenant()
    await leave(gateway, left_behind(tenant, QueueState.DELETING, at_ms=clock() - 61_000), with_stream=True)
    await leave(gateway, left_behind(other, QueueState.MAKING, at_ms=clock()), with_stream=False)
    definitions = definitions_of(gateway)

    async def both_are_known() -> bool:
        table = definitions._table
        return table.get(f"{tenant.id}.orders") is not None and table.get(f"{other.id}.orders") is not None

    await eventually(both_are_known)
    assert await definitions.sweep() == 1
    assert not await stream_exists(gateway, tenant, "orders")
    clock.ahead_ms = 61_000
    assert await definitions.sweep() == 1
    assert await stream_exists(gateway, other, "orders")
    assert await definitions.sweep() == 0


async def test_a_settled_queue_is_not_swept(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    clock.ahead_ms = 10_000_000
    assert await definitions_of(gateway).sweep() == 0
    assert (await tenant.stats(queue))["ready"] == 1
