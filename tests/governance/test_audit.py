"""The audit log: every change of the control plane with its actor."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.access.control import (
    AUDIT,
    CLAIM,
    DEFAULTS,
    EVERY_SCOPE,
    INVITES,
    KEYS,
    SECRETS,
    SETTINGS,
    TENANTS,
    actor_of,
    entries_of,
    fresh,
    new_key_by,
    patch,
)
from tests.gateway import Client, Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server

from postroad.api.governance import AuditEntry
from postroad.governance.audit import AUDIT_STREAM, AuditFilter, _masked
from postroad.governance.capability import GovernanceCapability
from postroad.governance.platform_reads import PlatformReads
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import delete_stream, purge_stream, stream_info
from postroad.kernel.clock import rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineRefused
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.ids import new_id

Entry = dict[str, Any]


async def read(client: Client, query: str = "") -> list[Entry]:
    entries: list[Entry] = (await client.get(f"{AUDIT}{query}")).ok()["entries"]
    return entries


async def last_of(gateway: Gateway, tenant: str) -> Entry:
    return (await entries_of(gateway, tenant))[-1]


def named(client: Client, request_id: str) -> Client:
    return client.with_headers(**{"X-Request-Id": request_id})


# What is on record


async def test_an_entry_has_actor_action_target_time_and_request(gateway: Gateway, tenant: Tenant) -> None:
    _, record = await new_key_by(named(tenant.client, "r-1"), name="ci", scopes=["read"])
    [entry] = await read(tenant.client, "?action=key.create")
    assert entry.pop("id") and entry.pop("at") >= record["createdAt"]
    assert entry == {
        "v": 1,
        "tenant": tenant.id,
        "action": "key.create",
        "target": record["id"],
        "actorKeyId": tenant.record.id,
        "requestId": "r-1",
        "address": "127.0.0.1",
        "after": record,
    }


async def test_changes_of_keys_secrets_and_settings_are_audited(gateway: Gateway, tenant: Tenant) -> None:
    client = tenant.client
    _, key = await new_key_by(client, name="ci")
    changed = (await patch(client, f"{KEYS}/{key['id']}", name="cd")).ok()
    rotated = (await client.post(f"{KEYS}/{key['id']}/rotate", {})).ok()["record"]
    for_aws = (await client.post(f"{KEYS}/{key['id']}/aws", {})).ok(201)["record"]
    await client.delete(f"{KEYS}/{key['id']}/aws")
    await client.delete(f"{KEYS}/{key['id']}")
    secret = (await client.post(SECRETS, {"name": "s"})).ok(201)["record"]
    await client.delete(f"{SECRETS}/{secret['id']}")
    await client.post(SETTINGS, {"auditMode": "off"})
    changed.pop("lastUsedAt")
    expected = [
        ("key.create", key["id"], None, key),
        ("key.change", key["id"], key, changed),
        ("key.rotate", key["id"], changed, rotated),
        ("key.aws.create", key["id"], rotated, for_aws),
        ("key.aws.delete", key["id"], for_aws, rotated),
        ("key.delete", key["id"], rotated, None),
        ("jwt-secret.create", secret["id"], None, secret),
        ("jwt-secret.delete", secret["id"], secret, None),
        ("settings.change", "settings", {}, {"auditMode": "off"}),
    ]
    found = [
        (entry["action"], entry["target"], entry.get("before"), entry.get("after"))
        for entry in await entries_of(gateway, tenant.id)
    ]
    assert [_without_times(one) for one in found] == [_without_times(one) for one in expected]


def _without_times(one: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the time of the change, which is after the time of the entry."""
    late = ("updatedAt", "rotatedUntil")
    return tuple({k: v for k, v in part.items() if k not in late} if isinstance(part, dict) else part for part in one)


async def test_changes_of_queues_are_audited(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders", maxMessages=5)
    (await tenant.client.put(queue, {"maxMessages": 5})).ok()
    (await tenant.client.put(queue, {"maxMessages": 6})).ok()
    await tenant.client.delete(queue)
    entries = await entries_of(gateway, tenant.id)
    assert [(entry["action"], entry["target"]) for entry in entries] == [
        ("queue.create", "orders"),
        ("queue.change", "orders"),
        ("queue.delete", "orders"),
    ]
    assert (entries[1]["before"]["maxMessages"], entries[1]["after"]["maxMessages"]) == (5, 6)


async def test_changes_of_tenants_and_invites_are_audited(gateway: Gateway) -> None:
    admin, name = gateway.admin, fresh()
    invite = (await admin.post(INVITES, {"note": "n"})).ok(201)
    claimed = (await gateway.anonymous.post(CLAIM, {"code": invite["code"], "tenant": name})).ok(201)
    await patch(admin, f"{TENANTS}/{name}", description="d")
    await admin.delete(f"{TENANTS}/{name}")
    other = fresh()
    await admin.post(TENANTS, {"id": other})
    revoked = (await admin.post(INVITES, {})).ok(201)["invite"]
    await admin.delete(f"{INVITES}/{revoked['id']}")
    by_target: dict[str, list[Entry]] = {}
    for entry in await entries_of(gateway):
        by_target.setdefault(entry["target"], []).append(entry)

    def actions(target: str) -> list[tuple[str, str]]:
        return [(entry["action"], entry["tenant"]) for entry in by_target[target]]

    assert actions(invite["invite"]["id"]) == [("invite.create", "_platform"), ("invite.claim", "_platform")]
    assert actions(revoked["id"]) == [("invite.create", "_platform"), ("invite.revoke", "_platform")]
    assert actions(name) == [("tenant.create", name), ("tenant.change", name), ("tenant.delete", name)]
    assert actions(other) == [("tenant.create", other)]
    claim = by_target[invite["invite"]["id"]][1]
    assert (claim["actorKeyId"], claim["after"]) == (f"invite:{invite['invite']['id']}", claimed["record"])
    assert by_target[name][1]["actorIsPlatform"] is True
    assert (by_target[name][1]["before"]["description"], by_target[name][1]["after"]["description"]) == ("", "d")


async def test_all_changing_routes_of_the_control_plane_are_tested(gateway: Gateway) -> None:
    """A new route must be added to the tests above, and here."""
    tested = {
        ("POST", KEYS),
        ("PATCH", f"{KEYS}/{{key}}"),
        ("POST", f"{KEYS}/{{key}}/rotate"),
        ("DELETE", f"{KEYS}/{{key}}"),
        ("POST", f"{KEYS}/{{key}}/aws"),
        ("DELETE", f"{KEYS}/{{key}}/aws"),
        ("POST", SECRETS),
        ("DELETE", f"{SECRETS}/{{secret}}"),
        ("POST", SETTINGS),
        ("POST", DEFAULTS),
        ("POST", TENANTS),
        ("PATCH", f"{TENANTS}/{{tenant}}"),
        ("DELETE", f"{TENANTS}/{{tenant}}"),
        ("POST", INVITES),
        ("DELETE", f"{INVITES}/{{invite}}"),
        ("POST", CLAIM),
    }
    tested.add(("POST", "/v1/tokens"))
    # `test_web_sessions.py` has the entries of these.
    tested |= {("POST", "/v1/session"), ("DELETE", "/v1/session"), ("POST", "/v1/session/links")}
    capabilities = (gateway.node.access, gateway.node.platform.use(GovernanceCapability))
    routes = [route for capability in capabilities for route in capability.routes()]
    changing = {(route.method, route.path) for route in routes if route.method != "GET"}
    assert changing == tested


async def test_changes_of_the_platform_are_recorded_under_platform(gateway: Gateway) -> None:
    _, record = await new_key_by(gateway.admin, platform=True)
    assert (await last_of(gateway, "_platform"))["target"] == record["id"]
    await gateway.admin.post(DEFAULTS, {"idempotencyTtlMs": 5_000_000})
    await gateway.admin.post(DEFAULTS, {"idempotencyTtlMs": None})
    entry = await last_of(gateway, "_platform")
    assert (entry["action"], entry["before"], entry["after"]) == ("settings.change", {"idempotencyTtlMs": 5_000_000}, {})


async def test_a_change_that_fails_has_a_second_entry(gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise EngineRefused("pulled out")

    monkeypatch.setattr(gateway.node.access.keys._table, "create", fail)
    (await named(tenant.client, "r-9").post(KEYS, {"name": "x", "scopes": EVERY_SCOPE})).problem(502, "engine-refused")
    monkeypatch.undo()
    first, second = await entries_of(gateway, tenant.id)
    assert (first["action"], first.get("outcome", "ok")) == ("key.create", "ok")
    assert (second["action"], second["outcome"], second["of"]) == ("key.create", "failed", first["id"])
    assert second["target"] == first["target"] and second["requestId"] == "r-9"
    assert len((await tenant.client.get(KEYS)).ok()["keys"]) == 1


async def test_a_change_that_cannot_be_audited_is_not_made(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise EngineRefused("no audit today")

    monkeypatch.setattr(gateway.node.platform.audit, "record", fail)
    assert (await tenant.client.post(KEYS, {"name": "x", "scopes": EVERY_SCOPE})).status == 502
    assert (await tenant.client.put("/v1/queues/q")).status == 502
    monkeypatch.undo()
    assert len((await tenant.client.get(KEYS)).ok()["keys"]) == 1
    assert (await tenant.client.get("/v1/queues")).ok()["queues"] == []


async def test_platform_access_is_in_the_tenants_audit_log(gateway: Gateway, tenant: Tenant) -> None:
    await tenant.queue("q")
    admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    await admin.get("/v1/queues")
    await admin.post("/v1/queues/q/pull", {})
    await admin.get(KEYS)
    await admin.get("/v1/whoami")
    await gateway.admin.get(TENANTS)
    uses = await read(tenant.client, "?action=platform.use")
    assert [entry["target"] for entry in uses] == ["POST /v1/queues/{queue}/pull", "GET /v1/queues"]
    assert all(entry["actorIsPlatform"] is True for entry in uses)
    await tenant.client.get("/v1/queues")
    assert len(await read(tenant.client, "?action=platform.use")) == 2


async def test_reads_with_a_platform_key_are_one_entry_per_key_tenant_and_interval(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    text, record = await new_key_by(gateway.admin, platform=True)
    for one in (tenant, other):
        for client in (gateway.admin, gateway.with_key(text)):
            acting = client.with_headers(**{"X-Postroad-Tenant": one.id})
            await asyncio.gather(*[acting.get("/v1/queues") for _ in range(5)])
    for one in (tenant, other):
        actors = [entry["actorKeyId"] for entry in await read(one.client, "?action=platform.use")]
        assert len(actors) == 2 and record["id"] in actors


async def test_the_next_interval_of_reads_has_an_entry_of_its_own() -> None:
    written: list[str] = []
    now = 0.0

    async def write(_context: RequestContext, operation: str) -> None:
        if operation == "GET /broken":
            raise EngineRefused("no audit today")
        written.append(operation)

    reads = PlatformReads(write, lambda: now)
    context = RequestContext(Caller("t", "k", frozenset(), is_platform=True), "r", "192.0.2.1")
    with pytest.raises(EngineRefused):
        await reads.record(context, "GET /broken")
    for at, operation in ((0.0, "GET /a"), (599.0, "GET /b"), (600.0, "GET /c")):
        now = at
        await reads.record(context, operation)
    assert written == ["GET /a", "GET /c"]


async def test_the_issue_of_stream_tokens_is_recorded(gateway: Gateway, tenant: Tenant) -> None:
    for _ in range(3):
        (await tenant.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)
    (await tenant.client.post("/v1/tokens", {"resource": "stream/a"})).ok(201)
    entries = await read(tenant.client, "?action=token.create")
    assert [(entry["target"], entry["after"]) for entry in entries] == [("stream/a", {"issued": 1}), ("telemetry", {"issued": 1})]
    assert entries[0]["actorKeyId"] == tenant.record.id
    await gateway.node.platform.audit.issued_tokens.flush()
    [last, *_] = await read(tenant.client, "?action=token.create")
    assert (last["target"], last["after"]) == ("telemetry", {"issued": 2})


async def test_a_token_that_cannot_be_audited_is_not_issued(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise EngineRefused("no audit today")

    monkeypatch.setattr(gateway.node.platform.audit, "record", fail)
    (await tenant.client.post("/v1/tokens", {"resource": "telemetry"})).problem(502, "engine-refused")
    monkeypatch.undo()
    (await tenant.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)
    assert len(await read(tenant.client, "?action=token.create")) == 1


# Reading


@pytest.fixture
async def trail(gateway: Gateway, tenant: Tenant) -> list[Entry]:
    """Five changes of a tenant, newest first."""
    for number in range(3):
        await new_key_by(named(tenant.client, f"r-{number}"), name=f"k{number}")
    await tenant.queue("orders")
    await tenant.queue("invoices")
    return (await entries_of(gateway, tenant.id))[::-1]


async def test_entries_are_listed_newest_first_in_pages(tenant: Tenant, trail: list[Entry]) -> None:
    assert [entry["id"] for entry in await read(tenant.client)] == [entry["id"] for entry in trail]
    found: list[str] = []
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        page = (await tenant.client.get(f"{AUDIT}?limit=2{cursor and '&cursor='}{cursor}")).ok()
        assert len(page["entries"]) <= 2 and page["scanned"] <= 5
        found += [entry["id"] for entry in page["entries"]]
        cursor, pages = page["nextCursor"], pages + 1
        assert pages <= 4
    assert found == [entry["id"] for entry in trail]


async def test_entries_can_be_filtered(tenant: Tenant, trail: list[Entry]) -> None:
    async def found(query: str) -> list[str]:
        return [entry["id"] for entry in await read(tenant.client, query)]

    ids = [entry["id"] for entry in trail]
    assert await found("?action=key.create") == ids[2:]
    assert await found("?action=queue.*") == ids[:2]
    assert await found("?action=key") == []
    assert await found("?target=orders") == ids[1:2]
    assert await found("?requestId=r-1") == ids[3:4]
    assert await found(f"?actor={tenant.record.id}") == ids
    assert await found("?actor=nobody") == []
    assert await found(f"?from={trail[2]['at']}&to={trail[0]['at']}") == [
        one["id"] for one in trail if trail[2]["at"] <= one["at"] < trail[0]["at"]
    ]
    assert await found("?from=0001-01-01T00:00:00%2B12:00&to=9999-12-31T23:59:59-12:00") == ids
    assert await found(f"?from={trail[0]['at'].replace('Z', '%2B00:00')}")


async def test_a_cursor_beyond_the_end_starts_at_the_end(gateway: Gateway, tenant: Tenant, trail: list[Entry]) -> None:
    """The search must not start at the cursor, which may be far beyond the end."""
    beyond = gateway.node.platform.position_cipher("audit entry").encrypt(tenant.id, 2**62)
    async with asyncio.timeout(30):
        assert await read(tenant.client, f"?cursor={beyond}") == await read(tenant.client)


@pytest.mark.parametrize("query", ["cursor=0", "cursor=x", "limit=0", "limit=1001", "from=yesterday", "to=2026-01-01", "x=1"])
async def test_an_invalid_query_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"{AUDIT}?{query}")).problem(400, "invalid-parameter")


async def test_a_tenant_reads_its_own_entries_and_the_platform_all_entries(
    gateway: Gateway, tenant: Tenant, trail: list[Entry]
) -> None:
    other = await gateway.tenant()
    await other.queue("theirs")
    assert {entry["tenant"] for entry in await read(tenant.client)} == {tenant.id}
    assert await read(tenant.client, f"?tenant={tenant.id}") == await read(tenant.client)
    for name in (other.id, "_platform"):
        (await tenant.client.get(f"{AUDIT}?tenant={name}")).problem(403, "forbidden")
    await new_key_by(gateway.admin, platform=True)
    everything = await read(gateway.admin, "?limit=1000")
    assert {tenant.id, other.id, "_platform"} <= {entry["tenant"] for entry in everything}
    assert {entry["tenant"] for entry in await read(gateway.admin, "?tenant=_platform")} == {"_platform"}
    assert [entry["target"] for entry in await read(gateway.admin, f"?tenant={other.id}")] == ["theirs"]
    for pattern in ("*", "%3E", "a%20b", "a.b", "_other"):
        (await gateway.admin.get(f"{AUDIT}?tenant={pattern}")).problem(400, "invalid-parameter")


async def test_the_audit_log_needs_the_scope_admin(tenant: Tenant) -> None:
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.get(AUDIT)).problem(403, "forbidden")


async def write_entries(gateway: Gateway, tenant: str, numbers: range) -> None:
    """Store this many entries."""
    committer = gateway.node.platform.committers.of(AUDIT_STREAM)
    at = rfc3339(gateway.clock())

    def draft(number: int) -> PendingMessage:
        entry = AuditEntry(
            v=1, id=new_id(), at=at, tenant=tenant, action="test", target=str(number), actor_key_id="k", request_id="r"
        )
        return PendingMessage(f"audit.{tenant}", msgspec.json.encode(entry), entry.id)

    for start in range(numbers.start, numbers.stop, 1000):
        await asyncio.gather(*[committer.append(draft(n)) for n in range(start, min(start + 1000, numbers.stop))])


async def test_few_entries_among_many_of_other_tenants_are_found(gateway: Gateway, tenant: Tenant) -> None:
    noise = fresh("noise")
    await write_entries(gateway, tenant.id, range(2600))
    await write_entries(gateway, noise, range(5000))
    await write_entries(gateway, tenant.id, range(2600, 2601))
    page = (await tenant.client.get(f"{AUDIT}?limit=2")).ok()
    assert len(page["entries"]) == 2 and page["entries"][0]["target"] == "2600"
    assert page["scanned"] < 2000, "what others wrote is not looked at"
    found: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await tenant.client.get(f"{AUDIT}?limit=1000{cursor and '&cursor='}{cursor}")).ok()
        found += [int(entry["target"]) for entry in page["entries"]]
        cursor = page["nextCursor"]
    assert sorted(found) == list(range(2601)) and len(found) == 2601
    assert (await read(tenant.client, "?target=0"))[0]["target"] == "0", "the oldest of all"


# It can be added to, and nothing else


async def test_entries_cannot_be_deleted(gateway: Gateway, trail: list[Entry]) -> None:
    connection = gateway.node.platform.connection
    info = await stream_info(connection, AUDIT_STREAM)
    assert info is not None
    with pytest.raises(EngineRefused):
        await purge_stream(connection, AUDIT_STREAM)
    with pytest.raises(EngineRefused):
        await connection.call(f"STREAM.MSG.DELETE.{AUDIT_STREAM}", {"seq": info.state.last_seq})
    changed = {**info.config, "deny_delete": False, "deny_purge": False}
    with pytest.raises(EngineRefused):
        await connection.call(f"STREAM.UPDATE.{AUDIT_STREAM}", changed)
    after = await stream_info(connection, AUDIT_STREAM)
    assert after is not None and after.state.messages >= info.state.messages


async def test_old_entries_are_dropped_if_configured(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url, audit_keep_days=30)) as gateway:
        info = await stream_info(gateway.node.platform.connection, AUDIT_STREAM)
        assert info is not None and info.config["max_age"] == 30 * 86_400 * 10**9
        await delete_stream(gateway.node.platform.connection, AUDIT_STREAM)
        assert (await gateway.admin.get(AUDIT)).ok()["entries"] == []


async def test_fields_with_the_name_of_a_secret_are_masked(gateway: Gateway, tenant: Tenant) -> None:
    leaky = {"name": "n", "secret": "s3cret", "Key": "s3cret", "locked": "s3cret", "hashes": ["s3cret"], "token": ""}
    await gateway.node.platform.audit.record(actor_of(tenant), "test", "t", before=leaky, after=leaky)
    entry = await last_of(gateway, tenant.id)
    assert "s3cret" not in str(entry)
    assert entry["after"]["name"] == "n" and entry["after"]["secret"] == "***"
    assert _masked(None) is None


def test_an_empty_filter_matches_everything() -> None:
    entry = AuditEntry(v=1, id="1", at="2026", tenant="t", action="a.b", target="x", actor_key_id="k", request_id="r")
    assert AuditFilter().matches(entry)
    assert AuditFilter(since="2026", until="2027").matches(entry)
    assert not AuditFilter(since="2027").matches(entry) and not AuditFilter(until="2026").matches(entry)
    assert AuditFilter(action="*").matches(entry) and AuditFilter(action="a.*").matches(entry)
    assert not AuditFilter(action="a").matches(entry) and not AuditFilter(action="b.*").matches(entry)
