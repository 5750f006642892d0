"""Revocations reach every gateway, late ones are reported, and a worker that is cut off stops in time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from postroad.commands import metrics, revocations
from postroad.commands.capability import CommandsCapability
from postroad.commands.events import ExecutedAfterAclRevoked
from postroad.commands.fast import CacheAges, Dispatch
from postroad.commands.records import ROUTES_BUCKET, SERVICES_BUCKET, GrantRecord, RevokedGrant, RouteRecord
from postroad.commands.registry_cache import _CacheWatch
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.rules import Ages
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.tail import Tail
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import Caller, Scope
from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

# The bound that is promised; milliseconds on an idle machine.
_SECONDS_MAX = 1.0
_OBSERVED_SECONDS = 2.0
_CLIENTS = 8  # of each gateway


@pytest.mark.parametrize(
    ("what", "has_token"),
    [
        *((what, False) for what in ("grant", "trust", "secret", "key", "route")),
        ("trust", True),
        ("key", True),
        ("service", True),
        ("tenant", True),
    ],
)
async def test_a_revocation_stops_commands_on_both_gateways(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, what: str, has_token: bool
) -> None:
    """Under load from both, with a key or an emit token. Requirements 217"""
    await register_target(tenant)
    await grant(tenant, "billing")
    holder = await tenant.another_key()
    (await tenant.client.put("/v1/services/billing", {"trustedKeys": [holder.record.id]})).ok(201)
    secret = (await holder.client.get("/v1/tenant-config")).ok()["services"][0]["secrets"][0]["secret"]
    if has_token:
        holder = replace(holder, key=(await holder.client.post("/v1/services/billing/token")).ok(201)["token"])
    sender = Sender(holder, "billing", secret)
    both = (sender.at(gateway), sender.at(second_gateway))
    for one in both:
        await eventually(lambda one=one: _is_sent(one))  # type: ignore[misc]
    revoked_at = 0.0
    accepted_at: list[float] = []

    async def load(one: Sender) -> None:
        while not revoked_at or time.monotonic() < revoked_at + _OBSERVED_SECONDS:
            started = time.monotonic()
            if (await one.send()).status == 202:
                accepted_at.append(started)

    async with asyncio.TaskGroup() as group:
        for one in both * _CLIENTS:
            group.create_task(load(one))
        await eventually(lambda: len(accepted_at) > 10)
        await _revoke(tenant, holder, what)
        revoked_at = time.monotonic()
    assert max(accepted_at) < revoked_at + _SECONDS_MAX


async def _is_sent(sender: Sender) -> bool:
    return (await sender.send()).status == 202


async def _revoke(tenant: Tenant, holder: Tenant, what: str) -> None:
    client = tenant.client
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "grant": lambda: client.delete("/v1/grants/bot/post/billing"),
        "trust": lambda: client.put("/v1/services/billing", {}),
        "secret": lambda: client.post("/v1/services/billing/secrets/rotate", {"overlapSeconds": 0}),
        "key": lambda: client.delete(f"/api/control/keys/{holder.record.id}"),
        "route": lambda: client.delete("/v1/routes/bot/post"),
        "service": lambda: client.delete("/v1/services/billing"),
        "tenant": lambda: tenant.gateway.admin.patch(f"/api/control/tenants/{tenant.id}", {"enabled": False}),
    }
    await calls[what]()


async def test_a_new_service_route_and_grant_work_on_the_other_gateway_at_once(second_gateway: Gateway, tenant: Tenant) -> None:
    """A command that needs what the worker does not have yet reads it from the engine."""
    await register_target(tenant)
    sender = await register_sender(tenant)
    await grant(tenant, "billing")
    (await sender.at(second_gateway).send()).ok(202)
    (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    newer = (await tenant.client.get("/v1/tenant-config")).ok()["services"][0]["secrets"][0]
    renewed = Sender(tenant, "billing", newer["secret"], newer["versionId"])
    (await renewed.at(second_gateway).send()).ok(202)


# A worker that lost contact


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant, sensitivity="critical")
    await grant(tenant, "billing")
    return await register_sender(tenant)


def age_caches(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, routes: float, secrets: float = 0.0) -> None:
    cache = gateway.node.platform.use(CommandsCapability).cache
    monkeypatch.setattr(cache, "ages", lambda: CacheAges(routes, secrets))


def cut_off(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry cannot be read any more."""

    async def refuse(_table: object, _key: str) -> None:
        raise EngineUnavailable("no answer")

    monkeypatch.setattr(ReplicatedTable, "refresh", refuse)


async def test_a_stale_cache_is_used_and_refreshed_after_the_dispatch(
    gateway: Gateway, tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements 59, 63, 64, 232"""
    polled: list[bool] = []
    cache = gateway.node.platform.use(CommandsCapability).cache
    monkeypatch.setattr(cache, "poll_soon", lambda: polled.append(True))
    age_caches(gateway, monkeypatch, 0.5)
    assert (await sender.send()).ok(202)["path"] == "fast" and not polled
    age_caches(gateway, monkeypatch, 3.0)
    assert (await sender.send()).ok(202)["path"] == "fast"
    assert polled == [True]


@pytest.mark.parametrize(("routes", "secrets"), [(5.0, 0.0), (0.0, 200.0), (200.0, 200.0)])
async def test_an_expired_cache_is_read_from_the_engine_or_the_command_refused(
    gateway: Gateway, tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch, routes: float, secrets: float
) -> None:
    """Requirements 46, 60, 226"""
    age_caches(gateway, monkeypatch, routes, secrets)
    assert (await sender.send()).ok(202)["path"] == "slow"
    [event] = await outcomes(tenant)
    assert event["escalated"] == "cache_expired"
    cut_off(gateway, monkeypatch)
    refused = (await sender.send()).problem(503, "engine-unavailable")
    assert refused["retryable"] is True
    assert len(await outcomes(tenant)) == 1  # neither an event nor a delivery
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 1


@pytest.mark.parametrize(("bucket", "cache_name"), [(ROUTES_BUCKET, "grants"), (SERVICES_BUCKET, "secrets")])
async def test_a_worker_that_is_cut_off_stops_at_the_bound(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, bucket: str, cache_name: str
) -> None:
    """Requirements 48, 56, 59, 60, 63, 65: the ages pass by themselves. A decision is as old as the cache before it at
    least, and as old as the cache after it at most."""
    ages = {"commands_secrets_fresh_seconds": 1.0, "commands_secrets_stale_seconds": 4.2}
    settings = gateway_settings(own_server.url, **ages, commands_critical_ages="1,4,4.2")
    async with running_gateway(settings) as gateway:
        tenant = await gateway.tenant()
        await register_target(tenant, sensitivity="critical")
        await grant(tenant, "billing")
        sender, cache = await register_sender(tenant), gateway.node.platform.use(CommandsCapability).cache
        (await sender.send()).ok(202)
        used = metrics.cache_use(cache_name, "stale")._value.get()
        cut_off_followers(gateway, monkeypatch, f"KV_{bucket}")
        cut_off(gateway, monkeypatch)
        found: list[tuple[float, int, float]] = []
        while not found or (found[-1][1] == 202 and found[-1][2] < 8):
            before = max(cache.ages().routes, cache.ages().secrets)
            answer = await sender.send()
            found.append((before, answer.status, max(cache.ages().routes, cache.ages().secrets)))
        assert answer.problem(503, "engine-unavailable")
        *accepted, (_, _, refused_at) = found
        assert max(age for age, _, _ in accepted) < 4.2 and refused_at >= 0.9 * 4
        assert metrics.cache_use(cache_name, "stale")._value.get() > used
        assert len(accepted) + 1 == (await tenant.stats("/v1/queues/bot-post"))["ready"]


def cut_off_followers(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Neither polls nor notifications of the stream arrive at this gateway any more."""
    connection, catch_up, on_message = gateway.node.platform.connection, Tail._catch_up, Tail._on_message

    def is_cut_off(tail: Tail) -> bool:
        return tail._connection is connection and tail._source.stream == stream

    async def hang(tail: Tail) -> None:
        await (asyncio.sleep(3600) if is_cut_off(tail) else catch_up(tail))

    def drop(tail: Tail, message: IncomingMessage) -> None:
        if not is_cut_off(tail):
            on_message(tail, message)

    monkeypatch.setattr(Tail, "_catch_up", hang)
    monkeypatch.setattr(Tail, "_on_message", drop)


async def test_the_slow_stage_has_a_deadline(
    gateway: Gateway, tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_table: object, _key: str) -> None:
        await asyncio.sleep(3600)

    cache = gateway.node.platform.use(CommandsCapability).cache
    monkeypatch.setattr(ReplicatedTable, "refresh", hang)
    monkeypatch.setattr(cache, "_slow_seconds", 0.05)
    age_caches(gateway, monkeypatch, 5.0)
    assert "not delivered" in (await sender.send()).problem(503, "engine-unavailable")["detail"]


async def test_shield_and_fast_stage_decide_while_the_engine_is_away(own_server: Server) -> None:
    """Requirements 45, 48, 52: its process is suspended."""
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        tenant = await gateway.tenant()
        await register_target(tenant)
        await grant(tenant, "billing")
        sender = await register_sender(tenant)
        (await sender.send()).ok(202)
        dispatcher = gateway.node.platform.use(CommandsCapability).dispatcher
        caller = Caller(tenant.id, tenant.record.id, frozenset({Scope.PUBLISH}), name="test")
        with own_server.suspended():
            body = msgspec.json.encode(envelope(sender.secret, version=sender.version))
            found = dispatcher.prepare(RequestContext(caller), "billing", body)
            assert found is not None and isinstance(found.found, Dispatch)
            assert dispatcher.prepare(RequestContext(caller), "billing", b"{}") is None, "refused with an event"


async def test_the_registry_is_not_read_for_a_command_that_memory_can_decide(
    gateway: Gateway, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements 48, 52"""
    (await sender.send()).ok(202)
    cut_off(gateway, monkeypatch)
    assert (await sender.send()).ok(202)["path"] == "fast"
    broken = await sender.send_raw(b"{}")
    assert broken.problem(400, "command-invalid")["reason"] == "missing-field"


async def test_events_that_cannot_be_stored_refuse_the_command_or_not(
    gateway: Gateway, tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = gateway.node.platform.use(CommandsCapability)
    monkeypatch.setattr(gateway.node.platform.outbox, "_waiting_bytes_max", -1)
    (await sender.send()).problem(503, "engine-unavailable")
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 0
    monkeypatch.setattr(commands.dispatcher.outcomes, "needs_telemetry", False)
    (await sender.send()).ok(202)
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 1


# Commands that were dispatched after a revocation


def route(*grants: str, revoked: tuple[RevokedGrant, ...] = ()) -> RouteRecord:
    return RouteRecord(
        tenant="acme",
        service="bot",
        command="post",
        queue="q",
        grants=tuple(GrantRecord(one, 0) for one in grants),
        revoked=revoked,
        created_at_ms=0,
        updated_at_ms=0,
    )


def test_a_dispatch_after_the_revocation_is_reported_once() -> None:
    """Requirements 68, 206"""
    found: list[ExecutedAfterAclRevoked] = []
    auditor = RevocationAuditor(found.append, lambda: 10_000)
    auditor.record(route(), "acme/a", 5_000)
    auditor.record(route(), "acme/b", 3_000)
    auditor.record(route(), "acme/c", 9_000)
    after = route("acme/c", revoked=(RevokedGrant("acme/a", 4_000), RevokedGrant("acme/b", 4_000), RevokedGrant("acme/c", 1)))
    auditor.check(after)
    auditor.check(after)
    [event] = found
    assert (event.source, event.target, event.command_name, event.tenant) == ("acme/a", "acme/bot", "post", "acme")
    assert (event.stale_duration_seconds, event.acl_revocation_timestamp) == (1.0, "1970-01-01T00:00:04.000Z")


def test_the_memory_of_dispatches_is_bounded_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 68: a route that was dispatched to first and again now is not the one to forget."""
    monkeypatch.setattr(revocations, "_PAIRS_MAX", 5)
    found: list[ExecutedAfterAclRevoked] = []
    auditor = RevocationAuditor(found.append, lambda: 10_000)
    other = msgspec.structs.replace(route(), command="other")
    auditor.record(route(), "acme/a", 5_000)
    for number in range(4):
        auditor.record(other, f"acme/{number}", 5_000)
    auditor.record(route(), "acme/b", 5_000)
    auditor.record(route(), "acme/c", 5_000)
    assert auditor._pairs == sum(len(one) for one in auditor._dispatched.values()) == 3
    auditor.check(route(revoked=(RevokedGrant("acme/b", 4_000), RevokedGrant("acme/a", 4_000))))
    assert [one.source for one in found] == ["acme/b", "acme/a"]


def test_the_revocation_of_a_whole_tenant_concerns_its_services() -> None:
    found: list[ExecutedAfterAclRevoked] = []
    auditor = RevocationAuditor(found.append, lambda: 10_000)
    for source in ("other/a", "other/b", "others/a"):
        auditor.record(route(), source, 5_000)
    auditor.check(route("other/b", revoked=(RevokedGrant("other/*", 4_000),)))
    assert [one.source for one in found] == ["other/a"]


def test_a_deleted_route_has_revoked_its_grants() -> None:
    """Requirements 68, 206"""
    found: list[ExecutedAfterAclRevoked] = []
    auditor = RevocationAuditor(found.append, lambda: 10_000)
    for source, at_ms in (("acme/a", 5_000), ("acme/b", 3_000)):
        auditor.record(route(), source, at_ms)
    auditor.check_deleted("acme.bot.other", "acme/bot", "other", 1_000)
    for _ in range(2):
        auditor.check_deleted("acme.bot.post", "acme/bot", "post", 4_000)
    [event] = found
    assert (event.source, event.target, event.command_name) == ("acme/a", "acme/bot", "post")
    assert (event.stale_duration_seconds, event.acl_revocation_timestamp) == (1.0, "1970-01-01T00:00:04.000Z")


async def test_a_dispatch_after_the_deletion_of_the_route_is_reported(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, sender: Sender
) -> None:
    """The route is deleted at another gateway, by whose time this one dispatched later."""
    commands = gateway.node.platform.use(CommandsCapability)
    (await sender.send()).ok(202)
    record = commands.route_table.get(f"{tenant.id}.bot.post")
    assert record is not None
    commands.auditor.record(record, sender.source, gateway.clock() + 60_000)  # as if the change came too late
    (await second_gateway.with_key(tenant.key).delete("/v1/routes/bot/post")).ok(204)

    async def reported() -> list[str]:
        return [one["source"] for one in await outcomes(tenant) if one["event"].endswith("executed_after_acl_revoked")]

    assert await eventually(reported) == [sender.source]


async def test_a_late_change_is_reported(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """The grant is revoked at another gateway, and this one learns of it after a dispatch."""
    commands = gateway.node.platform.use(CommandsCapability)
    (await sender.send()).ok(202)
    record = commands.route_table.get(f"{tenant.id}.bot.post")
    assert record is not None
    (await tenant.client.delete("/v1/grants/bot/post/billing")).ok(204)
    commands.auditor.record(record, sender.source, gateway.clock() + 1)  # as if it had been dispatched a moment later
    current = commands.route_table.get(record.key)
    assert current is not None
    commands.auditor.check(current)

    async def reported() -> list[str]:
        return [one["source"] for one in await outcomes(tenant) if one["event"].endswith("executed_after_acl_revoked")]

    assert await eventually(reported) == [sender.source]


def test_a_cache_that_is_current_again_is_reported_with_its_greatest_age() -> None:
    """Requirements 71"""
    watch = _CacheWatch("routes", "routing", Ages(60, 180, 180))
    found = [watch.observe(age) for age in (float("inf"), 0.1, 0.5, 61, 100, 0.2, 0.3)]
    assert found == [None, 0.1, None, None, None, 100, None]


async def test_loads_of_caches_are_events_of_the_platform(gateway: Gateway) -> None:
    """Requirements 71, 215"""

    async def kinds() -> bool:
        events = await events_of(gateway.node.platform.connection, "TELEMETRY", PLATFORM)
        return {one["cache_type"] for one in events if one["event"] == "cache.refreshed"} >= {"routing", "ACL", "HMAC"}

    await eventually(kinds)
