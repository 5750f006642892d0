"""Services, routes and grants: registration, lists, change log, limits, dry run."""

from typing import Any
from unittest.mock import ANY

import pytest

from postroad.api.commands import GRANTS_PER_ROUTE_MAX
from postroad.commands import route_registry
from postroad.commands.capability import CommandsCapability
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Answer, Gateway, Tenant


async def test_a_service_is_registered_once_and_changed(tenant: Tenant) -> None:
    """Requirements 2, 17, 148, 165, 167, 170"""
    key = tenant.record.id
    made = (await tenant.client.put("/v1/services/billing", {"trustedKeys": [key, key], "contact": "ops"})).ok(201)
    assert (made["name"], made["source"]) == ("billing", f"{tenant.id}/billing")
    assert (made["trustedKeys"], made["contact"], made["lastConfigPoll"]) == ([key], "ops", None)
    [secret] = made["secrets"]
    assert (secret["versionId"], secret["expiresAt"]) == ("hmac-v1", None)
    assert "secret" not in secret
    same = (await tenant.client.put("/v1/services/billing", {"trustedKeys": [key], "contact": "ops"})).ok(200)
    assert same == made
    changed = (await tenant.client.put("/v1/services/billing", {"description": "new"})).ok(200)
    assert (changed["trustedKeys"], changed["description"], changed["secrets"]) == ([], "new", made["secrets"])
    assert (await tenant.client.get("/v1/services/billing")).ok() == changed
    (await tenant.client.delete("/v1/services/billing")).ok(204)
    (await tenant.client.get("/v1/services/billing")).problem(404, "service-not-found")


async def test_only_keys_of_the_tenant_are_trusted(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 168"""
    other = await gateway.tenant()
    for key in (other.record.id, "0" * 16):
        refused = await tenant.client.put("/v1/services/billing", {"trustedKeys": [key]})
        assert refused.problem(422, "invalid-body")["errors"][0]["path"] == "$.trustedKeys"


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 65])
async def test_names_of_services_are_checked(tenant: Tenant, name: str) -> None:
    assert (await tenant.client.put(f"/v1/services/{name}", {})).status == 400


async def test_lists_have_pages_and_show_what_the_key_may_use(tenant: Tenant) -> None:
    for name in ("a", "b", "c.d"):
        (await tenant.client.put(f"/v1/services/{name}", {})).ok(201)
    first = (await tenant.client.get("/v1/services?limit=2")).ok()
    assert [one["name"] for one in first["services"]] == ["a", "b"] and first["nextCursor"] == "b"
    second = (await tenant.client.get("/v1/services?limit=2&cursor=b")).ok()
    assert ([one["name"] for one in second["services"]], second["nextCursor"]) == (["c.d"], None)
    narrow = await tenant.another_key(allowed_services=("c.*",))
    assert [one["name"] for one in (await narrow.client.get("/v1/services")).ok()["services"]] == ["c.d"]
    (await narrow.client.get("/v1/services/a")).problem(403, "forbidden")
    (await narrow.client.put("/v1/routes/a/x", {"queue": "q"})).problem(403, "forbidden")
    (await narrow.client.put("/v1/grants/a/x/b")).problem(403, "forbidden")


async def test_a_route_and_a_grant_may_end_at_the_latest_time_of_any_zone(tenant: Tenant) -> None:
    latest = "9999-12-31T23:59:59-12:00"
    await register_target(tenant, expires_at=latest)
    await grant(tenant, "billing", expires_at=latest)
    for path in ("/v1/routes/bot/post", "/v1/grants"):
        assert "9999-12-31T23:59:59.999Z" in str((await tenant.client.get(path)).ok())


async def test_a_route_needs_a_service_and_a_queue_with_dead_letters(tenant: Tenant) -> None:
    """Requirements 16, 29, 32, 37, 221"""
    route = "/v1/routes/bot/post"
    (await tenant.client.put(route, {"queue": "q"})).problem(404, "service-not-found")
    (await tenant.client.put("/v1/services/bot", {})).ok(201)
    (await tenant.client.put(route, {"queue": "q"})).problem(404, "queue-not-found")
    await tenant.queue("q", maxAttempts=0)
    assert "maxAttempts" in (await tenant.client.put(route, {"queue": "q"})).problem(409, "precondition-failed")["detail"]
    (await tenant.client.put("/v1/queues/q", {"maxAttempts": 1})).ok()
    narrow = await tenant.another_key(allowed_queues=("other",))
    (await narrow.client.put(route, {"queue": "q"})).problem(403, "forbidden")
    made = (await tenant.client.put(route, {"queue": "q"})).ok(201)
    expected: dict[str, Any] = {
        "service": "bot",
        "command": "post",
        "target": f"{tenant.id}/bot",
        "queue": "q",
        "sensitivity": None,
        "dedupe_mode": "none",
        "expected_drain_seconds": None,
        "acl_check": "cached",
        "signature": "optional",
        "archive": True,
        "expires_at": None,
        "grants": 0,
    }
    assert {name: made[name] for name in expected} == expected
    (await tenant.client.delete("/v1/services/bot")).problem(409, "precondition-failed")
    assert (await tenant.client.put(route, {"queue": "q"})).ok(200) == made


async def test_a_dry_run_of_a_registration_has_its_checks_and_stores_nothing(tenant: Tenant) -> None:
    """Requirements 223"""
    route = "/v1/routes/bot/post"

    async def tried(**fields: object) -> Answer:
        return await tenant.client.put(f"{route}?dry_run=true", {"queue": "q", **fields})

    (await tried()).problem(404, "service-not-found")
    (await tenant.client.put("/v1/services/bot", {})).ok(201)
    (await tried()).problem(404, "queue-not-found")
    await tenant.queue("q", maxAttempts=0)
    (await tried()).problem(409, "precondition-failed")
    (await tenant.client.put("/v1/queues/q", {"maxAttempts": 1})).ok()
    (await tried(expires_at="2020-01-01T00:00:00Z")).problem(422, "invalid-body")
    shown = (await tried(sensitivity="low")).ok(200)
    assert (shown["queue"], shown["sensitivity"]) == ("q", "low")
    (await tenant.client.get(route)).problem(404, "command-route-not-found")
    made = (await tenant.client.put(route, {"queue": "q"})).ok(201)
    await grant(tenant, "billing")
    shown = (await tried(sensitivity="low")).ok(200)
    assert (shown["sensitivity"], shown["grants"], shown["created_at"]) == ("low", 1, made["created_at"])
    assert (await tenant.client.get(route)).ok() == {**made, "grants": 1, "updated_at": ANY}
    changes = (await tenant.client.get("/v1/registry/changes")).ok()["changes"]
    assert [one["action"] for one in changes] == ["grant.create", "route.create", "service.create"]


@pytest.mark.parametrize(("is_encrypted", "shown"), [(True, "true"), (False, "false"), (None, "unknown")])
async def test_an_installation_may_require_an_encrypted_engine(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool | None, shown: str
) -> None:
    """Requirements 31: routes are refused unless the engine is known to encrypt; the dry run shows whether it does."""
    await register_target(tenant)
    registry = gateway.node.platform.use(CommandsCapability).registry
    monkeypatch.setattr(registry, "is_encrypted", is_encrypted)
    dry_run = (await tenant.client.post("/v1/routes/bot/post/test", {"source": "billing"})).ok()
    assert {"check": "encryption", "ok": True, "detail": shown} in dry_run["checks"]
    (await tenant.client.put("/v1/routes/bot/pay", {"queue": "bot-post"})).ok(201)  # not required
    monkeypatch.setattr(registry, "requires_encryption", True)
    answer = await tenant.client.put("/v1/routes/bot/refund", {"queue": "bot-post"})
    if is_encrypted:
        answer.ok(201)
    else:
        assert "encryption" in answer.problem(409, "precondition-failed")["detail"]


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "a b"},
        {"queue": "q", "sensitivity": "high"},
        {"queue": "q", "dedupe_mode": "exact"},
        {"queue": "q", "expected_drain_seconds": 0},
        {"queue": "q", "acl_check": "never"},
        {"queue": "q", "expires_at": "2020-01-01T00:00:00Z"},
        {"queue": "q", "expires_at": "tomorrow"},
        {"queue": "q", "rules": []},
        {},
    ],
)
async def test_routes_are_validated(tenant: Tenant, fields: dict[str, object]) -> None:
    (await tenant.client.put("/v1/services/bot", {})).ok(201)
    await tenant.queue("q", maxAttempts=1)
    (await tenant.client.put("/v1/routes/bot/post", fields)).problem(422, "invalid-body")


async def test_grants_are_listed_by_route_and_sender_in_pages(tenant: Tenant) -> None:
    await register_target(tenant, "bot", "post")
    await register_target(tenant, "bot", "react")
    await grant(tenant, "billing", "bot", "post")
    await grant(tenant, "other/*", "bot", "post", sensitivity="critical")
    await grant(tenant, "billing", "bot", "react")
    found: list[tuple[str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await tenant.client.get("/v1/grants?limit=1" + (f"&cursor={cursor}" if cursor else ""))).ok()
        found += [(one["command"], one["source"]) for one in page["grants"]]
        cursor = page["nextCursor"]
    own = f"{tenant.id}/billing"
    assert found == sorted([("post", own), ("post", "other/*"), ("react", own)])
    only = (await tenant.client.get("/v1/grants?source=billing&command=react")).ok()["grants"]
    assert [one["command"] for one in only] == ["react"]
    (await tenant.client.get("/v1/grants?cursor=nonsense")).problem(400, "invalid-parameter")
    assert (await tenant.client.get("/v1/routes/bot/post")).ok()["grants"] == 2


async def test_a_grant_is_replaced_kept_with_its_route_and_revoked(tenant: Tenant) -> None:
    await register_target(tenant)
    path = "/v1/grants/bot/post/billing"
    first = (await tenant.client.put(path)).ok(201)
    assert (await tenant.client.put(path)).ok(200) == first
    narrowed = (await tenant.client.put(path, {"sensitivity": "critical"})).ok(200)
    assert narrowed == {**first, "sensitivity": "critical"}
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "acl_check": "sync"})).ok(200)
    assert (await tenant.client.get("/v1/grants")).ok()["grants"] == [narrowed]
    (await tenant.client.delete(path)).ok(204)
    (await tenant.client.delete(path)).problem(404, "grant-not-found")
    (await tenant.client.put("/v1/grants/bot/none/billing")).problem(404, "command-route-not-found")
    (await tenant.client.put("/v1/grants/bot/post/a/b/c")).problem(400, "invalid-parameter")
    (await tenant.client.put(path, {"expires_at": "2020-01-01T00:00:00Z"})).problem(422, "invalid-body")


async def test_a_route_has_a_limited_number_of_grants(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GRANTS_PER_ROUTE_MAX == 2000
    monkeypatch.setattr(route_registry, "GRANTS_PER_ROUTE_MAX", 2)
    await register_target(tenant)
    await grant(tenant, "a")
    await grant(tenant, "b")
    (await tenant.client.put("/v1/grants/bot/post/c")).problem(409, "precondition-failed")
    await grant(tenant, "a", sensitivity="low")
    assert (await tenant.client.get("/v1/routes/bot/post")).ok()["grants"] == 2


async def test_a_tenant_has_a_limited_number_of_services_and_routes(gateway: Gateway, tenant: Tenant) -> None:
    limits = {"maxServices": 1, "maxRoutes": 1}
    (await gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id}).post("/v1/admin/settings", limits)).ok()
    await register_target(tenant)
    (await tenant.client.put("/v1/services/second", {})).problem(403, "forbidden")
    (await tenant.client.put("/v1/routes/bot/second", {"queue": "bot-post"})).problem(403, "forbidden")
    (await tenant.client.post("/v1/admin/settings", {"maxRoutes": 5})).problem(403, "forbidden")


async def test_a_dry_run_shows_each_check(tenant: Tenant) -> None:
    """Requirements 223"""
    await register_target(tenant, signature="required")
    test = "/v1/routes/bot/post/test"

    async def failed(**fields: object) -> tuple[str, list[str]]:
        result = (await tenant.client.post(test, {"source": "billing", **fields})).ok()
        return result["outcome"], [one["check"] for one in result["checks"] if not one["ok"]]

    assert await failed() == ("command-invalid", ["signature", "grant"])
    assert await failed(signed=True) == ("acl-deny", ["grant"])
    await grant(tenant, "billing")
    assert await failed(signed=True) == ("delivered", [])
    (await tenant.client.delete("/v1/queues/bot-post")).ok(204)
    assert await failed(signed=True) == ("delivery-failure", ["queue", "dead-letters"])
    (await tenant.client.post("/v1/routes/bot/none/test", {"source": "billing"})).problem(404, "command-route-not-found")
    assert await tenant.events("COMMANDS") == []


async def test_a_dry_run_knows_bans_and_the_limit(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 223: an exhausted limit refuses, unless it only reports or delays; the strongest ban counts."""
    await register_target(tenant, rate_limit={"max": 1, "interval_seconds": 86_400})
    await grant(tenant, "billing")
    await grant(tenant, "other/billing")
    sender = await register_sender(tenant)

    async def tested(source: str = "billing") -> tuple[str, dict[str, str]]:
        result = (await tenant.client.post("/v1/routes/bot/post/test", {"source": source})).ok()
        found = {one["check"]: one["detail"] for one in result["checks"]}
        return result["outcome"], {name: found[name].partition(" until ")[0] for name in ("ban", "rate-limit")}

    assert await tested() == ("delivered", {"ban": "none", "rate-limit": "1 commands left, enforce"})
    (await sender.send()).ok(202)
    assert await tested() == ("rate-limit-exceeded", {"ban": "none", "rate-limit": "0 commands left, enforce"})
    for rate in ({"mode": "shadow"}, {"overflow": "delay", "max_delay_seconds": 86_400}):
        body = {"queue": "bot-post", "rate_limit": {"max": 1, "interval_seconds": 86_400, **rate}}
        (await tenant.client.put("/v1/routes/bot/post", body)).ok()
        assert (await tested())[0] == "delivered"
    for kind, outcome in (("warm", "delivered"), ("hard", "fairness-violation")):
        ban = {"source": "billing", "kind": kind, "target": "bot", "command": "post", "reason": "a test"}
        (await tenant.client.post("/v1/bans", ban)).ok(201)
        found = await tested()
        assert (found[0], found[1]["ban"]) == (outcome, kind)
    everywhere = {"source": "other/billing", "kind": "hard", "reason": "of all routes"}
    (await gateway.admin.post("/v1/bans", everywhere)).ok(201)
    assert (await tested("other/billing"))[1]["ban"] == "none", "not the business of the route's owner"


async def test_the_change_log_has_before_and_after_and_no_secrets(tenant: Tenant) -> None:
    """Requirements 4, 219, 223"""
    sender = await register_sender(tenant)
    await register_target(tenant)
    await grant(tenant, "billing")
    (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    (await tenant.client.delete("/v1/grants/bot/post/billing")).ok(204)
    (await tenant.client.delete("/v1/routes/bot/post")).ok(204)
    answer = await tenant.client.get("/v1/registry/changes")
    changes = answer.ok()["changes"]
    assert [(one["action"], one["target"]) for one in reversed(changes)] == [
        ("service.create", "billing"),
        ("service.create", "bot"),
        ("route.create", "bot/post"),
        ("grant.create", f"bot/post {tenant.id}/billing"),
        ("service-secret.rotate", "billing"),
        ("grant.revoke", f"bot/post {tenant.id}/billing"),
        ("route.delete", "bot/post"),
    ]
    assert changes[0]["before"]["queue"] == "bot-post" and changes[0]["actorKeyId"] == tenant.record.id
    assert sender.secret.encode() not in answer.body
    page = (await tenant.client.get("/v1/registry/changes?limit=2")).ok()
    rest = (await tenant.client.get(f"/v1/registry/changes?cursor={page['nextCursor']}")).ok()
    assert page["changes"] + rest["changes"] == changes
    (await tenant.client.get("/v1/registry/changes?cursor=abc")).problem(400, "invalid-parameter")


async def test_a_deleted_tenant_leaves_nothing(gateway: Gateway, tenant: Tenant) -> None:
    await register_sender(tenant)
    await register_target(tenant)
    commands = gateway.node.platform.use(CommandsCapability)
    await commands.delete_tenant(tenant.id)
    await commands.delete_tenant(tenant.id)
    prefix = f"{tenant.id}."
    assert not commands.route_table.count_under(prefix) and not commands.service_table.count_under(prefix)
