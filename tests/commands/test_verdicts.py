"""Verdicts of the fairness auditor: which of them ban a sender, and how often they are reported."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from postroad.commands import metrics
from postroad.commands.capability import CommandsCapability
from postroad.commands.verdict_rules import VerdictPolicy
from postroad.commands.verdicts import Verdicts
from postroad.contracts.verdicts import FAIRNESS_VERDICTS, DominatedRoute, FairnessVerdict
from postroad.kernel.clock import rfc3339
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant)
    await grant(tenant, "billing")
    return await register_sender(tenant)


@pytest.fixture
def verdicts(gateway: Gateway) -> Verdicts:
    return gateway.node.platform.use(CommandsCapability).verdicts


def verdict(gateway: Gateway, sender: Sender, *, minutes_ago: int = 1, ban_seconds: int = 300, **changes: Any) -> FairnessVerdict:
    now = gateway.clock()
    minute = datetime.fromtimestamp((now // 60_000 - minutes_ago) * 60, UTC)
    route = DominatedRoute(target=f"{sender.tenant.id}/bot", command="post", share=0.9, dispatched=200)
    given = FairnessVerdict(
        v=1,
        tenant=sender.tenant.id,
        source=sender.source,
        minute=minute,
        routes=(route,),
        violations=4,
        ban_until=datetime.fromtimestamp(now / 1000 + ban_seconds, UTC),
    )
    return msgspec.structs.replace(given, **changes)


async def events_of(tenant: Tenant, name: str) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("COMMANDS") if one["event"] == name]


async def test_a_verdict_bans_the_sender_from_the_fast_path_and_is_reported(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    """Requirements 122, 208"""
    assert (await sender.send()).ok(202)["path"] == "fast"
    given = verdict(gateway, sender)
    assert await verdicts.apply(given) == "banned"
    [ban] = (await tenant.client.get("/v1/bans")).ok()["bans"]
    assert (ban["source"], ban["kind"], ban["target"], ban["creator"]) == (sender.source, "warm", None, "auditor")
    assert (await sender.send()).ok(202)["path"] == "slow"
    [event] = await events_of(tenant, "snavio.fairness.abuse_detected")
    minute = rfc3339(int(given.minute.timestamp() * 1000))
    assert event.pop("timestamp")
    assert event == {
        "event": "snavio.fairness.abuse_detected",
        "version": 1,
        "event_id": f"fairness:{sender.source}:{minute}",
        "tenant": tenant.id,
        "source": sender.source,
        "affected_targets": [f"{tenant.id}/bot"],
        "total_violations": 4,
        "ban_applied_until": ban["expires_at"],
    }
    entries = (await tenant.client.get("/api/control/audit?action=registry.ban.create")).ok()["entries"]
    assert [one["after"]["verdict"] for one in entries] == [event["event_id"]]
    [flagged] = await events_of(tenant, "fairness.flagged")
    assert (flagged["result"], flagged["share"], flagged["minute"]) == ("banned", 0.9, minute)


async def test_a_verdict_that_is_repeated_is_the_same_event_and_no_longer_ban(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    """As after a leader that died before it acknowledged."""
    given = verdict(gateway, sender)
    assert [await verdicts.apply(given) for _ in range(3)] == ["banned"] * 3
    [ban] = (await tenant.client.get("/v1/bans")).ok()["bans"]
    events = await events_of(tenant, "snavio.fairness.abuse_detected")
    assert len({one["event_id"] for one in events}) == 1
    assert {one["ban_applied_until"] for one in events} == {ban["expires_at"]}
    assert len((await tenant.client.get("/api/control/audit?action=registry.ban.create")).ok()["entries"]) == 1


async def test_the_next_minute_does_not_extend_the_ban_and_is_no_second_event(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    first = verdict(gateway, sender, minutes_ago=2, ban_seconds=100)
    assert await verdicts.apply(first) == "banned"
    assert await verdicts.apply(verdict(gateway, sender, ban_seconds=500)) == "in-force"
    assert len(await events_of(tenant, "snavio.fairness.abuse_detected")) == 1


async def test_a_longer_ban_stays_and_a_shorter_one_of_an_operator_is_extended(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    bans = gateway.node.platform.use(CommandsCapability).bans
    await bans.impose(sender.source, "warm", seconds=400, reason="test", creator="dispatcher")
    assert await verdicts.apply(verdict(gateway, sender, ban_seconds=300)) == "in-force"
    assert await verdicts.apply(verdict(gateway, sender, ban_seconds=900)) == "banned"


FORGED: list[tuple[dict[str, Any], str]] = [
    ({"minutes_ago": 7}, "stale"),
    ({"minutes_ago": 0}, "absurd"),
    ({"minutes_ago": -60}, "absurd"),
    ({"minute": datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)}, "absurd"),
    ({"ban_seconds": 3601}, "absurd"),
    ({"ban_seconds": -1}, "absurd"),
    ({"ban_seconds": 10**9}, "absurd"),
    ({"routes": (DominatedRoute(target="nobody/bot", command="post", share=0.9, dispatched=100),)}, "unknown-route"),
]


def counted(result: str) -> float:
    return float(metrics.verdict(result)._value.get())


@pytest.mark.parametrize(("changes", "result"), FORGED, ids=str)
async def test_a_forged_stale_or_absurd_verdict_changes_nothing(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts, changes: dict[str, Any], result: str
) -> None:
    before = counted(result)
    assert await verdicts.apply(verdict(gateway, sender, **changes)) == result
    assert counted(result) == before + 1
    assert (await tenant.client.get("/v1/bans")).ok()["bans"] == []
    assert await events_of(tenant, "snavio.fairness.abuse_detected") == []


@pytest.mark.parametrize(
    ("share", "dispatched"),
    [(0.8, 200), (0.61, 200), (1.0, 200), (0.9, 66)],
    ids=["at the threshold", "enough for several routes only", "nobody else used the route", "too few commands"],
)
async def test_a_verdict_that_the_auditor_does_not_reach_is_absurd(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts, share: float, dispatched: int
) -> None:
    """Requirement 121"""
    route = DominatedRoute(target=f"{tenant.id}/bot", command="post", share=share, dispatched=dispatched)
    assert await verdicts.apply(verdict(gateway, sender, routes=(route,))) == "absurd"
    assert (await tenant.client.get("/v1/bans")).ok()["bans"] == []


async def test_a_smaller_share_of_several_routes_is_enough(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    """Requirement 121"""
    (await tenant.client.put("/v1/routes/bot/pin", {"queue": "bot-post"})).ok(201)
    routes = tuple(DominatedRoute(target=f"{tenant.id}/bot", command=name, share=0.61, dispatched=50) for name in ("pin", "post"))
    assert await verdicts.apply(verdict(gateway, sender, routes=routes)) == "banned"


async def test_a_source_that_does_not_exist_is_not_banned(gateway: Gateway, sender: Sender, verdicts: Verdicts) -> None:
    stranger = verdict(gateway, sender, source=f"{sender.tenant.id}/nobody")
    assert await verdicts.apply(stranger) == "unknown-source"


async def test_the_owner_of_a_route_decides_whether_verdicts_concern_it(
    gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts
) -> None:
    async def set_fairness(**fairness: object) -> None:
        body = {"queue": "bot-post", "rate_limit": {"max": 100}, "fairness": fairness}
        (await tenant.client.put("/v1/routes/bot/post", body)).ok()

    await set_fairness(enabled=False)
    assert await verdicts.apply(verdict(gateway, sender)) == "fairness-off"
    await set_fairness(dominant_share=0.5)
    route = DominatedRoute(target=f"{tenant.id}/bot", command="post", share=0.55, dispatched=120)
    assert await verdicts.apply(verdict(gateway, sender, routes=(route,))) == "banned"


async def test_shadow_reports_and_bans_no_source(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    commands = gateway.node.platform.use(CommandsCapability)
    platform = gateway.node.platform
    made = {
        mode: Verdicts(
            platform.connection,
            commands.service_table,
            commands.route_table,
            commands.bans,
            platform.outbox,
            platform.audit,
            platform.clock,
            replace(VerdictPolicy(), mode=mode),
        )
        for mode in ("shadow", "off")
    }
    assert await made["off"].apply(verdict(gateway, sender)) == "off"
    assert await events_of(tenant, "fairness.flagged") == []
    assert await made["shadow"].apply(verdict(gateway, sender)) == "shadow"
    [flagged] = await events_of(tenant, "fairness.flagged")
    assert flagged["result"] == "shadow"
    assert (await tenant.client.get("/v1/bans")).ok()["bans"] == []
    assert await events_of(tenant, "snavio.fairness.abuse_detected") == []
    assert (await sender.send()).ok(202)["path"] == "fast"


@pytest.fixture
async def consuming(verdicts: Verdicts) -> AsyncIterator[None]:
    """The leader's job."""
    task = asyncio.create_task(verdicts.consume())
    yield
    task.cancel()


@pytest.mark.usefixtures("consuming")
async def test_verdicts_are_read_from_the_work_queue_and_invalid_ones_are_dropped(
    gateway: Gateway, tenant: Tenant, sender: Sender
) -> None:
    connection = gateway.node.platform.connection
    before = {result: counted(result) for result in ("foreign", "unreadable")}
    good = verdict(gateway, sender)
    foreign = msgspec.structs.replace(good, tenant="other")
    bad_name = msgspec.structs.replace(good, source=f"{tenant.id}/../x")
    for body in (
        b"",
        b"no json",
        b'{"v":2}',
        msgspec.json.encode(foreign),
        msgspec.json.encode(bad_name),
        msgspec.json.encode(good),
    ):
        await connection.request(FAIRNESS_VERDICTS.subject_of(tenant=tenant.id), body)

    async def bans() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await tenant.client.get("/v1/bans")).ok()["bans"]
        return found

    async def is_banned() -> bool:
        return [one["source"] for one in await bans()] == [sender.source]

    await eventually(is_banned)
    assert counted("foreign") >= before["foreign"] + 2 and counted("unreadable") >= before["unreadable"] + 3


async def test_a_ban_of_the_auditor_ends_on_its_own(gateway: Gateway, tenant: Tenant, sender: Sender, verdicts: Verdicts) -> None:
    assert await verdicts.apply(verdict(gateway, sender, ban_seconds=2)) == "banned"

    async def is_fast() -> bool:
        return bool((await sender.send()).ok(202)["path"] == "fast")

    await eventually(is_fast)
