"""Key lifecycle over HTTP: create, list, update, rotate, delete."""

from typing import Any

import pytest

from postroad.access.keys import PLATFORM_PREFIX, key_id_of, new_key
from postroad.kernel.identity import ALL_SCOPES, Scope, grantable_scopes
from tests.access.control import EVERY_SCOPE, KEYS, SETTINGS, WHOAMI, becomes, fresh, new_key_by, patch, stamp, status_of
from tests.gateway import Client, Gateway, ShiftedClock, Tenant

DAY_MS = 86_400_000


async def listed(client: Client, query: str = "") -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = (await client.get(f"{KEYS}{query}")).ok()["keys"]
    return keys


# Making


async def test_the_text_of_a_new_key_is_shown_once(gateway: Gateway, tenant: Tenant) -> None:
    answer = await tenant.client.post(KEYS, {"name": "ci", "scopes": EVERY_SCOPE})
    made = answer.ok(201)
    assert answer.headers["cache-control"] == "no-store"
    record = made["record"]
    assert key_id_of(made["key"]) == record["id"]
    assert made["key"].startswith("pr_live_")
    assert (record["tenant"], record["name"], record["createdBy"]) == (tenant.id, "ci", tenant.record.id)
    assert record["scopes"] == [scope.value for scope in ALL_SCOPES]
    assert record["allowedQueues"] == record["allowedTopics"] == record["allowedStreams"] == ["*"]
    assert record["enabled"] is True and record["expiresAt"] is None
    shown = (await tenant.client.get(f"{KEYS}/{record['id']}")).ok()
    assert shown == {**record, "lastUsedAt": None}
    me = (await gateway.with_key(made["key"]).get(WHOAMI)).ok()
    assert (me["tenant"], me["keyId"], me["keyName"], me["credential"]) == (tenant.id, record["id"], "ci", "key")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "ApiKey", "APIKEY"])
async def test_a_key_is_accepted_with_both_schemes(gateway: Gateway, tenant: Tenant, scheme: str) -> None:
    assert (await gateway.anonymous.get(WHOAMI, headers={"Authorization": f"{scheme} {tenant.key}"})).status == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Basic eDp5", "Bearer  ", "pr_live_x", "Bearer x y"])
async def test_an_invalid_credential_is_refused_without_details(gateway: Gateway, header: str) -> None:
    (await gateway.anonymous.get(WHOAMI, headers={"Authorization": header})).problem(401, "unauthenticated")


async def test_an_unknown_key_is_refused(gateway: Gateway) -> None:
    for key in (new_key(), new_key(PLATFORM_PREFIX), "x", "pr_live_"):
        (await gateway.with_key(key).get(WHOAMI)).problem(401, "unauthenticated")


async def test_the_right_id_with_another_secret_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    (await gateway.with_key(new_key(key_id=tenant.record.id)).get(WHOAMI)).problem(401, "unauthenticated")
    assert await status_of(tenant.client) == 200


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "$"),
        ({"name": "x"}, "$"),
        ({"name": "x", "platform": True}, "$"),
        ({"name": "", "scopes": ["read"]}, "$.name"),
        ({"name": "x" * 101, "scopes": ["read"]}, "$.name"),
        ({"name": "x", "scopes": []}, "$.scopes"),
        ({"name": "x", "scopes": ["root"]}, "$.scopes[0]"),
        ({"name": "x", "scopes": ["read"], "allowedQueues": [""]}, "$.allowedQueues[0]"),
        ({"name": "x", "scopes": ["read"], "allowedQueues": ["a"] * 65}, "$.allowedQueues"),
        ({"name": "x", "scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}, "$.expiresAt"),
        ({"name": "x", "scopes": ["read"], "expiresAt": "2099-01-01T00:00:00"}, "$.expiresAt"),
        ({"name": "x", "scopes": ["read"], "expiresAt": "9999-12-31T23:59:59-12:00"}, "$.expiresAt"),
        ({"name": "x", "scopes": ["read"], "expiresAt": "0001-01-01T00:00:00+12:00"}, "$.expiresAt"),
        ({"name": "x", "scopes": ["read"], "id": "y"}, "$"),
    ],
)
async def test_an_invalid_new_key_is_refused_with_the_field(tenant: Tenant, body: dict[str, Any], path: str) -> None:
    problem = (await tenant.client.post(KEYS, body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path


async def test_a_scope_given_twice_counts_once(tenant: Tenant) -> None:
    _, record = await new_key_by(tenant.client, scopes=["read", "publish", "read"])
    assert record["scopes"] == ["read", "publish"]


async def test_the_number_of_keys_is_limited(gateway: Gateway, tenant: Tenant) -> None:
    admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    (await admin.post(SETTINGS, {"maxKeys": 3})).ok()
    await new_key_by(tenant.client)
    _, last = await new_key_by(tenant.client)
    (await tenant.client.post(KEYS, {"name": "one too many", "scopes": EVERY_SCOPE})).problem(403, "forbidden")
    assert (await tenant.client.delete(f"{KEYS}/{last['id']}")).status == 204
    await new_key_by(tenant.client)


# Listing


async def test_keys_are_listed_oldest_first_in_pages(gateway: Gateway, tenant: Tenant) -> None:
    made = [(await new_key_by(tenant.client, name=f"k{number}"))[1]["id"] for number in range(5)]
    everything = [tenant.record.id, *made]
    assert [key["id"] for key in await listed(tenant.client)] == everything
    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await tenant.client.get(f"{KEYS}?limit=2{cursor and '&cursor='}{cursor}")).ok()
        pages.append([key["id"] for key in page["keys"]])
        cursor = page["nextCursor"]
    assert pages == [everything[:2], everything[2:4], everything[4:]]


@pytest.mark.parametrize("cursor", ["x", "%C2%B2.x", "-1.x", "9" * 40, "1e3"])
async def test_an_invalid_cursor_is_refused(tenant: Tenant, cursor: str) -> None:
    (await tenant.client.get(f"{KEYS}?cursor={cursor}")).problem(400, "invalid-parameter")


async def test_a_tenant_sees_its_own_keys_only(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    assert [key["tenant"] for key in await listed(tenant.client)] == [tenant.id]
    for call in (
        tenant.client.get(f"{KEYS}/{other.record.id}"),
        patch(tenant.client, f"{KEYS}/{other.record.id}", enabled=False),
        tenant.client.post(f"{KEYS}/{other.record.id}/rotate", {}),
        tenant.client.delete(f"{KEYS}/{other.record.id}"),
    ):
        (await call).problem(404, "key-not-found")
    assert await status_of(other.client) == 200


@pytest.mark.parametrize("key_id", ["x", "A" * 16, "*" * 16, "a b", "\uff41" * 16, "A" * 500])
async def test_an_unknown_key_id_is_not_found(tenant: Tenant, key_id: str) -> None:
    (await tenant.client.get(f"{KEYS}/{key_id}")).problem(404, "key-not-found")


async def test_the_last_use_of_a_key_is_shown_by_all_gateways(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    assert (await tenant.client.get(f"{KEYS}/{record['id']}")).ok()["lastUsedAt"] is None
    assert await status_of(gateway.with_key(text)) == 200
    used = (await tenant.client.get(f"{KEYS}/{record['id']}")).ok()["lastUsedAt"]
    assert used >= record["createdAt"]
    await gateway.node.platform.identities.key_usage.flush()
    elsewhere = second_gateway.seen_by(tenant).client
    assert (await elsewhere.get(f"{KEYS}/{record['id']}")).ok()["lastUsedAt"] == used
    assert {key["id"]: key["lastUsedAt"] for key in await listed(elsewhere)}[record["id"]] == used


# Changing


async def test_omitted_fields_keep_their_value(tenant: Tenant, clock: ShiftedClock) -> None:
    _, record = await new_key_by(tenant.client, allowedQueues=["orders.*"], expiresAt=stamp(clock() + DAY_MS))
    changed = (await patch(tenant.client, f"{KEYS}/{record['id']}", name="new name")).ok()
    assert changed == {**record, "name": "new name", "updatedAt": changed["updatedAt"], "lastUsedAt": None}
    assert changed["updatedAt"] >= record["updatedAt"]
    everlasting = (await patch(tenant.client, f"{KEYS}/{record['id']}", expiresAt=None)).ok()
    assert everlasting["expiresAt"] is None and everlasting["name"] == "new name"


async def test_a_disabled_key_is_refused_until_it_is_enabled(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    assert (await patch(tenant.client, f"{KEYS}/{record['id']}", enabled=False)).ok()["enabled"] is False
    (await gateway.with_key(text).get(WHOAMI)).problem(401, "unauthenticated")
    await patch(tenant.client, f"{KEYS}/{record['id']}", enabled=True)
    assert await status_of(gateway.with_key(text)) == 200


async def test_a_deleted_key_is_refused_and_not_found(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    assert await status_of(gateway.with_key(text)) == 200
    assert (await tenant.client.delete(f"{KEYS}/{record['id']}")).status == 204
    (await gateway.with_key(text).get(WHOAMI)).problem(401, "unauthenticated")
    (await tenant.client.delete(f"{KEYS}/{record['id']}")).problem(404, "key-not-found")
    assert [key["id"] for key in await listed(tenant.client)] == [tenant.record.id]


async def test_a_key_is_valid_until_it_expires(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    text, record = await new_key_by(tenant.client, expiresAt=stamp(clock() + DAY_MS))
    assert await status_of(gateway.with_key(text)) == 200
    assert (await gateway.with_key(text).get(WHOAMI)).ok()["expiresAt"] == record["expiresAt"]
    clock.ahead_ms = DAY_MS + 1
    assert await status_of(gateway.with_key(text)) == 401
    await patch(tenant.client, f"{KEYS}/{record['id']}", expiresAt=stamp(clock() + DAY_MS))
    assert await status_of(gateway.with_key(text)) == 200


async def test_a_key_cannot_disable_or_delete_itself(tenant: Tenant) -> None:
    mine = f"{KEYS}/{tenant.record.id}"
    (await patch(tenant.client, mine, enabled=False)).problem(409, "precondition-failed")
    (await tenant.client.delete(mine)).problem(409, "precondition-failed")
    assert (await patch(tenant.client, mine, name="still me")).ok()["name"] == "still me"


# Rotating


async def test_a_rotated_key_keeps_its_id_and_the_previous_text_is_valid_for_the_grace_period(
    gateway: Gateway, tenant: Tenant, clock: ShiftedClock
) -> None:
    old, record = await new_key_by(tenant.client, name="ci", scopes=["read"])
    answer = await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 3600})
    rotated = answer.ok()
    new = rotated["key"]
    assert answer.headers["cache-control"] == "no-store"
    assert key_id_of(new) == record["id"] and new != old
    assert (rotated["record"]["scopes"], rotated["record"]["name"]) == (["read"], "ci")
    assert rotated["record"]["rotatedUntil"]
    assert [await status_of(gateway.with_key(text)) for text in (old, new, old)] == [200, 200, 200]
    clock.ahead_ms = 3_600_001
    assert [await status_of(gateway.with_key(text)) for text in (old, new)] == [401, 200]


async def test_a_rotation_without_grace_period_ends_the_previous_text_on_every_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    old, record = await new_key_by(tenant.client)
    elsewhere = second_gateway.with_key(old)
    assert await status_of(elsewhere) == 200
    new = (await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 0})).ok()["key"]
    assert await status_of(gateway.with_key(old)) == 401
    await becomes(401, elsewhere)
    assert await status_of(second_gateway.with_key(new)) == 200


async def test_at_most_four_texts_of_a_key_are_valid_at_a_time(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    first, record = await new_key_by(tenant.client)
    rotate = f"{KEYS}/{record['id']}/rotate"
    texts = [first] + [(await tenant.client.post(rotate, {})).ok()["key"] for _ in range(3)]
    (await tenant.client.post(rotate, {})).problem(409, "precondition-failed")
    assert [await status_of(gateway.with_key(text)) for text in texts] == [200] * 4
    clock.ahead_ms = DAY_MS + 1
    (await tenant.client.post(rotate, {})).ok()
    assert [await status_of(gateway.with_key(text)) for text in texts] == [401, 401, 401, 200]


async def test_a_later_rotation_can_shorten_the_grace_period_but_not_extend_it(
    gateway: Gateway, tenant: Tenant, clock: ShiftedClock
) -> None:
    first, record = await new_key_by(tenant.client)
    rotate = f"{KEYS}/{record['id']}/rotate"
    second = (await tenant.client.post(rotate, {"graceSeconds": 60})).ok()["key"]
    await tenant.client.post(rotate, {"graceSeconds": 3600})
    clock.ahead_ms = 61_000
    assert [await status_of(gateway.with_key(text)) for text in (first, second)] == [401, 200]
    await tenant.client.post(rotate, {"graceSeconds": 0})
    assert await status_of(gateway.with_key(second)) == 401


async def test_a_key_may_rotate_itself(gateway: Gateway, tenant: Tenant) -> None:
    rotated = (await tenant.client.post(f"{KEYS}/{tenant.record.id}/rotate", {"graceSeconds": 0})).ok()["key"]
    assert (await status_of(tenant.client), await status_of(gateway.with_key(rotated))) == (401, 200)


@pytest.mark.parametrize("seconds", [-1, 30 * 86_400 + 1, 1.5, "1"])
async def test_a_grace_period_is_whole_seconds_up_to_thirty_days(tenant: Tenant, seconds: object) -> None:
    (await tenant.client.post(f"{KEYS}/{tenant.record.id}/rotate", {"graceSeconds": seconds})).problem(422, "invalid-body")


# A key gives no more than it has


@pytest.mark.parametrize("scopes", [["publish"], ["read", "consume"], EVERY_SCOPE])
async def test_an_admin_key_grants_scopes_that_it_does_not_use_itself(
    gateway: Gateway, tenant: Tenant, scopes: list[str]
) -> None:
    admin = await tenant.another_key((Scope.ADMIN,))
    text, record = await new_key_by(admin.client, scopes=scopes)
    assert record["scopes"] == scopes
    assert (await gateway.with_key(text).get(WHOAMI)).ok()["scopes"] == sorted(scopes)
    (await patch(admin.client, f"{KEYS}/{record['id']}", scopes=["read", "write"])).ok()


@pytest.mark.parametrize("scope", [scope for scope in ALL_SCOPES if scope is not Scope.ADMIN])
async def test_a_key_without_admin_grants_nothing(tenant: Tenant, scope: Scope) -> None:
    key = await tenant.another_key((scope,))
    (await key.client.post(KEYS, {"name": "x", "scopes": [str(scope)]})).problem(403, "forbidden")
    assert grantable_scopes((scope,)) == {scope}


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        (["orders.eu"], 201),
        (["orders.*"], 201),
        (["orders.*", "x"], 201),
        ([], 201),
        (["invoices"], 403),
        (["*"], 403),
        (["orders.*", "invoices"], 403),
        (["o*"], 403),
        (["orders*"], 403),
    ],
)
async def test_a_key_cannot_grant_queues_that_it_may_not_use(tenant: Tenant, wanted: list[str], status: int) -> None:
    limited = await tenant.another_key(allowed_queues=("orders.*", "x"))
    assert (await limited.client.post(KEYS, {"name": "n", "scopes": EVERY_SCOPE, "allowedQueues": wanted})).status == status


@pytest.mark.parametrize("kind", ["allowedTopics", "allowedStreams"])
async def test_a_key_cannot_grant_topics_and_streams_that_it_may_not_use(tenant: Tenant, kind: str) -> None:
    limited = await tenant.another_key(ALL_SCOPES, **{{"allowedTopics": "allowed_topics"}.get(kind, "allowed_streams"): ("a.*",)})
    assert (await limited.client.post(KEYS, {"name": "n", "scopes": EVERY_SCOPE})).status == 403
    assert (await limited.client.post(KEYS, {"name": "n", "scopes": EVERY_SCOPE, kind: ["a.b"]})).status == 201


async def test_a_key_with_more_permissions_cannot_be_changed(gateway: Gateway, tenant: Tenant) -> None:
    """A rotation would reveal its text."""
    narrow = await tenant.another_key(allowed_queues=("x",))
    wide = f"{KEYS}/{tenant.record.id}"
    (await narrow.client.post(f"{wide}/rotate", {})).problem(403, "forbidden")
    (await patch(narrow.client, wide, name="mine")).problem(403, "forbidden")
    (await patch(narrow.client, wide, scopes=["read"], allowedQueues=["x"])).problem(403, "forbidden")
    (await narrow.client.delete(wide)).problem(403, "forbidden")
    assert (await narrow.client.get(wide)).status == 200
    assert await status_of(tenant.client) == 200


# Platform keys


async def test_platform_keys_are_created_and_seen_by_platform_keys_only(gateway: Gateway, tenant: Tenant) -> None:
    name = fresh("operator")
    (await tenant.client.post(KEYS, {"name": name, "scopes": EVERY_SCOPE, "platform": True})).problem(403, "forbidden")
    (await tenant.client.get(f"{KEYS}?platform=true")).problem(403, "forbidden")
    text, record = await new_key_by(gateway.admin, name=name, platform=True)
    assert text.startswith("pr_admin_") and record["tenant"] is None
    assert name in [key["name"] for key in await listed(gateway.admin, "?platform=true&limit=1000")]
    assert name not in [key["name"] for key in await listed(gateway.admin, "?limit=1000")]
    (await tenant.client.get(f"{KEYS}/{record['id']}")).problem(404, "key-not-found")
    (await tenant.client.delete(f"{KEYS}/{record['id']}")).problem(404, "key-not-found")
    me = (await gateway.with_key(text).get(WHOAMI)).ok()
    assert me["platform"] is True and me["tenant"] == "default"


async def test_a_platform_key_manages_the_keys_of_a_tenant(gateway: Gateway, tenant: Tenant) -> None:
    admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    text, record = await new_key_by(admin, scopes=["read"])
    assert (await gateway.with_key(text).get(WHOAMI)).ok()["tenant"] == tenant.id
    assert (await patch(gateway.admin, f"{KEYS}/{record['id']}", enabled=False)).ok()["enabled"] is False
    assert await status_of(gateway.with_key(text)) == 401


@pytest.mark.parametrize("name", ["no-such", "NOT A NAME", "queues", "x" * 33, "../default", "_platform"])
async def test_a_platform_key_that_names_an_unknown_tenant_gets_404(gateway: Gateway, name: str) -> None:
    (await gateway.admin.get("/v1/queues", headers={"X-Postroad-Tenant": name})).problem(404, "tenant-not-found")


async def test_a_tenants_key_may_name_its_own_tenant_and_no_other(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    await other.queue("theirs")
    assert (await tenant.client.get("/v1/queues", headers={"X-Postroad-Tenant": tenant.id})).status == 200
    for path in ("/v1/queues", "/v1/queues/theirs", WHOAMI):
        (await tenant.client.get(path, headers={"X-Postroad-Tenant": other.id})).problem(403, "forbidden")
