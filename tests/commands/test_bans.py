"""Bans: who may impose them, what each kind does to a sender's commands, on every gateway, and how they end."""

import asyncio
from typing import Any

import pytest

from postroad.commands.ban_view import BanView
from postroad.commands.capability import CommandsCapability
from postroad.commands.limit_records import BanRecord, ban_key
from tests.commands.senders import Sender, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant)
    await grant(tenant, "billing")
    return await register_sender(tenant)


async def ban(tenant: Tenant, kind: str, **more: object) -> Any:
    given = {"source": "billing", "kind": kind, "target": "bot", "command": "post", "reason": "test", **more}
    return (await tenant.client.post("/v1/bans", given)).ok(201)


@pytest.mark.parametrize(("kind", "code"), [("warm", "warm_banned"), ("cold-only", "cold_only")])
async def test_a_banned_sender_takes_the_slow_path(tenant: Tenant, sender: Sender, kind: str, code: str) -> None:
    """Requirements 106, 140"""
    found = await ban(tenant, kind)
    assert (found["source"], found["target"], found["command"], found["creator"]) == (
        sender.source,
        f"{tenant.id}/bot",
        "post",
        "owner",
    )
    assert (await sender.send()).ok(202)["path"] == "slow"
    [event] = await outcomes(tenant)
    assert (event["path"], event["escalated"]) == ("slow", code)


async def test_a_hard_ban_refuses_with_hints_and_an_event(tenant: Tenant, sender: Sender) -> None:
    """Requirements 44, 125"""
    found = await ban(tenant, "hard", duration_seconds=60)
    answer = await sender.send()
    refused = answer.problem(429, "fairness-violation")
    assert 0 < refused["retry_after_ms"] <= 60_000 and refused["throttle_until"] == found["expires_at"]
    assert refused["reason"] == "fairness-violation" and refused["retryable"] and 0 < int(answer.headers["retry-after"]) <= 60
    [event] = await outcomes(tenant)
    assert (event["event"], event["reason"]) == ("snavio.command.failed", "fairness-violation")
    assert (event["retry_after_ms"], event["throttle_until"]) == (refused["retry_after_ms"], refused["throttle_until"])
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 0
    other = await register_sender(tenant, "mailer")
    await grant(tenant, "mailer")
    (await other.send()).ok(202)


async def test_a_ban_on_one_route_does_not_concern_another(tenant: Tenant, sender: Sender) -> None:
    await register_target(tenant, command="pay")
    await grant(tenant, "billing", command="pay")
    await ban(tenant, "hard")
    assert (await sender.send(name="pay")).ok(202)["path"] == "fast"


async def test_a_ban_holds_on_every_gateway_and_ends_when_deleted(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, sender: Sender
) -> None:
    """Requirements 104"""
    found = await ban(tenant, "hard")

    async def is_refused(one: Sender) -> bool:
        return (await one.send()).status == 429

    for one in (sender.at(gateway), sender.at(second_gateway)):
        await eventually(lambda one=one: is_refused(one))  # type: ignore[misc]
    (await tenant.client.delete(f"/v1/bans/{found['id']}")).ok(204)
    (await tenant.client.delete(f"/v1/bans/{found['id']}")).problem(404, "ban-not-found")
    for one in (sender.at(gateway), sender.at(second_gateway)):

        async def is_sent(one: Sender = one) -> bool:
            return (await one.send()).status == 202

        await eventually(is_sent)
    events = [one["event"] for one in await tenant.events("COMMANDS") if one["event"].startswith("ban.")]
    assert events == ["ban.created", "ban.ended"]


async def test_a_ban_ends_at_its_time(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    await ban(tenant, "hard", duration_seconds=1)
    (await sender.send()).problem(429, "fairness-violation")

    async def is_sent() -> bool:
        return (await sender.send()).status == 202

    await eventually(is_sent)
    assert (await tenant.client.get("/v1/bans")).ok()["bans"] == []


async def test_only_operators_ban_on_all_routes(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    body = {"source": "billing", "kind": "hard", "reason": "test"}
    (await tenant.client.post("/v1/bans", body)).problem(403, "forbidden")
    other = await gateway.tenant()
    stranger = {**body, "source": sender.source, "target": f"{tenant.id}/bot", "command": "post"}
    (await other.client.post("/v1/bans", stranger)).problem(403, "forbidden")
    found = (await gateway.admin.post("/v1/bans", {**body, "source": sender.source})).ok(201)
    assert (found["creator"], found["target"], found["command"]) == ("operator", None, None)
    (await sender.send()).problem(429, "fairness-violation")
    listed = (await tenant.client.get("/v1/bans")).ok()["bans"]
    assert listed == [found]
    (await tenant.client.delete(f"/v1/bans/{found['id']}")).problem(403, "forbidden")
    (await other.client.delete(f"/v1/bans/{found['id']}")).problem(404, "ban-not-found")
    assert (await other.client.get("/v1/bans")).ok()["bans"] == []
    (await gateway.admin.delete(f"/v1/bans/{found['id']}")).ok(204)
    (await sender.send()).ok(202)


async def test_a_whole_tenant_can_be_banned(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    body = {"source": f"{tenant.id}/*", "kind": "hard", "reason": "test"}
    (await gateway.admin.post("/v1/bans", body)).ok(201)
    (await sender.send()).problem(429, "fairness-violation")


async def test_invalid_bans_are_refused(tenant: Tenant, sender: Sender) -> None:
    good = {"source": "billing", "kind": "hard", "target": "bot", "command": "post", "reason": "test"}
    for wrong in (
        {"command": None},
        {"target": None},
        {"source": "a b"},
        {"kind": "soft"},
        {"reason": ""},
        {"duration_seconds": 0},
        {"duration_seconds": 31 * 86_400},
        {"more": 1},
    ):
        (await tenant.client.post("/v1/bans", {**good, **wrong})).problem(422, "invalid-body")


async def test_lists_have_pages_and_filters(tenant: Tenant, sender: Sender) -> None:
    for name in ("a", "b", "c"):
        await ban(tenant, "hard", source=name)
        await ban(tenant, "warm", source=name)
    first = (await tenant.client.get("/v1/bans?limit=4")).ok()
    rest = (await tenant.client.get(f"/v1/bans?limit=4&cursor={first['nextCursor']}")).ok()
    found = [(one["source"].partition("/")[2], one["kind"]) for one in (*first["bans"], *rest["bans"])]
    assert found == [(name, kind) for name in "abc" for kind in ("hard", "warm")] and rest["nextCursor"] is None
    assert len((await tenant.client.get("/v1/bans?kind=warm")).ok()["bans"]) == 3
    assert len((await tenant.client.get("/v1/bans?source=b")).ok()["bans"]) == 2


async def test_a_key_of_one_service_sees_and_bans_on_that_only(tenant: Tenant, sender: Sender) -> None:
    await ban(tenant, "warm")
    narrow = await tenant.another_key(allowed_services=("other",))
    assert (await narrow.client.get("/v1/bans")).ok()["bans"] == []
    body = {"source": "billing", "kind": "hard", "target": "bot", "command": "post", "reason": "test"}
    (await narrow.client.post("/v1/bans", body)).problem(403, "forbidden")


async def test_imposed_bans_are_never_shortened(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """The dispatcher and the auditor impose them; concurrent ones leave the longest."""
    bans = gateway.node.platform.use(CommandsCapability).bans
    lengths = (5, 100, 50, 1)
    await asyncio.gather(
        *[bans.impose(sender.source, "warm", seconds=one, reason="test", creator="dispatcher") for one in lengths]
    )
    [found] = bans.view.visible_to(tenant.id, gateway.clock())
    assert found.expires_at_ms - found.created_at_ms == 100_000 and found.creator == "dispatcher"


async def test_bans_of_a_deleted_tenant_are_deleted(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    await ban(tenant, "warm")
    commands = gateway.node.platform.use(CommandsCapability)
    await commands.delete_tenant(tenant.id)
    assert list(commands.bans.view.visible_to(tenant.id, gateway.clock())) == []


def record(kind: Any, route: tuple[str, str, str] | None = None, *, until: int = 100, source: str = "acme/a") -> BanRecord:
    return BanRecord(source=source, kind=kind, route=route, reason="r", creator="owner", created_at_ms=0, expires_at_ms=until)


def test_the_strongest_ban_counts_and_none_after_its_time() -> None:
    view, route = BanView(), ("t", "bot", "post")
    bans = [record("warm", until=90), record("cold-only", route, until=50), record("hard", ("t", "bot", "pay"), until=99)]
    for one in bans:
        view.apply(one.key, one)
    assert view.find("acme/a", *route, 0) == bans[1]
    assert view.find("acme/a", *route, 50) == bans[0]
    assert view.find("acme/a", *route, 90) is None
    assert view.find("acme/a", "t", "bot", "pay", 0) == bans[2]
    assert view.find("acme/b", *route, 0) is None
    view.apply(bans[1].key, None)
    assert view.find("acme/a", *route, 0) == bans[0]
    assert [one.kind for one in view.visible_to("t", 0)] == ["hard"] and len(list(view.visible_to("acme", 0))) == 2


def test_a_record_under_a_key_of_another_sender_has_no_effect() -> None:
    view = BanView()
    view.apply(ban_key("acme/b", "hard", None), record("hard"))
    assert view.find("acme/a", "t", "s", "c", 0) is None and view.find("acme/b", "t", "s", "c", 0) is None


def test_keys_are_distinct() -> None:
    names = [("acme/a", None), ("acme/a.b", None), ("acme/*", None), ("acme/a", ("b", "c", "d")), ("acme/a", ("b", "c.d", "e"))]
    assert len({ban_key(source, "warm", route) for source, route in names}) == len(names)
