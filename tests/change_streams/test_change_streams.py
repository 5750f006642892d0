"""Change streams: each change of a mapped bucket is a message of its topic, once and in the order of revisions."""

import asyncio
from typing import Any

import msgspec
import nats
import pytest
from nats.js import JetStreamContext

from postroad.buckets import bridges as bridges_module
from postroad.buckets import revision_trimmer
from postroad.buckets.bridge import ChangeStreamBridge
from postroad.buckets.bridges import Lag
from postroad.buckets.capability import BucketsCapability
from postroad.buckets.lifecycle import bucket_key
from postroad.buckets.revision_trimmer import SPARE_REVISIONS, RevisionTrimmer
from postroad.jetstream.management import purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.names import bucket_store, topic_stream
from tests.buckets.test_values import make_bucket, put
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

MAPPED = {"change_stream_topic": "cart-events"}
TOPIC = "/v1/topics/cart-events"


async def messages_of(tenant: Tenant, topic: str = TOPIC) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"{topic}/messages?limit=1000{cursor}")).ok()
        found += page["messages"]
        if page.get("nextCursor") is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"


def revisions_of(messages: list[dict[str, Any]]) -> list[int]:
    return [int(one["headers"]["Postroad-Revision"]) for one in messages]


async def copied(tenant: Tenant, count: int, topic: str = TOPIC) -> list[dict[str, Any]]:
    """The messages of the topic once there are so many."""

    async def are_there() -> list[dict[str, Any]]:
        found = await messages_of(tenant, topic)
        return found if len(found) >= count else []

    found: list[dict[str, Any]] = await eventually(are_there, 60)
    assert len(found) == count, revisions_of(found)
    return found


async def caught_up(tenant: Tenant, bucket: str = "/v1/buckets/cart") -> dict[str, Any]:
    async def is_current() -> dict[str, Any]:
        found: dict[str, Any] = (await tenant.client.get(bucket)).ok()
        return found if found["changeStream"]["lagRevisions"] == 0 else {}

    status: dict[str, Any] = await eventually(is_current, 60)
    return status


def kv_stream(tenant: Tenant) -> str:
    return f"KV_{bucket_store(tenant.id, 'cart')}"


def bridge_of(gateway: Gateway, tenant: Tenant) -> ChangeStreamBridge:
    buckets = gateway.node.platform.use(BucketsCapability)
    record = buckets.lifecycle.cached(tenant.id, "cart")
    assert record is not None and record.change_stream is not None
    return buckets.bridges.bridge_of(record, record.change_stream)


# What is copied


async def test_each_change_is_a_message_with_its_key_as_subject(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, replicas=3, geo="auto", **MAPPED)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    (await put(tenant, bucket, "user.42", b'{"items":1}', Content_Type="application/json", traceparent=trace)).ok()
    (await put(tenant, bucket, "a/b=c", b"\x00\xff")).ok()
    (await tenant.client.delete(f"{bucket}/keys/user.42")).ok()
    first, second, third = await copied(tenant, 3)
    assert (first["subject"], first["payload"], first["contentType"]) == ("user.42", {"items": 1}, "application/json")
    assert first["natsSubject"] == f"t.{tenant.id}__cart-events.user.42"
    assert first["headers"].pop("Postroad-Changed-At-Ms").isdecimal()
    assert first["headers"] == {"Postroad-Bucket": "cart", "Postroad-Operation": "put", "Postroad-Revision": "1"}
    assert first["traceparent"] == trace
    assert (second["subject"], second["body_b64"]) == ("a/b=c", "AP8=")
    assert (third["subject"], third["headers"]["Postroad-Operation"]) == ("user.42", "delete")
    assert third["headers"]["Postroad-Revision"] == "3"
    shown = await caught_up(tenant)
    assert shown["changeStream"] == {"topic": "cart-events", "revision": 3, "lagRevisions": 0, "lagSeconds": 0.0}
    assert (await tenant.client.get(TOPIC)).ok()["fedBy"] == "bucket/cart"


async def test_changes_by_nats_clients_are_copied_and_theirs_read(tenant: Tenant, engine_url: str) -> None:
    """With nats-py alone: a put, a delete, a purge, and foreign data, which blocks nothing."""
    bucket = await make_bucket(tenant, **MAPPED)
    client = await nats.connect(engine_url)
    try:
        context: JetStreamContext = client.jetstream()
        store = await context.key_value(f"{tenant.id}__cart")
        await store.put("user.1", b"by nats-py")
        await store.put("user.2", b"2")
        await store.delete("user.1")
        await store.purge("user.2")
        await context.publish(f"$KV.{tenant.id}__cart._kv_foreign", b"not a valid key")
        (await put(tenant, bucket, "user.3", b"by HTTP")).ok()
        assert (await store.get("user.3")).value == b"by HTTP"
    finally:
        await client.close()
    found = await copied(tenant, 5)
    assert [(one["subject"], one["headers"]["Postroad-Operation"]) for one in found] == [
        ("user.1", "put"),
        ("user.2", "put"),
        ("user.1", "delete"),
        ("user.2", "delete"),
        ("user.3", "put"),
    ]
    assert revisions_of(found) == [1, 2, 3, 4, 6]
    assert (await caught_up(tenant))["changeStream"]["revision"] == 6


async def test_an_expiry_is_a_change(tenant: Tenant, engine_url: str) -> None:
    await make_bucket(tenant, ttlSeconds=1, **MAPPED)
    (await put(tenant, "/v1/buckets/cart", "k")).ok()
    found = await copied(tenant, 2)
    assert [one["headers"]["Postroad-Operation"] for one in found] == ["put", "expire"]


async def test_no_revision_is_missing_although_the_history_is_one(tenant: Tenant) -> None:
    """Writers on one key overwrite each other faster than changes are copied."""
    bucket = await make_bucket(tenant, **MAPPED)

    async def write(writer: int) -> list[int]:
        return [(await put(tenant, bucket, "hot", b"%d" % writer)).ok()["revision"] for _ in range(25)]

    written = await asyncio.gather(*(write(number) for number in range(8)))
    found = await copied(tenant, 200)
    assert revisions_of(found) == sorted(revision for one in written for revision in one) == list(range(1, 201))


# Exactly once


async def test_many_bridges_at_once_store_each_change_once_and_in_order(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    others = [bridge_of(gateway, tenant) for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in others]

    async def write(writer: int) -> None:
        for number in range(30):
            (await put(tenant, bucket, f"key.{writer}", b"%d" % number)).ok()

    async def cancel_and_start_again() -> None:
        for _ in range(5):
            await asyncio.sleep(0.05)
            running.pop(0).cancel()
            running.append(asyncio.create_task(bridge_of(gateway, tenant).run()))

    try:
        await asyncio.gather(cancel_and_start_again(), *(write(number) for number in range(8)))
        assert revisions_of(await copied(tenant, 240)) == list(range(1, 241))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_bridge_resumes_after_retention_has_emptied_the_topic(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges_module, "_SAMPLE_SECONDS", 0.1)
    bucket = await make_bucket(tenant, **MAPPED)
    for number in range(5):
        (await put(tenant, bucket, f"k{number}")).ok()
    await copied(tenant, 5)
    buckets = gateway.node.platform.use(BucketsCapability)

    def stored_position() -> int:
        record = buckets.table.get(bucket_key(tenant.id, "cart"))
        return 0 if record is None or record.change_stream is None else record.change_stream.position

    (await put(tenant, bucket, "last")).ok()
    await eventually(lambda: stored_position() == 6, 30)
    connection = gateway.node.platform.connection
    await purge_stream(connection, topic_stream(tenant.id, "cart-events"))
    await bridge_of(gateway, tenant).drain()
    assert await messages_of(tenant) == []
    (await put(tenant, bucket, "next")).ok()
    assert revisions_of(await copied(tenant, 1)) == [7]


async def test_foreign_messages_at_the_end_of_the_topic_repeat_nothing(gateway: Gateway, tenant: Tenant, engine_url: str) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    (await put(tenant, bucket, "k")).ok()
    await copied(tenant, 1)
    client = await nats.connect(engine_url)
    try:
        await client.jetstream().publish(f"t.{tenant.id}__cart-events.foreign", b"?")
    finally:
        await client.close()
    await bridge_of(gateway, tenant).drain()
    (await put(tenant, bucket, "k")).ok()
    found = await copied(tenant, 3)
    assert [one["headers"].get("Postroad-Revision") for one in found] == ["1", None, "2"]


async def test_a_bug_while_copying_delays_the_changes_and_loses_none(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    store, failures = ChangeStreamBridge._store, iter((RuntimeError("a bug"), UnicodeError("another one")))

    async def fail_twice(*args: Any) -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        await store(*args)

    monkeypatch.setattr(ChangeStreamBridge, "_store", fail_twice)
    for _ in range(3):
        (await put(tenant, bucket, "k")).ok()
    assert revisions_of(await copied(tenant, 3)) == [1, 2, 3]
    assert next(failures, None) is None


async def test_the_lag_of_a_change_stream_that_cannot_be_sampled_stays_in_the_metric(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_bucket(tenant, **MAPPED)
    bridges = gateway.node.platform.use(BucketsCapability).bridges
    await eventually(lambda: bucket_key(tenant.id, "cart") in bridges._running)
    reported: list[list[Lag]] = []
    monkeypatch.setattr(bridges_module, "_report", lambda lags: reported.append(list(lags)))

    async def behind(*_: object) -> Lag:
        return Lag(5, 1.5)

    async def away(*_: object) -> Lag:
        raise EngineUnavailable("away", retry_after=1)

    for sample in (behind, away):
        monkeypatch.setattr(bridges, "lag", sample)
        await bridges._sample_all()
    assert reported[0] == reported[1] and Lag(5, 1.5) in reported[1]


# Trimming


async def test_copied_revisions_are_trimmed_and_the_history_stays(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=3, **MAPPED)
    writes = 3 * (3 + SPARE_REVISIONS)
    for number in range(writes):
        (await put(tenant, bucket, "hot", b"%d" % number)).ok()
    assert revisions_of(await copied(tenant, writes)) == list(range(1, writes + 1))

    async def is_trimmed() -> bool:
        info = await stream_info(gateway.node.platform.connection, kv_stream(tenant))
        return info is not None and info.state.messages <= 3 + SPARE_REVISIONS

    await eventually(is_trimmed, 60)
    kept = (await tenant.client.get(f"{bucket}/history/hot")).ok()["entries"]
    assert [one["revision"] for one in kept][-3:] == [writes - 2, writes - 1, writes]
    assert (await tenant.client.get(f"{bucket}/keys/hot")).body == b"%d" % (writes - 1)


async def test_revisions_that_are_copied_during_a_trim_count_for_the_next_one(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_bucket(tenant, history=2)
    record = gateway.node.platform.use(BucketsCapability).lifecycle.cached(tenant.id, "cart")
    assert record is not None
    trimmer = RevisionTrimmer(gateway.node.platform.connection, record)
    entries = [Entry("k", sequence, 0, b"", {}) for sequence in range(1, 2 + SPARE_REVISIONS + 4)]

    async def purge_while_copying(*_: object, **__: object) -> None:
        trimmer.add(entries[-2:])

    monkeypatch.setattr(revision_trimmer, "purge_stream", purge_while_copying)
    trimmer.add(entries[:-2])
    await trimmer._trim_due()
    assert trimmer._copied["k"] == [one.sequence for one in entries[-4:]]


async def test_a_bug_while_trimming_does_not_end_it(gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_bucket(tenant, **MAPPED)
    record = gateway.node.platform.use(BucketsCapability).lifecycle.cached(tenant.id, "cart")
    assert record is not None
    searches: list[int] = []

    async def search(_: RevisionTrimmer) -> None:
        searches.append(len(searches))
        if len(searches) == 1:
            raise RuntimeError("a bug")

    monkeypatch.setattr(revision_trimmer, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(RevisionTrimmer, "_search", search)
    running = asyncio.create_task(RevisionTrimmer(gateway.node.platform.connection, record).run())
    try:
        await eventually(lambda: len(searches) >= 2)
    finally:
        running.cancel()


async def test_revisions_of_before_a_restart_are_trimmed(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process knows from the record what was copied, also if nothing is written any more."""
    bucket = await make_bucket(tenant, **MAPPED)
    buckets = gateway.node.platform.use(BucketsCapability)
    for number in range(12):
        (await put(tenant, bucket, "hot", b"%d" % number)).ok()
    (await put(tenant, bucket, "cold")).ok()
    await copied(tenant, 13)
    record = buckets.lifecycle.cached(tenant.id, "cart")
    assert record is not None and record.change_stream is not None
    mapping = msgspec.structs.replace(record.change_stream, position=10)  # nothing beyond is known to be copied
    restarted = msgspec.structs.replace(record, change_stream=mapping)
    monkeypatch.setattr(revision_trimmer, "SPARE_REVISIONS", 5)  # once the running trimmer has counted
    await revision_trimmer.RevisionTrimmer(gateway.node.platform.connection, restarted)._search()
    kept = (await tenant.client.get(f"{bucket}/history/hot")).ok()["entries"]
    assert [one["revision"] for one in kept] == [10, 11, 12]


# Mapping


async def test_only_the_bucket_publishes_to_its_topic(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    message = {"subject": "x", "payload": 1}
    (await tenant.client.post(f"{TOPIC}/messages", message)).problem(409, "topic-fed")
    (await tenant.client.patch(TOPIC, {"retentionMs": 60_000})).problem(422, "invalid-body")
    (await tenant.client.patch(TOPIC, {"retentionMs": 3_600_000})).ok()
    (await tenant.client.delete(TOPIC)).problem(409, "topic-in-use")
    assert (await tenant.client.post("/v1/buckets", {"name": "cart", **MAPPED})).status == 200
    (await tenant.client.post("/v1/buckets", {"name": "other", **MAPPED})).problem(409, "already-exists")
    (await put(tenant, bucket, "k")).ok()
    await copied(tenant, 1)


async def test_a_topic_for_other_use_is_not_taken(tenant: Tenant) -> None:
    (await tenant.client.put("/v1/topics/orders", {})).ok(201)
    (await tenant.client.post("/v1/buckets", {"name": "cart", "change_stream_topic": "orders"})).problem(409, "already-exists")
    (await tenant.client.get("/v1/buckets/cart")).problem(404, "bucket-not-found")
    bucket = await make_bucket(tenant)
    (await tenant.client.patch(bucket, {"change_stream_topic": "orders"})).problem(409, "already-exists")
    for invalid in ("_own", "a b", ""):
        (await tenant.client.patch(bucket, {"change_stream_topic": invalid})).problem(422, "invalid-body")
    narrow = await tenant.another_key(allowed_topics=("other-*",))
    (await narrow.client.patch(bucket, {"change_stream_topic": "cart-events"})).problem(403, "forbidden")


async def test_a_mapping_is_removed_and_made_again(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    for number in range(3):
        (await put(tenant, bucket, "k", b"%d" % number)).ok()
    unmapped = (await tenant.client.patch(bucket, {"change_stream_topic": None})).ok()
    assert unmapped["settings"]["change_stream_topic"] is None
    assert revisions_of(await messages_of(tenant)) == [1, 2, 3]  # they were copied before the response
    info = await stream_info(gateway.node.platform.connection, kv_stream(tenant))
    assert info is not None and info.config["max_msgs_per_subject"] == 1 and info.state.messages == 1
    assert "changeStream" not in (await tenant.client.get(bucket)).ok()
    (await put(tenant, bucket, "k", b"3")).ok()
    (await tenant.client.patch(bucket, {"change_stream_topic": "cart-events"})).ok()
    (await put(tenant, bucket, "k", b"4")).ok()
    assert revisions_of(await copied(tenant, 4)) == [1, 2, 3, 5]


async def test_a_mapping_can_start_with_the_current_content(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=5)
    for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("gone", b"1")):
        (await put(tenant, bucket, key, value)).ok()
    (await tenant.client.delete(f"{bucket}/keys/gone")).ok()
    change = {"change_stream_topic": "cart-events", "change_stream_from": "all"}
    (await tenant.client.patch(bucket, change)).ok()
    await copied(tenant, 2)
    (await put(tenant, bucket, "b", b"2")).ok()
    found = await copied(tenant, 3)
    assert [(one["subject"], one["headers"]["Postroad-Revision"]) for one in found] == [("b", "2"), ("a", "3"), ("b", "6")]


async def test_a_deleted_bucket_leaves_its_topic_complete_and_free(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    for number in range(20):
        (await put(tenant, bucket, f"k{number}")).ok()
    assert (await tenant.client.delete(bucket)).status == 204
    assert revisions_of(await messages_of(tenant)) == list(range(1, 21))
    (await tenant.client.post(f"{TOPIC}/messages", {"subject": "x", "payload": 1})).ok(201)
    (await tenant.client.post("/v1/buckets", {"name": "cart", **MAPPED})).problem(409, "already-exists")


async def test_a_deleted_topic_ends_the_change_stream(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    (await put(tenant, bucket, "k")).ok()
    await copied(tenant, 1)
    assert (await tenant.client.delete(f"{TOPIC}?cascade=true")).status == 204
    assert (await tenant.client.get(bucket)).ok()["settings"]["change_stream_topic"] is None
    (await put(tenant, bucket, "k")).ok()
    (await tenant.client.patch(bucket, MAPPED)).ok()
    (await put(tenant, bucket, "k")).ok()
    assert revisions_of(await copied(tenant, 1)) == [3]


async def test_a_purge_leaves_the_message_that_has_the_position(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    for _ in range(3):
        (await put(tenant, bucket, "k")).ok()
    await copied(tenant, 3)
    (await tenant.client.post(f"{TOPIC}/purge", {})).ok()
    assert revisions_of(await messages_of(tenant)) == [3]


async def test_without_a_mapping_no_task_runs(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    bridges = gateway.node.platform.use(BucketsCapability).bridges
    key = bucket_key(tenant.id, "cart")
    (await put(tenant, bucket, "k")).ok()
    assert key not in bridges._running
    (await tenant.client.patch(bucket, MAPPED)).ok()
    if bridges._is_leading:
        await eventually(lambda: key in bridges._running)
    (await tenant.client.patch(bucket, {"change_stream_topic": None})).ok()
    await eventually(lambda: key not in bridges._running)


# Hops


async def test_hops_travel_with_a_change_and_end_a_loop(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    (await put(tenant, bucket, "k", X_MQ_Hops="3")).ok()
    (await tenant.client.delete(f"{bucket}/keys/k", headers={"X-MQ-Hops": "4"})).ok()
    batch = {"writes": [{"key": "k", "value": 1}]}
    (await tenant.client.post(f"{bucket}/batch", batch, headers={"X-MQ-Hops": "15"})).ok()
    assert [one["hops"] for one in await copied(tenant, 3)] == [3, 4, 15]
    (await put(tenant, bucket, "k", X_MQ_Hops="16")).problem(409, "loop-detected")
    (await tenant.client.delete(f"{bucket}/keys/k", headers={"X-MQ-Hops": "16"})).problem(409, "loop-detected")
    (await tenant.client.post(f"{bucket}/batch", batch, headers={"X-MQ-Hops": "99"})).problem(409, "loop-detected")
    (await put(tenant, bucket, "k", X_MQ_Hops="x")).problem(400, "invalid-parameter")
    assert len(await messages_of(tenant)) == 3


async def test_a_record_of_before_change_streams_is_readable(gateway: Gateway, tenant: Tenant) -> None:
    await make_bucket(tenant)
    record = gateway.node.platform.use(BucketsCapability).lifecycle.cached(tenant.id, "cart")
    stored = msgspec.to_builtins(record)
    del stored["changeStream"], stored["settings"]["change_stream_topic"], stored["settings"]["change_stream_from"]
    assert msgspec.convert(stored, type(record)) == record
