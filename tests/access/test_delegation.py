"""Credentials that a key creates: they can do no more than the key, and end with it."""

import asyncio
from typing import Any

import msgspec
import pytest

from postroad.access.records import SecretRecord
from postroad.crypto.secret_encryption import SecretCipher
from postroad.kernel.identity import ALL_SCOPES, Scope, common_globs, is_within
from tests.access.control import AT_ONCE, EVERY_SCOPE, INVITES, KEYS, SECRETS, WHOAMI, becomes, ends, new_key_by, patch, stamp
from tests.access.test_jwts import OTHER, SECRET, add_secret, as_user, claims, signed
from tests.gateway import Client, Gateway, ShiftedClock, Tenant
from tests.waiting import eventually

HOUR_MS = 3_600_000
CHAT = "/v1/stream/chat-1"


def reader(gateway: Gateway, tenant: Tenant, **more: object) -> Client:
    """A user with a JWT that may read and write everything, as far as its secret allows."""
    text = signed(claims(gateway, scope="read write", **more))
    return gateway.with_key(text).with_headers(**{"X-Postroad-Tenant": tenant.id})


async def stream(tenant: Tenant, path: str = CHAT) -> None:
    assert (await tenant.client.call("PUT", path, headers={"Content-Type": "text/plain"})).status == 201


# JWT secrets


@pytest.mark.parametrize(
    ("scopes", "wanted"),
    [((Scope.ADMIN, Scope.READ), {}), ((Scope.ADMIN,), {"scopes": ["read"]}), (ALL_SCOPES, {"scopes": ["read"]})],
)
async def test_a_jwt_has_no_scope_that_its_secret_lacks(
    gateway: Gateway, tenant: Tenant, scopes: tuple[Scope, ...], wanted: dict[str, Any]
) -> None:
    await stream(tenant)
    admin = await tenant.another_key(scopes)
    await add_secret(admin, **wanted)
    user = reader(gateway, tenant)
    assert (await user.get(WHOAMI)).ok()["scopes"] == ["read"]
    assert (await user.get(CHAT)).status == 200
    (await user.post(CHAT, data=b"x", headers={"Content-Type": "text/plain"})).problem(403, "forbidden")


async def test_a_key_that_may_neither_read_nor_write_names_the_scopes_of_a_secret(gateway: Gateway, tenant: Tenant) -> None:
    admin = await tenant.another_key((Scope.ADMIN, Scope.PUBLISH))
    problem = (await admin.client.post(SECRETS, {"name": "s"})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.scopes"
    (await admin.client.post(SECRETS, {"name": "s", "scopes": ["admin"]})).problem(422, "invalid-body")
    (await admin.client.post(SECRETS, {"name": "s", "scopes": []})).problem(422, "invalid-body")
    await add_secret(admin, scopes=["write", "read"])
    assert (await reader(gateway, tenant).get(WHOAMI)).ok()["scopes"] == ["read", "write"]


async def test_jwts_lose_a_scope_that_the_creator_of_their_secret_can_no_longer_grant(gateway: Gateway, tenant: Tenant) -> None:
    await stream(tenant)
    admin = await tenant.another_key((Scope.ADMIN,))
    await add_secret(admin, scopes=["read", "write"])
    user = reader(gateway, tenant)
    async with user.events(f"{CHAT}?offset=-1&live=sse") as opened:
        await patch(tenant.client, f"{KEYS}/{admin.record.id}", scopes=["read"])
        await ends(opened)
    assert (await user.get(WHOAMI)).ok()["scopes"] == ["read"]


@pytest.mark.parametrize("claimed", [None, "secret-1"])
async def test_a_jwt_has_no_stream_that_the_creator_of_its_secret_may_not_use(
    gateway: Gateway, tenant: Tenant, claimed: str | None
) -> None:
    await stream(tenant)
    await stream(tenant, "/v1/stream/secret-1")
    admin = await tenant.another_key(allowed_streams=("chat-*",))
    await add_secret(admin)
    user = reader(gateway, tenant, stream_id=claimed)
    (await user.get("/v1/stream/secret-1")).problem(403, "forbidden")
    if claimed is None:
        assert (await user.get(WHOAMI)).ok()["allowedStreams"] == ["chat-*"]
        assert (await user.get(CHAT)).status == 200


async def test_a_secret_is_listed_with_its_creator_and_what_its_jwts_can_do(tenant: Tenant) -> None:
    admin = await tenant.another_key((Scope.ADMIN, Scope.READ), allowed_streams=("chat-*",))
    await add_secret(admin)
    [listed] = (await tenant.client.get(SECRETS)).ok()["secrets"]
    assert (listed["createdBy"], listed["scopes"], listed["allowedStreams"]) == (admin.record.id, ["read"], ["chat-*"])


async def test_jwts_end_on_every_gateway_when_the_creator_of_their_secret_is_disabled_or_deleted(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    admin = await tenant.another_key()
    await add_secret(admin)
    everywhere = [reader(one, tenant) for one in (gateway, second_gateway)]
    await becomes(200, *everywhere)
    await patch(tenant.client, f"{KEYS}/{admin.record.id}", enabled=False)
    await becomes(401, *everywhere)
    await patch(tenant.client, f"{KEYS}/{admin.record.id}", enabled=True)
    await becomes(200, *everywhere)
    await tenant.client.delete(f"{KEYS}/{admin.record.id}")
    await becomes(401, *everywhere)


async def test_a_live_read_with_a_jwt_ends_with_the_creator_of_its_secret(gateway: Gateway, tenant: Tenant) -> None:
    await stream(tenant)
    admin = await tenant.another_key()
    await add_secret(admin)
    async with reader(gateway, tenant).events(f"{CHAT}?offset=-1&live=sse") as opened:
        await tenant.client.delete(f"{KEYS}/{admin.record.id}")
        await ends(opened)


async def test_jwts_follow_a_later_restriction_of_the_creator(gateway: Gateway, tenant: Tenant) -> None:
    await stream(tenant)
    admin = await tenant.another_key(allowed_streams=("chat-*",))
    await add_secret(admin)
    user = reader(gateway, tenant)
    await becomes(200, user, path=CHAT)
    async with user.events(f"{CHAT}?offset=-1&live=sse") as opened:
        await patch(tenant.client, f"{KEYS}/{admin.record.id}", allowedStreams=["chat-2"])
        await ends(opened)
    await becomes(403, user, path=CHAT)
    await patch(tenant.client, f"{KEYS}/{admin.record.id}", allowedStreams=["*"])
    await becomes(200, user, path=CHAT)
    await stream(tenant, "/v1/stream/other")
    (await user.get("/v1/stream/other")).problem(403, "forbidden")


async def test_jwts_survive_the_rotation_of_the_creator_of_their_secret(gateway: Gateway, tenant: Tenant) -> None:
    admin = await tenant.another_key()
    await add_secret(admin)
    await tenant.client.post(f"{KEYS}/{admin.record.id}/rotate", {"graceSeconds": 0})
    assert (await reader(gateway, tenant).get(WHOAMI)).status == 200


async def test_a_jwt_expires_with_the_creator_of_its_secret(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    until = clock() + 300_000
    admin = await tenant.another_key(expires_at_ms=until)
    await add_secret(admin, expiresAt=stamp(until))
    assert (await as_user(gateway, tenant, signed(claims(gateway)))).status == 200
    await patch(tenant.client, f"{KEYS}/{admin.record.id}", expiresAt=stamp(clock() + 60_000))
    clock.ahead_ms = 60_001
    assert (await as_user(gateway, tenant, signed(claims(gateway)))).status == 401


async def test_a_secret_that_a_platform_key_created_allows_all_streams_and_ends_with_it(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(gateway.admin, platform=True)
    operator = gateway.with_key(text).with_headers(**{"X-Postroad-Tenant": tenant.id})
    (await operator.post(SECRETS, {"name": "s", "secret": SECRET})).ok(201)
    me = (await reader(gateway, tenant).get(WHOAMI)).ok()
    assert (me["scopes"], me["allowedStreams"]) == (["read", "write"], ["*"])
    await gateway.admin.delete(f"{KEYS}/{record['id']}")
    assert (await reader(gateway, tenant).get(WHOAMI)).status == 401


async def test_a_secret_of_an_earlier_version_keeps_working(gateway: Gateway, tenant: Tenant) -> None:
    locked = SecretCipher(gateway.node.platform.platform_keys).encrypt(f"jwt-secret {tenant.id} s1", OTHER)
    stored = {"v": 1, "id": "s1", "tenant": tenant.id, "name": "old", "locked": locked, "createdAtMs": 1, "expiresAtMs": None}
    record = msgspec.convert(stored, SecretRecord)
    await gateway.node.access.secrets._table.create(record.key, record)
    me = (await as_user(gateway, tenant, signed(claims(gateway, scope="read write"), OTHER))).ok()
    assert (me["scopes"], me["allowedStreams"]) == (["read", "write"], ["*"])
    [listed] = (await tenant.client.get(SECRETS)).ok()["secrets"]
    assert listed["createdBy"] is None


# Expiry


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (KEYS, {"name": "k", "scopes": EVERY_SCOPE}, "$.expiresAt"),
        (KEYS, {"name": "k", "scopes": EVERY_SCOPE, "expiresAt": "2099-01-01T00:00:00Z"}, "$.expiresAt"),
        (SECRETS, {"name": "s"}, "$.expiresAt"),
    ],
)
async def test_an_expiring_key_cannot_create_a_credential_that_outlives_it(
    tenant: Tenant, clock: ShiftedClock, path: str, body: dict[str, object], field: str
) -> None:
    until = clock() + HOUR_MS
    expiring = await tenant.another_key(expires_at_ms=until)
    problem = (await expiring.client.post(path, body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == field and "expires" in str(problem)
    (await expiring.client.post(path, {**body, "expiresAt": stamp(until)})).ok(201)


async def test_an_expiring_platform_key_cannot_create_a_credential_that_outlives_it(
    gateway: Gateway, clock: ShiftedClock
) -> None:
    text, _ = await new_key_by(gateway.admin, platform=True, expiresAt=stamp(clock() + HOUR_MS))
    operator = gateway.with_key(text)
    (await operator.post(KEYS, {"name": "k", "scopes": EVERY_SCOPE, "platform": True})).problem(422, "invalid-body")
    problem = (await operator.post(INVITES, {"expiresInSeconds": 7200})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.expiresInSeconds"
    (await operator.post(INVITES, {"expiresInSeconds": 600})).ok(201)


async def test_a_token_expires_with_its_key(tenant: Tenant, clock: ShiftedClock) -> None:
    expiring = await tenant.another_key(expires_at_ms=clock() + 60_000)
    made = (await expiring.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)
    assert made["expiresAt"] == (await expiring.client.get(WHOAMI)).ok()["expiresAt"]


@pytest.mark.parametrize("change", [{"scopes": ["read"]}, {"expiresAt": None}, {"allowedQueues": ["*"]}])
async def test_an_expiring_key_cannot_extend_a_key_that_outlives_it(
    tenant: Tenant, clock: ShiftedClock, change: dict[str, object]
) -> None:
    expiring = await tenant.another_key(expires_at_ms=clock() + HOUR_MS)
    lasting = await tenant.another_key((Scope.PUBLISH,), allowed_queues=("q",), expires_at_ms=clock() + 2 * HOUR_MS)
    path = f"{KEYS}/{lasting.record.id}"
    assert (await patch(expiring.client, path, **change)).status in (403, 422)
    (await expiring.client.post(f"{path}/rotate", {})).problem(403, "forbidden")
    (await patch(expiring.client, path, name="renamed", enabled=False)).ok()
    (await patch(expiring.client, path, enabled=True)).problem(403, "forbidden")
    assert (await expiring.client.delete(path)).status == 204


async def test_a_replaced_text_cannot_take_its_key_over_in_the_grace_period(gateway: Gateway, tenant: Tenant) -> None:
    stolen, record = await new_key_by(tenant.client)
    rotate = f"{KEYS}/{record['id']}/rotate"
    new = (await tenant.client.post(rotate, {"graceSeconds": 3600})).ok()["key"]
    thief = gateway.with_key(stolen)
    assert (await thief.get(WHOAMI)).ok()["expiresAt"] is not None
    (await thief.post(rotate, {})).problem(403, "forbidden")
    (await thief.post(KEYS, {"name": "mine", "scopes": EVERY_SCOPE})).problem(422, "invalid-body")
    (await gateway.with_key(new).post(KEYS, {"name": "mine", "scopes": EVERY_SCOPE})).ok(201)


# The text of a key


@pytest.mark.parametrize("is_token", [False, True])
async def test_a_rotation_without_grace_period_ends_live_streams_of_the_previous_text_on_every_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, is_token: bool
) -> None:
    text, record = await new_key_by(tenant.client)
    credential = text
    if is_token:
        credential = (await gateway.with_key(text).post("/v1/tokens", {"resource": "telemetry"})).ok(201)["token"]
    path = "/v1/telemetry/stream"
    async with gateway.with_key(credential).events(path) as one, second_gateway.with_key(credential).events(path) as other:
        new = (await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 0})).ok()["key"]
        await asyncio.gather(ends(one), ends(other))
    await becomes(401, gateway.with_key(credential), second_gateway.with_key(credential), path=path)
    async with gateway.with_key(new).events(path) as opened:
        await tenant.queue()
        assert await opened.next() is not None


async def test_a_rotation_without_grace_period_ends_long_polls_of_the_previous_text(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    text, record = await new_key_by(tenant.client)
    poll = asyncio.ensure_future(gateway.with_key(text).post(f"{queue}/pull", {"waitMs": 10_000}))
    watched = gateway.node.platform.identities._watched
    await eventually(lambda: record["id"] in watched)
    await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 0})
    async with asyncio.timeout(AT_ONCE):
        (await poll).problem(401, "unauthenticated")


async def test_live_streams_and_tokens_of_the_previous_text_end_with_the_grace_period(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    token = (await gateway.with_key(text).post("/v1/tokens", {"resource": "telemetry"})).ok(201)["token"]
    path = "/v1/telemetry/stream?events=queue.*"
    async with gateway.with_key(text).events(path) as old, gateway.with_key(token).events(path) as by_token:
        await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 1})
        await tenant.queue()
        assert await old.next() is not None and await by_token.next() is not None
        await asyncio.gather(ends(old), ends(by_token))
    (await gateway.with_key(token).get(path)).problem(401, "unauthenticated")


# Patterns


def test_patterns_within_others() -> None:
    assert is_within({"stream": ("chat-1", "chat-eu-*")}, {"stream": ("chat-*",)})
    assert is_within({"stream": ("a",), "queue": ("b",)}, {"stream": ("*a",)})
    assert is_within(None, None) and is_within({"stream": ("a",)}, None)
    assert not is_within(None, {"stream": ("a",)})
    assert not is_within({"stream": ("c*",)}, {"stream": ("chat-*",)})
    assert not is_within({"stream": ("*-a",)}, {"stream": ("a-*",)})


def test_common_patterns_are_those_that_both_allow() -> None:
    assert common_globs(("*",), ("a-*", "b")) == ("a-*", "b")
    assert common_globs(("a-*",), ("a-1", "b")) == ("a-1",)
    assert common_globs(("a-*",), ("a-*",)) == ("a-*",)
    assert common_globs(("a-*",), ("*-b",)) == (), "an overlap is not allowed, as it cannot be expressed"
    assert common_globs(("a",), ("b",)) == ()
