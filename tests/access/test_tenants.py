"""Tenant lifecycle over HTTP: create, list, disable, delete with all resources."""

import asyncio
from typing import Any

import pytest

from postroad.access.records import KEYS_BUCKET, SECRETS_BUCKET, TenantRecord
from postroad.access.tenants import Tenants, reserved_words
from postroad.governance.tenant_settings import SETTINGS_BUCKET
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.management import stream_info
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.names import RESERVED, queue_stream
from postroad.telemetry.frames import STREAMS
from tests.access.control import SECRETS, SETTINGS, TENANTS, WHOAMI, becomes, fresh, new_key_by, patch, status_of
from tests.commands.senders import grant, register_sender, register_target
from tests.described import ROUTES
from tests.gateway import Client, Gateway, Tenant, frames_of
from tests.waiting import eventually


def within(gateway: Gateway, tenant: str) -> Client:
    return gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant})


async def is_gone(gateway: Gateway, name: str) -> bool:
    return (await gateway.admin.get(f"{TENANTS}/{name}")).status == 404


ROUTE_WORDS = reserved_words(route.path for route in ROUTES)


async def test_a_tenant_is_created_and_shown(gateway: Gateway, second_gateway: Gateway) -> None:
    name = fresh()
    made = (await gateway.admin.post(TENANTS, {"id": name, "description": "d", "autoCreateQueues": True})).ok(201)
    assert made.keys() == {"id", "state", "description", "createdAt", "updatedAt"}
    assert (made["id"], made["state"], made["description"]) == (name, "ready", "d")
    for one in (gateway, second_gateway):
        assert (await one.admin.get(f"{TENANTS}/{name}")).ok() == made
    key, _ = await new_key_by(within(gateway, name))
    client = gateway.with_key(key)
    assert (await client.get(SETTINGS)).ok()["settings"]["autoCreateQueues"] is True
    assert (await client.post("/v1/queues/q/messages", {"payload": 1})).status == 201


async def test_a_tenant_id_is_unique(gateway: Gateway, second_gateway: Gateway) -> None:
    name = fresh()
    answers = await asyncio.gather(*[one.admin.post(TENANTS, {"id": name}) for one in (gateway, second_gateway) * 3])
    assert sorted(answer.status for answer in answers) == [201] + [409] * 5
    (await gateway.admin.post(TENANTS, {"id": name})).problem(409, "already-exists")
    (await gateway.admin.post(TENANTS, {"id": "default"})).problem(409, "already-exists")


INVALID_IDS = ["Upper", "-x", "", "a.b", "a_b", "_platform", "x" * 33, "a>", "a b", "\xe9", "a\n", 5, None]


@pytest.mark.parametrize("name", [*sorted(RESERVED | ROUTE_WORDS), *INVALID_IDS])
async def test_an_invalid_or_reserved_tenant_id_is_refused(gateway: Gateway, name: object) -> None:
    problem = (await gateway.admin.post(TENANTS, {"id": name})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.id"


def test_reserved_words_are_the_literals_where_a_project_can_stand() -> None:
    paths = ["/v1/{project}/stream/{stream}", "/v1/stream/{stream}", "/v1/widgets", "/api/control/keys", "/healthz", "/v1/{x}/a"]
    assert reserved_words(paths) == {"stream", "widgets"}
    assert {"queues", "schedules", "stream", "jobs", "tasks", "tokens", "admin", "insights", "telemetry", "whoami"} <= ROUTE_WORDS


@pytest.mark.parametrize("name", ["no-such", "NOT", "x" * 33, "queues", "_platform", "*"])
async def test_an_unknown_tenant_is_not_found(gateway: Gateway, name: str) -> None:
    (await gateway.admin.get(f"{TENANTS}/{name}")).problem(404, "tenant-not-found")
    (await patch(gateway.admin, f"{TENANTS}/{name}", enabled=True)).problem(404, "tenant-not-found")
    (await gateway.admin.delete(f"{TENANTS}/{name}")).problem(404, "tenant-not-found")


async def test_tenants_are_listed_in_pages(gateway: Gateway) -> None:
    prefix = fresh("page")
    names = [f"{prefix}-{number}" for number in range(5)]
    for name in reversed(names):
        (await gateway.admin.post(TENANTS, {"id": name})).ok(201)
    found: list[str] = []
    page: dict[str, Any] = {"nextCursor": prefix}
    while page["nextCursor"] is not None and len(found) < 5:
        page = (await gateway.admin.get(f"{TENANTS}?limit=2&cursor={page['nextCursor']}")).ok()
        assert len(page["tenants"]) <= 2
        found += [tenant["id"] for tenant in page["tenants"]]
    assert found[:5] == names


async def test_tenants_need_a_platform_key(gateway: Gateway, tenant: Tenant) -> None:
    for call in (
        tenant.client.get(TENANTS),
        tenant.client.post(TENANTS, {"id": fresh()}),
        tenant.client.get(f"{TENANTS}/{tenant.id}"),
        patch(tenant.client, f"{TENANTS}/{tenant.id}", description="mine"),
        tenant.client.delete(f"{TENANTS}/{tenant.id}"),
    ):
        (await call).problem(403, "forbidden")


async def test_a_disabled_tenants_keys_are_refused_everywhere_until_it_is_enabled(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    everywhere = [tenant.client, second_gateway.seen_by(tenant).client]
    assert [await status_of(one) for one in everywhere] == [200, 200]
    changed = (await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=False)).ok()
    assert changed["state"] == "disabled"
    await becomes(403, *everywhere)
    for one in everywhere:
        (await one.get(WHOAMI)).problem(403, "tenant-disabled")
        (await one.post("/v1/queues/q/messages", {"payload": 1})).problem(403, "tenant-disabled")
    assert (await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=True)).ok()["state"] == "ready"
    await becomes(200, *everywhere)


async def test_omitted_fields_keep_their_value(gateway: Gateway, tenant: Tenant) -> None:
    path = f"{TENANTS}/{tenant.id}"
    await patch(gateway.admin, path, description="first")
    assert (await patch(gateway.admin, path, enabled=False)).ok()["description"] == "first"
    assert (await patch(gateway.admin, path, description="second")).ok()["state"] == "disabled"


async def test_the_default_tenant_cannot_be_disabled_or_deleted(gateway: Gateway) -> None:
    (await patch(gateway.admin, f"{TENANTS}/default", enabled=False)).problem(409, "precondition-failed")
    (await gateway.admin.delete(f"{TENANTS}/default")).problem(409, "precondition-failed")
    assert (await gateway.admin.get(f"{TENANTS}/default")).ok()["state"] == "ready"


async def test_a_deleted_tenant_is_removed_with_all_its_resources(
    gateway: Gateway, second_gateway: Gateway, control: Gateway, tenant: Tenant
) -> None:
    engine = gateway.node.platform
    queues = ["orders", "in.voices"]
    for name in queues:
        await tenant.publish(await tenant.queue(name), 1)
    secret = (await tenant.client.post(SECRETS, {"name": "s"})).ok(201)["record"]["id"]
    text, record = await new_key_by(tenant.client)
    (await tenant.client.post(SETTINGS, {"auditMode": "off"})).ok()
    stored = {
        KEYS_BUCKET: record["id"],
        SECRETS_BUCKET: f"{tenant.id}.{secret}",
        SETTINGS_BUCKET: tenant.id,
    }
    for bucket, key in stored.items():
        assert await Bucket(engine.connection, bucket, engine.committers).get(key), bucket

    deleting = (await gateway.admin.delete(f"{TENANTS}/{tenant.id}")).ok(202)
    assert deleting["state"] == "deleting"
    assert await status_of(gateway.with_key(text)) in (401, 403)
    await eventually(lambda: is_gone(control, tenant.id))

    for bucket, key in stored.items():
        assert await Bucket(engine.connection, bucket, engine.committers).get(key) is None, bucket
    for name in queues:
        assert await stream_info(engine.connection, queue_stream(tenant.id, name)) is None
    await becomes(401, gateway.with_key(text), second_gateway.with_key(text), tenant.client)


async def test_the_frames_of_a_deleted_tenant_are_removed(gateway: Gateway, control: Gateway, tenant: Tenant) -> None:
    """They have its events, and the payloads of archived commands and messages. Those of other tenants stay."""
    other, connection = await gateway.tenant(), gateway.node.platform.connection
    for one in (tenant, other):
        await one.publish(await one.queue("archived", archive=True), "secret")
        await register_target(one)
        sender = await register_sender(one)
        await grant(one, sender.source)
        (await sender.send(payload=b'"secret"')).ok(202)
    await gateway.node.platform.outbox.drain()
    for stream in ("COMMANDS", "JOBS"):
        assert any(b"secret" in frame for frame in await frames_of(connection, stream, tenant.id))
    others = {stream: await frames_of(connection, stream, other.id) for stream in STREAMS}
    (await gateway.admin.delete(f"{TENANTS}/{tenant.id}")).ok(202)
    await eventually(lambda: is_gone(control, tenant.id))
    for stream in STREAMS:
        assert not [frame for frame in await frames_of(connection, stream, tenant.id) if b"secret" in frame], stream
        assert (await frames_of(connection, stream, other.id))[: len(others[stream])] == others[stream]
    assert await frames_of(connection, "COMMANDS", tenant.id) == []


async def test_the_id_of_a_deleted_tenant_cannot_be_used_again(gateway: Gateway, control: Gateway, tenant: Tenant) -> None:
    """A new tenant would see the audit log and events of the old one."""
    await gateway.admin.delete(f"{TENANTS}/{tenant.id}")
    await eventually(lambda: is_gone(control, tenant.id))
    answer = await gateway.admin.post(TENANTS, {"id": tenant.id})
    assert "cannot be used twice" in answer.problem(409, "already-exists")["detail"]
    listed = (await gateway.admin.get(f"{TENANTS}?limit=1000")).ok()["tenants"]
    assert tenant.id not in [one["id"] for one in listed]
    (await within(gateway, tenant.id).get("/v1/queues")).problem(404, "tenant-not-found")


async def test_a_tenant_that_is_being_deleted_cannot_be_changed(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(_tenants: Tenants, _name: str) -> None:
        return

    monkeypatch.setattr(Tenants, "_delete_resources", wait)
    await gateway.admin.delete(f"{TENANTS}/{tenant.id}")
    path = f"{TENANTS}/{tenant.id}"
    (await patch(gateway.admin, path, enabled=True)).problem(409, "precondition-failed")
    assert (await gateway.admin.delete(path)).ok(202)["state"] == "deleting"
    (await tenant.client.get(WHOAMI)).problem(403, "tenant-disabled")
    (await gateway.admin.post(TENANTS, {"id": tenant.id})).problem(409, "already-exists")


async def test_an_interrupted_deletion_is_resumed(gateway: Gateway, tenant: Tenant) -> None:
    """The record changes last, so that an interrupted deletion is repeated."""
    await tenant.queue("orders")
    tenants = gateway.node.access.tenants
    tries: list[str] = []
    real = list(tenants.deleters)

    async def fail_first(name: str) -> None:
        tries.append(name)
        if len(tries) == 1:
            raise EngineUnavailable("pulled out")

    tenants.deleters = [*real[:1], fail_first, *real[1:]]
    try:
        await tenants._delete_resources(tenant.id)
        assert isinstance(await tenants.find(tenant.id), TenantRecord)
        await tenants._delete_resources(tenant.id)
        assert await is_gone(gateway, tenant.id)
    finally:
        tenants.deleters = real
    assert tries == [tenant.id] * 2


# Tenants among each other


async def test_tenants_do_not_see_each_others_queues(gateway: Gateway, tenant: Tenant) -> None:
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


async def test_a_tenant_whose_id_has_another_as_prefix_is_separate(gateway: Gateway, control: Gateway, tenant: Tenant) -> None:
    longer = f"{tenant.id}-2"
    (await gateway.admin.post(TENANTS, {"id": longer})).ok(201)
    other = await gateway.key_of(longer)
    await other.queue("theirs")
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []
    await gateway.admin.delete(f"{TENANTS}/{tenant.id}")
    await eventually(lambda: is_gone(control, tenant.id))
    assert [queue["name"] for queue in (await other.client.get("/v1/queues")).ok()["queues"]] == ["theirs"]


async def test_idempotency_keys_are_per_tenant(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    first = await tenant.publish(await tenant.queue(), 1, idempotencyKey="same")
    second = await other.publish(await other.queue(), 2, idempotencyKey="same")
    assert first["messageId"] != second["messageId"]


async def test_a_platform_key_acts_in_the_tenant_that_it_names(gateway: Gateway, tenant: Tenant) -> None:
    admin = within(gateway, tenant.id)
    assert (await admin.put("/v1/queues/q")).status == 201
    (await admin.post("/v1/queues/q/messages", {"payload": "from the platform"})).ok(201)
    assert [message["payload"] for message in await tenant.pull("/v1/queues/q")] == ["from the platform"]
