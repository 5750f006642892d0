"""Invites: a code that creates one tenant and its first key, once."""

import asyncio
from typing import Any

import pytest

from postroad.access.invites import Invites
from postroad.access.key_service import KeyService
from postroad.access.keys import INVITE_PREFIX, new_key
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.names import RESERVED
from tests.access.control import CLAIM, INVITES, KEYS, SETTINGS, TENANTS, WHOAMI, entries_of, fresh, status_of
from tests.gateway import Answer, Gateway, ShiftedClock, Tenant
from tests.waiting import eventually


async def invite(gateway: Gateway, **body: object) -> tuple[str, dict[str, Any]]:
    made = (await gateway.admin.post(INVITES, body)).ok(201)
    return made["code"], made["invite"]


async def claim(gateway: Gateway, code: str, tenant: str | None = None, **more: object) -> Answer:
    """Claim without a key."""
    named = {} if tenant is None else {"tenant": tenant}
    return await gateway.anonymous.post(CLAIM, {"code": code, **named, **more})


async def view_of(gateway: Gateway, invite_id: str) -> dict[str, Any]:
    listed = (await gateway.admin.get(f"{INVITES}?limit=1000")).ok()["invites"]
    [found] = [one for one in listed if one["id"] == invite_id]
    return dict(found)


async def test_a_claim_creates_a_tenant_and_its_first_key(gateway: Gateway) -> None:
    code, made = await invite(gateway, note="for Ada", autoCreateQueues=True)
    assert code.startswith(INVITE_PREFIX)
    assert (made["state"], made["note"], made["tenant"], made["claimedTenant"]) == ("open", "for Ada", None, None)
    name = fresh()
    answer = await claim(gateway, code, name, keyName="Ada's")
    assert answer.headers["cache-control"] == "no-store"
    claimed = answer.ok(201)
    client = gateway.with_key(claimed["key"])
    me = (await client.get(WHOAMI)).ok()
    assert (me["tenant"], me["keyName"], me["platform"]) == (name, "Ada's", False)
    assert sorted(me["scopes"]) == ["admin", "consume", "publish", "read", "write"]
    assert claimed["record"]["createdBy"] == f"invite:{made['id']}"
    assert (await client.post("/v1/queues/new/messages", {"payload": 1})).status == 201, "queues are made by publishing"
    view = await view_of(gateway, made["id"])
    assert (view["state"], view["claimedTenant"]) == ("claimed", name) and view["claimedAt"]


async def test_an_invite_for_a_taken_name_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    problem = (await gateway.admin.post(INVITES, {"tenant": tenant.id})).problem(409, "already-exists")
    assert tenant.id in problem["detail"]
    code, _ = await invite(gateway, tenant=fresh())
    (await claim(gateway, code)).ok(201)


async def test_an_invite_can_be_claimed_once(gateway: Gateway, second_gateway: Gateway) -> None:
    code, _ = await invite(gateway)
    name = fresh()
    (await claim(gateway, code, name)).ok(201)
    for one in (gateway, second_gateway):
        (await claim(one, code, fresh())).problem(410, "invite-ended")
        (await claim(one, code, name)).problem(410, "invite-ended")


async def test_an_invite_expires(gateway: Gateway, clock: ShiftedClock) -> None:
    code, made = await invite(gateway, expiresInSeconds=60)
    clock.ahead_ms = 60_001
    (await claim(gateway, code, fresh())).problem(410, "invite-ended")
    assert (await view_of(gateway, made["id"]))["state"] == "expired"


async def test_a_revoked_invite_is_not_found(gateway: Gateway) -> None:
    code, made = await invite(gateway)
    assert (await gateway.admin.delete(f"{INVITES}/{made['id']}")).status == 204
    (await claim(gateway, code, fresh())).problem(404, "invite-not-found")
    (await gateway.admin.delete(f"{INVITES}/{made['id']}")).problem(404, "invite-not-found")


@pytest.mark.parametrize("code", ["x", "pr_invite_", "\xe9" * 64, " " * 64])
async def test_an_unknown_code_is_not_found(gateway: Gateway, code: str) -> None:
    (await claim(gateway, code, fresh())).problem(404, "invite-not-found")


async def test_the_id_of_an_invite_with_another_secret_is_not_found(gateway: Gateway) -> None:
    code, made = await invite(gateway)
    (await claim(gateway, new_key(INVITE_PREFIX, key_id=made["id"]), fresh())).problem(404, "invite-not-found")
    (await claim(gateway, code, fresh())).ok(201)


async def test_a_code_is_not_a_key(gateway: Gateway) -> None:
    code, _ = await invite(gateway)
    (await gateway.with_key(code).get(WHOAMI)).problem(401, "unauthenticated")


async def test_an_invite_for_a_tenant_creates_that_tenant_only(gateway: Gateway) -> None:
    name = fresh()
    code, _ = await invite(gateway, tenant=name)
    problem = (await claim(gateway, code, fresh())).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.tenant"
    claimed = (await claim(gateway, code)).ok(201)
    assert claimed["record"]["tenant"] == name


async def test_an_invite_without_a_tenant_requires_one_in_the_claim(gateway: Gateway) -> None:
    code, _ = await invite(gateway)
    problem = (await claim(gateway, code)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.tenant"


async def test_an_existing_tenant_is_refused_and_the_invite_stays_open(gateway: Gateway, tenant: Tenant) -> None:
    code, made = await invite(gateway, autoCreateQueues=True)
    for name in (tenant.id, "default"):
        (await claim(gateway, code, name)).problem(409, "already-exists")
    assert (await view_of(gateway, made["id"]))["state"] == "open"
    assert [key["id"] for key in (await tenant.client.get(KEYS)).ok()["keys"]] == [tenant.record.id]
    assert (await tenant.client.get(SETTINGS)).ok()["settings"]["autoCreateQueues"] is False
    (await claim(gateway, code, fresh())).ok(201)


@pytest.mark.parametrize("name", [*sorted(RESERVED)[:3], "queues", "Upper", "-x", "a_b", "a.b", "x" * 33, "", "_platform"])
async def test_an_invalid_tenant_id_is_refused_and_the_invite_stays_open(gateway: Gateway, name: str) -> None:
    code, _ = await invite(gateway)
    problem = (await claim(gateway, code, name)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.tenant"
    (await gateway.admin.post(INVITES, {"tenant": name})).problem(422, "invalid-body")
    (await claim(gateway, code, fresh())).ok(201)


async def test_one_of_many_claims_for_the_same_tenant_succeeds(gateway: Gateway, second_gateway: Gateway) -> None:
    code, made = await invite(gateway)
    name = fresh()
    answers = await asyncio.gather(*[claim(one, code, name) for one in (gateway, second_gateway) * 4])
    [won] = [answer.ok(201) for answer in answers if answer.status == 201]
    assert {answer.status for answer in answers} <= {201, 409, 410}
    winner = gateway.with_key(won["key"])

    async def has_one_key() -> bool:
        return [key["id"] for key in (await winner.get(KEYS)).ok()["keys"]] == [won["record"]["id"]]

    await eventually(has_one_key)
    assert (await view_of(gateway, made["id"]))["claimedTenant"] == name


async def test_one_of_many_claims_for_different_tenants_succeeds_and_the_others_leave_nothing(
    gateway: Gateway, second_gateway: Gateway, control: Gateway
) -> None:
    code, _ = await invite(gateway)
    names = [fresh() for _ in range(6)]
    gateways = (gateway, second_gateway) * 3
    answers = await asyncio.gather(*[claim(one, code, name) for one, name in zip(gateways, names, strict=True)])
    [won] = [answer.ok(201) for answer in answers if answer.status == 201]
    assert sorted(answer.status for answer in answers) == [201] + [410] * 5

    async def is_alone() -> bool:
        statuses = [(await control.admin.get(f"{TENANTS}/{name}")).status for name in names]
        return sorted(statuses) == [200] + [404] * 5

    await eventually(is_alone)
    assert await status_of(gateway.with_key(won["key"])) == 200


@pytest.mark.parametrize("where", [(KeyService, "add"), (Invites, "_mark_claimed")], ids=["before the key", "before the mark"])
async def test_an_interrupted_claim_can_be_repeated(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    async def fail(*_: object) -> None:
        raise EngineUnavailable("pulled out")

    code, made = await invite(gateway)
    name = fresh()
    with monkeypatch.context() as broken:
        broken.setattr(*where, fail)
        (await claim(gateway, code, name)).problem(503, "engine-unavailable")
    assert (await gateway.admin.get(f"{TENANTS}/{name}")).status == 200
    assert (await view_of(gateway, made["id"]))["state"] == "open"
    (await claim(gateway, (await invite(gateway))[0], name)).problem(409, "already-exists")
    claimed = (await claim(gateway, code, name)).ok(201)
    assert await status_of(gateway.with_key(claimed["key"])) == 200
    claims = [entry for entry in await entries_of(gateway, "_platform") if entry["target"] == made["id"]]
    assert [entry.get("outcome", "ok") for entry in claims if entry["action"] == "invite.claim"] == ["ok", "failed", "ok"]
    assert [entry["action"] for entry in await entries_of(gateway, name)] == ["tenant.create"]


async def test_invites_are_listed_newest_first_in_pages(gateway: Gateway) -> None:
    made = [(await invite(gateway, note=f"n{number}"))[1]["id"] for number in range(3)]
    first = (await gateway.admin.get(f"{INVITES}?limit=2")).ok()
    second = (await gateway.admin.get(f"{INVITES}?limit=2&cursor={first['nextCursor']}")).ok()
    ids = [one["id"] for one in first["invites"] + second["invites"]]
    order = {(one["createdAt"], one["id"]) for one in first["invites"] + second["invites"]}
    assert ids == [one for _, one in sorted(order, reverse=True)] and len(set(ids)) == len(ids)
    assert set(made) <= set(ids)


@pytest.mark.parametrize("cursor", ["x", "%C2%B2.x", "-1"])
async def test_an_invalid_cursor_is_refused(gateway: Gateway, cursor: str) -> None:
    await invite(gateway)
    (await gateway.admin.get(f"{INVITES}?cursor={cursor}")).problem(400, "invalid-parameter")


async def test_invites_need_a_platform_key(gateway: Gateway, tenant: Tenant) -> None:
    _, made = await invite(gateway)
    for call in (
        tenant.client.get(INVITES),
        tenant.client.post(INVITES, {}),
        tenant.client.delete(f"{INVITES}/{made['id']}"),
    ):
        (await call).problem(403, "forbidden")
