"""Bucket lifecycle: create, update, list, delete, recover; storage and access."""

from typing import Any

import msgspec
import pytest

from postroad.buckets.capability import BucketsCapability
from postroad.buckets.lifecycle import BUCKETS_BUCKET, bucket_key
from postroad.buckets.records import BucketRecord
from postroad.jetstream import stream_lifecycle
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.management import stream_info
from postroad.jetstream.storage_budget import StoreBudget, TenantBudget
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.names import bucket_store
from tests.buckets.test_values import keys_of, make_bucket, put
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

DEFAULTS = {
    "history": 1,
    "ttlSeconds": 0,
    "maxBytes": 0,
    "maxValueBytes": 0,
    "replicas": None,
    "geo": None,
    "change_stream_topic": None,
    "change_stream_from": "new",
}


async def config_of(gateway: Gateway, tenant: Tenant, name: str = "cart") -> dict[str, Any] | None:
    info = await stream_info(gateway.node.platform.connection, f"KV_{bucket_store(tenant.id, name)}")
    return None if info is None else dict(info.config)


async def test_a_bucket_is_created_with_default_settings(gateway: Gateway, tenant: Tenant) -> None:
    made = (await tenant.client.post("/v1/buckets", {"name": "cart"})).ok(201)
    assert (made["name"], made["settings"], made["replicas"]) == ("cart", DEFAULTS, 1)
    assert made["natsBucket"] == f"{tenant.id}__cart"
    config = await config_of(gateway, tenant)
    assert config is not None
    assert config["name"] == f"KV_{tenant.id}__cart" and config["subjects"] == [f"$KV.{tenant.id}__cart.>"]
    assert (config["max_msgs_per_subject"], config["discard"], config["deny_delete"]) == (1, "new", True)
    assert (await tenant.client.post("/v1/buckets", {"name": "cart"})).ok(200) == made
    (await tenant.client.post("/v1/buckets", {"name": "cart", "history": 2})).problem(409, "already-exists")


async def test_copies_and_any_place_are_accepted_on_a_single_server(tenant: Tenant) -> None:
    made = (await tenant.client.post("/v1/buckets", {"name": "cart", "replicas": 3, "geo": "auto"})).ok(201)
    assert (made["settings"]["replicas"], made["settings"]["geo"], made["replicas"]) == (3, "auto", 1)
    (await tenant.client.post("/v1/buckets", {"name": "other", "geo": "eu"})).problem(422, "invalid-body")


async def test_settings_are_changed_and_reach_the_engine(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=5, maxBytes=1_000_000)
    for value in (b"1", b"2", b"3"):
        (await put(tenant, bucket, "k", value)).ok()
    changed = (await tenant.client.patch(bucket, {"history": 2, "maxBytes": None, "ttlSeconds": 3600})).ok()
    assert changed["settings"] == {**DEFAULTS, "history": 2, "ttlSeconds": 3600}
    config = await config_of(gateway, tenant)
    assert config is not None
    assert (config["max_msgs_per_subject"], config["max_age"], config["max_bytes"]) == (2, 3600 * 10**9, -1)
    kept = (await tenant.client.get(f"{bucket}/history/k")).ok()["entries"]
    assert [one["revision"] for one in kept] == [2, 3]
    stats = (await tenant.client.get(bucket)).ok()["stats"]
    assert (stats["keys"], stats["revisions"], stats["lastRevision"]) == (1, 2, 3)
    (await tenant.client.patch("/v1/buckets/none", {"history": 2})).problem(404, "bucket-not-found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "_own"},
        {"name": "a b"},
        {"name": "a", "history": 0},
        {"name": "a", "history": 65},
        {"name": "a", "replicas": 2},
        {"name": "a", "ttlSeconds": -1},
        {"name": "a", "unknown": 1},
    ],
)
async def test_invalid_settings_are_refused(tenant: Tenant, body: dict[str, Any]) -> None:
    (await tenant.client.post("/v1/buckets", body)).problem(422, "invalid-body")
    assert (await tenant.client.get("/v1/buckets")).ok()["buckets"] == []


async def test_buckets_are_listed_in_pages_and_filtered(tenant: Tenant) -> None:
    for name in ("a", "b", "b.c"):
        await make_bucket(tenant, name)
    first = (await tenant.client.get("/v1/buckets?limit=2")).ok()
    assert [one["name"] for one in first["buckets"]] == ["a", "b"]
    rest = (await tenant.client.get(f"/v1/buckets?cursor={first['nextCursor']}")).ok()
    assert [one["name"] for one in rest["buckets"]] == ["b.c"]
    assert [one["name"] for one in (await tenant.client.get("/v1/buckets?name=b*")).ok()["buckets"]] == ["b", "b.c"]


async def test_a_deleted_bucket_is_gone_and_can_be_created_again(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "k")).ok()
    assert (await tenant.client.delete(bucket)).status == 204
    assert await config_of(gateway, tenant) is None
    (await tenant.client.get(bucket)).problem(404, "bucket-not-found")
    (await put(tenant, bucket, "k")).problem(404, "bucket-not-found")
    (await tenant.client.delete(bucket)).problem(404, "bucket-not-found")
    await make_bucket(tenant)
    assert await keys_of(tenant, bucket) == []

    async def are_reported() -> bool:
        events = [one for stream in ("TELEMETRY",) for one in await tenant.events(stream) if one["event"] == "bucket.changed"]
        return [one["change"] for one in events] == ["created", "deleted", "created"]

    await eventually(are_reported)


@pytest.mark.parametrize("state", [RecordState.CREATING, RecordState.DELETING])
async def test_an_interrupted_operation_is_finished(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, state: RecordState
) -> None:
    """As after a kill -9 between the record and the stream."""
    monkeypatch.setattr(stream_lifecycle, "_RECOVER_SECONDS", 0.1)
    bucket = await make_bucket(tenant)
    platform = gateway.node.platform
    lifecycle = platform.use(BucketsCapability).lifecycle
    record = await lifecycle.find(tenant.id, "cart")
    stuck = msgspec.structs.replace(record, state=state)
    table = Bucket(platform.connection, BUCKETS_BUCKET, platform.committers)
    await table.put(bucket_key(tenant.id, "cart"), msgspec.json.encode(stuck))
    await eventually(lambda: lifecycle.cached(tenant.id, "cart") is None)
    found = await tenant.client.get(bucket)
    assert found.status == (200 if state is RecordState.CREATING else 404)
    assert (await config_of(gateway, tenant) is None) is (state is RecordState.DELETING)


async def test_a_record_of_a_newer_version_is_readable() -> None:
    text = (
        b'{"v":1,"state":"ready","tenant":"t","name":"n","incarnation":"i","createdAtMs":1,"updatedAtMs":1,'
        b'"settings":{"history":2,"new":1},"more":true}'
    )
    record = msgspec.json.decode(text, type=BucketRecord)
    assert (record.settings.history, record.stream) == (2, "KV_t__n")


async def test_the_number_of_buckets_is_limited(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, buckets_per_tenant_max=1)) as gateway:
        tenant = await gateway.tenant()
        await make_bucket(tenant)
        (await tenant.client.post("/v1/buckets", {"name": "more"})).problem(403, "forbidden")


async def test_values_count_as_the_tenants_storage_and_registries_do_not(gateway: Gateway, tenant: Tenant) -> None:
    storage = gateway.node.platform.committers.storage
    bucket = await make_bucket(tenant)
    before = storage.of_tenant(tenant.id).used
    (await put(tenant, bucket, "k", b"x" * 10_000)).ok()
    assert storage.of_tenant(tenant.id).used >= before + 10_000
    assert isinstance(storage.of_stream(f"KV_{tenant.id}__cart"), TenantBudget)
    assert isinstance(storage.of_stream("KV_postroad_topics"), StoreBudget)
    storage.of_tenant(tenant.id).quota = storage.of_tenant(tenant.id).used
    (await put(tenant, bucket, "k2")).problem(429, "storage-quota-exceeded")
    (await tenant.client.delete(f"{bucket}/keys/k")).ok()


async def test_tenants_do_not_share_buckets(gateway: Gateway, tenant: Tenant) -> None:
    bucket, other = await make_bucket(tenant), await gateway.tenant()
    (await put(tenant, bucket, "k", b"mine")).ok()
    (await other.client.get(f"{bucket}/keys/k")).problem(404, "bucket-not-found")
    assert (await other.client.get("/v1/buckets")).ok()["buckets"] == []
    await make_bucket(other)
    (await other.client.get(f"{bucket}/keys/k")).problem(404, "bucket-key-not-found")


async def test_a_restricted_key_uses_its_buckets_only(tenant: Tenant) -> None:
    await make_bucket(tenant, "cart-eu")
    await make_bucket(tenant, "secret")
    narrow = await tenant.another_key(allowed_buckets=("cart-*",))
    (await put(narrow, "/v1/buckets/cart-eu", "k")).ok()
    (await put(narrow, "/v1/buckets/secret", "k")).problem(403, "forbidden")
    (await narrow.client.post("/v1/buckets", {"name": "other"})).problem(403, "forbidden")
    assert [one["name"] for one in (await narrow.client.get("/v1/buckets")).ok()["buckets"]] == ["cart-eu"]
