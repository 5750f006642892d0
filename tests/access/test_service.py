import asyncio

import msgspec
import pytest

from postroad.access.keys import PLATFORM_PREFIX, KeyRecord, key_hash, new_key
from postroad.access.service import FIRST_TENANT, KEYS_BUCKET, Access, make_first_tenant
from postroad.assembly import connected, prepare_engine, registry_of
from postroad.engine import log
from postroad.engine.bucket import Bucket
from postroad.kernel.caller import ALL_SCOPES, Caller, Scope
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict, InvalidParameter, TenantNotFound, Unauthenticated
from postroad.kernel.ids import new_id
from tests.gateway import Gateway, ShiftedClock, Tenant, gateway_settings
from tests.servers import Server
from tests.waiting import eventually


def keys_bucket(gateway: Gateway) -> Bucket:
    return Bucket(gateway.node.engine.link, KEYS_BUCKET, gateway.node.engine.committers)


async def is_refused(access: Access, key: str) -> bool:
    try:
        await access.authenticate(key, None)
    except Unauthenticated:
        return True
    return False


# Keys


async def test_a_key_stands_for_its_tenant_its_id_and_its_scopes(gateway: Gateway, tenant: Tenant) -> None:
    key = await tenant.another_key((Scope.PUBLISH, Scope.READ))
    caller = await gateway.node.access.authenticate(key.key, None)
    assert caller == Caller(tenant.id, key.record.id, frozenset({Scope.PUBLISH, Scope.READ}))
    assert not caller.is_platform


async def test_only_the_hash_of_a_key_is_stored(gateway: Gateway, tenant: Tenant) -> None:
    assert (await tenant.client.get("/v1/queues")).status == 200
    bucket = keys_bucket(gateway)
    stored, following, is_end = b"", 1, False
    while not is_end:
        page = await log.read(gateway.node.engine.link, bucket.stream, f"$KV.{KEYS_BUCKET}.>", following, 1000)
        stored += b"".join(repr(entry).encode() for entry in page.entries)
        following, is_end = page.next_sequence, page.is_end
    assert key_hash(tenant.key).encode() in stored, "this reads what is stored"
    for key in (tenant.key, gateway.admin_key):
        assert key.encode() not in stored
        assert key.removeprefix("pr_live_").removeprefix("pr_admin_")[:20].encode() not in stored


async def test_a_key_that_nobody_made_is_refused_without_a_reason(gateway: Gateway) -> None:
    for key in ("", "x", new_key(), new_key(PLATFORM_PREFIX), "\xe9"):
        with pytest.raises(Unauthenticated) as refused:
            await gateway.node.access.authenticate(key, None)
        assert refused.value.detail == "the key is not valid"


async def test_a_key_is_good_until_it_expires(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    expires = clock() + 1_000_000
    key = (await tenant.another_key(expires_at_ms=expires)).key
    assert not await is_refused(gateway.node.access, key)
    clock.ahead_ms = 1_000_000
    assert await is_refused(gateway.node.access, key)


async def test_a_key_can_be_added_once(gateway: Gateway, tenant: Tenant) -> None:
    with pytest.raises(Conflict):
        await gateway.node.access.add_key(tenant.key, "another-tenant", "again")
    assert (await gateway.node.access.authenticate(tenant.key, None)).tenant == tenant.id


async def test_a_key_that_one_process_made_works_on_every_other_at_once(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    assert (await second_gateway.seen_by(tenant).client.get("/v1/queues")).status == 200


async def test_a_key_that_is_taken_away_stops_working_everywhere_within_a_second(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    elsewhere = second_gateway.seen_by(tenant)
    assert [(await one.client.get("/v1/queues")).status for one in (tenant, elsewhere)] == [200, 200]
    await keys_bucket(gateway).delete(key_hash(tenant.key))

    async def is_gone() -> bool:
        return [(await one.client.get("/v1/queues")).status for one in (tenant, elsewhere)] == [401, 401]

    await eventually(is_gone, 1)


async def test_a_key_that_is_changed_counts_as_changed_within_a_second(gateway: Gateway, tenant: Tenant) -> None:
    bucket = keys_bucket(gateway)
    assert (await tenant.client.get("/v1/queues")).status == 200

    async def change(**changes: object) -> None:
        changed = msgspec.structs.replace(tenant.record, **changes)
        await bucket.put(key_hash(tenant.key), msgspec.json.encode(changed))

    async def status() -> int:
        return (await tenant.client.get("/v1/queues")).status

    async def becomes(expected: int) -> None:
        async def is_so() -> bool:
            return await status() == expected

        await eventually(is_so, 1)

    await change(scopes=(Scope.PUBLISH,))
    await becomes(403)
    await change(is_enabled=False)
    await becomes(401)
    await change()
    await becomes(200)


# The platform's keys


async def test_a_platform_key_names_the_tenant(gateway: Gateway, tenant: Tenant) -> None:
    await tenant.queue("only-here")
    answer = await gateway.admin.get("/v1/queues", headers={"X-Postroad-Tenant": tenant.id})
    assert [queue["name"] for queue in answer.ok()["queues"]] == ["only-here"]


async def test_a_platform_key_may_do_everything_for_the_tenant(gateway: Gateway, tenant: Tenant) -> None:
    caller = await gateway.node.access.authenticate(gateway.admin_key, tenant.id)
    assert (caller.tenant, caller.scopes, caller.is_platform) == (tenant.id, frozenset(ALL_SCOPES), True)
    admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    assert (await admin.put("/v1/queues/q")).status == 201
    (await admin.post("/v1/queues/q/messages", {"payload": "from the platform"})).ok(201)
    assert [message["payload"] for message in await tenant.pull("/v1/queues/q")] == ["from the platform"]


async def test_a_platform_key_that_names_no_tenant_means_the_first_one(gateway: Gateway) -> None:
    assert (await gateway.node.access.authenticate(gateway.admin_key, None)).tenant == FIRST_TENANT


@pytest.mark.parametrize("name", ["no-such", "NOT A NAME", "queues", "x" * 33, "../default"])
async def test_a_platform_key_for_a_tenant_that_is_not_there_is_told_so(gateway: Gateway, name: str) -> None:
    (await gateway.admin.get("/v1/queues", headers={"X-Postroad-Tenant": name})).problem(404, "tenant-not-found")
    with pytest.raises(TenantNotFound):
        await gateway.node.access.authenticate(gateway.admin_key, name)


async def test_a_tenants_key_cannot_name_another_tenant(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    await other.queue("theirs")
    (await tenant.client.get("/v1/queues", headers={"X-Postroad-Tenant": other.id})).problem(403, "forbidden")
    (await tenant.client.get("/v1/queues/theirs", headers={"X-Postroad-Tenant": other.id})).problem(403, "forbidden")


async def test_a_tenants_key_may_name_its_own_tenant(tenant: Tenant) -> None:
    assert (await tenant.client.get("/v1/queues", headers={"X-Postroad-Tenant": tenant.id})).status == 200


# Tenants


async def test_there_is_one_tenant_of_a_name(gateway: Gateway, tenant: Tenant) -> None:
    with pytest.raises(Conflict):
        await gateway.node.access.create_tenant(tenant.id)


@pytest.mark.parametrize("name", ["queues", "telemetry", "Upper", "-x", "", "a.b", "a_b", "_platform", "x" * 33, "a>"])
async def test_a_tenant_has_a_name_that_cannot_be_mistaken(gateway: Gateway, name: str) -> None:
    with pytest.raises(InvalidParameter):
        await gateway.node.access.create_tenant(name)


async def test_tenants_know_nothing_of_each_others_queues(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    mine, theirs = await tenant.queue("orders"), await other.queue("orders")
    await tenant.publish(mine, "mine")
    await other.publish(theirs, "theirs")
    [my_message], [their_message] = await tenant.pull(mine, 10), await other.pull(theirs, 10)
    assert (my_message["payload"], their_message["payload"]) == ("mine", "theirs")

    (await other.ack(theirs, my_message["receiptId"])).problem(400, "receipt-invalid")
    (await tenant.ack(mine, their_message["receiptId"])).problem(400, "receipt-invalid")

    await other.queue("secret")
    (await tenant.client.get("/v1/queues/secret")).problem(404, "queue-not-found")
    (await tenant.client.post("/v1/queues/secret/pull", {})).problem(404, "queue-not-found")
    (await tenant.client.post("/v1/queues/secret/messages", {"payload": 1})).problem(404, "queue-not-found")
    (await tenant.client.post("/v1/queues/secret/ack", {"receiptId": "x"})).problem(404, "queue-not-found")
    (await tenant.client.delete("/v1/queues/secret")).problem(404, "queue-not-found")
    assert [queue["name"] for queue in (await tenant.client.get("/v1/queues")).ok()["queues"]] == ["orders"]

    assert (await tenant.client.delete(mine)).status == 204
    assert await other.stats(theirs) == {"ready": 0, "leased": 1, "delayed": 0}
    assert (await other.ack(theirs, their_message["receiptId"])).ok() == {"ok": True}


async def test_a_tenant_whose_name_begins_with_anothers_is_another(gateway: Gateway, tenant: Tenant) -> None:
    longer = f"{tenant.id}-2"
    await gateway.node.access.create_tenant(longer)
    other = await gateway.key_of(longer)
    await other.queue("theirs")
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []


async def test_one_tenants_idempotency_keys_are_not_anothers(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    first = await tenant.publish(await tenant.queue(), 1, idempotencyKey="same")
    second = await other.publish(await other.queue(), 2, idempotencyKey="same")
    assert first["messageId"] != second["messageId"]


# The first start


async def test_the_first_start_makes_a_tenant_that_can_publish_at_once_and_a_platform_key(own_server: Server) -> None:
    settings = gateway_settings(own_server.url)
    tenant_key, admin_key = new_key(), new_key(PLATFORM_PREFIX)
    async with connected(settings, "tests") as engine:
        await prepare_engine(engine, settings)
        registry = registry_of(engine)
        access = Access(registry.tenants, registry.keys, now_ms)
        # An earlier start was interrupted after the first of its three writes.
        await access.add_key(tenant_key, FIRST_TENANT, "first key")

        assert await make_first_tenant(access, tenant_key=tenant_key, admin_key=admin_key) is True
        record = await access.tenant(FIRST_TENANT)
        assert record is not None and record.auto_create_queues
        assert (await access.authenticate(tenant_key, None)).scopes == frozenset(ALL_SCOPES)
        assert (await access.authenticate(admin_key, None)).is_platform

        assert await make_first_tenant(access, tenant_key=new_key(), admin_key=new_key(PLATFORM_PREFIX)) is False


async def test_many_first_starts_at_once_agree_on_one_tenant(own_server: Server) -> None:
    settings = gateway_settings(own_server.url)
    keys = {"tenant_key": new_key(), "admin_key": new_key(PLATFORM_PREFIX)}
    async with connected(settings, "tests") as engine:
        await prepare_engine(engine, settings)

        async def start() -> None:
            registry = registry_of(engine)
            await make_first_tenant(Access(registry.tenants, registry.keys, now_ms), **keys)

        await asyncio.gather(*[start() for _ in range(5)])
        registry = registry_of(engine)
        access = Access(registry.tenants, registry.keys, now_ms)
        assert (await access.authenticate(keys["tenant_key"], None)).tenant == FIRST_TENANT


async def test_a_key_of_a_later_format_with_more_fields_is_read(gateway: Gateway, tenant: Tenant) -> None:
    key = new_key()
    record = KeyRecord(id=new_id(), tenant=tenant.id, name="new", scopes=ALL_SCOPES, created_at_ms=0)
    stored = {**msgspec.to_builtins(record), "allowedQueues": ["orders.*"]}
    await keys_bucket(gateway).create(key_hash(key), msgspec.json.encode(stored))
    assert (await gateway.node.access.authenticate(key, None)).tenant == tenant.id
