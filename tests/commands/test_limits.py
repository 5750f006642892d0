"""Rate limits, quotas and fairness over HTTP: exact counts, refusals with hints, prefetched tokens, several gateways."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from postroad.commands import rate_rules
from postroad.commands.capability import CommandsCapability
from postroad.commands.rate_rules import Limit
from postroad.commands.token_blocks import TOKEN_MS_MAX, TokenBlocks
from postroad.commands.token_source import Exhausted, Token, TokenSource
from postroad.commands.warm_bans import WarmBanLog
from postroad.kernel.clock import now_ms
from tests.commands.senders import Sender, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

HOUR = 3600


async def limited(tenant: Tenant, rate: dict[str, Any], sender: str = "billing", **route: Any) -> Sender:
    """A sender with a grant on a route with this limit."""
    await register_target(tenant, rate_limit={"interval_seconds": HOUR, **rate}, **route)
    await grant(tenant, sender)
    return await register_sender(tenant, sender)


async def usage(tenant: Tenant) -> Any:
    return (await tenant.client.get("/v1/routes/bot/post")).ok()["usage"]


async def send_many(sender: Sender, count: int) -> Counter[int]:
    answers = await asyncio.gather(*[sender.send() for _ in range(count)])
    return Counter(one.status for one in answers)


@pytest.fixture(autouse=True)
def still(gateway: Gateway, second_gateway: Gateway) -> Iterator[None]:
    """The clocks stand at the beginning of an interval of an hour, so that none ends during a test."""
    now = gateway.clock()
    for one in (gateway, second_gateway):
        one.clock.frozen_ms = now - now % (HOUR * 1000) + 1000
    yield
    for one in (gateway, second_gateway):
        one.clock.frozen_ms = None


async def test_the_limit_is_exact_and_refusals_have_hints(tenant: Tenant) -> None:
    """Requirements 26, 89, 91, 95, 126, 204"""
    sender = await limited(tenant, {"max": 5})
    assert [(await sender.send()).status for _ in range(5)] == [202] * 5
    answer = await sender.send()
    refused = answer.problem(429, "rate-limit-exceeded")
    assert refused["reason"] == "rate-limit-exceeded" and refused["retryable"] is True
    assert 0 < refused["retry_after_ms"] <= HOUR * 1000
    assert 0 < int(answer.headers["retry-after"]) <= HOUR
    events = await outcomes(tenant)
    assert [one["event"] for one in events] == ["snavio.command.delivered"] * 5 + ["snavio.command.failed"]
    assert {one["escalated"] for one in events} == {"token_required"}
    assert (events[-1]["reason"], events[-1]["throttle_until"]) == ("rate-limit-exceeded", refused["throttle_until"])
    assert events[-1]["retry_after_ms"] == refused["retry_after_ms"]
    found = await usage(tenant)
    assert (found["allowed"], found["used"], found["available"], found["delayed"]) == (5, 5, 0, 0)
    assert found["interval_end"] == refused["throttle_until"]


async def test_two_gateways_share_the_limit(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 94, 113: concurrent senders get exactly the limit, with few writes."""
    sender = await limited(tenant, {"max": 100}, archive=False)
    found: Counter[int] = Counter()

    async def load(one: Sender) -> None:
        for _ in range(10):
            found[(await one.send()).status] += 1

    both = (sender.at(gateway), sender.at(second_gateway))
    await asyncio.gather(*[load(both[number % 2]) for number in range(24)])
    assert found[202] <= 100 and found[202] + found[429] == 240
    held = sum(_held(one, tenant) for one in (gateway, second_gateway))
    assert found[202] + held == 100
    assert (await usage(tenant))["used"] == 100
    queue = await tenant.stats("/v1/queues/bot-post")
    assert queue["ready"] == found[202]


def _held(gateway: Gateway, tenant: Tenant) -> int:
    """Tokens of the tenant's route that the gateway has prefetched and not used."""
    block = gateway.node.platform.use(CommandsCapability).warm.tokens._blocks.get(f"{tenant.id}.bot.post")
    return 0 if block is None else block.left


async def test_prefetched_tokens_serve_the_fast_path_and_return_at_shutdown(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 90, 92, 93, 94"""
    sender = await limited(tenant, {"max": 1000})

    async def is_fast() -> bool:
        answers = await asyncio.gather(*[sender.send() for _ in range(8)])
        return any(one.ok(202)["path"] == "fast" for one in answers)

    await eventually(is_fast)
    commands = gateway.node.platform.use(CommandsCapability)
    await commands.tokens_of_limits.drain()
    sent = len(await outcomes(tenant))
    assert (await usage(tenant))["used"] == sent + _held(gateway, tenant)
    await commands.flush()
    assert _held(gateway, tenant) == 0 and (await usage(tenant))["used"] == sent


async def test_tokens_of_a_route_that_gets_no_more_commands_return(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 92, 94: when their time is over, not with the next command."""
    sender = await limited(tenant, {"max": 1000})
    await eventually(lambda: _has_prefetched(gateway, sender))
    commands = gateway.node.platform.use(CommandsCapability)
    assert gateway.clock.frozen_ms is not None
    gateway.clock.frozen_ms += TOKEN_MS_MAX
    sent = len(await outcomes(tenant))

    async def has_returned() -> bool:
        return bool((await usage(tenant))["used"] == sent)

    await commands.limiter.return_unused()
    await eventually(has_returned)
    assert _held(gateway, tenant) == 0


async def _has_prefetched(gateway: Gateway, sender: Sender) -> bool:
    await asyncio.gather(*[sender.send() for _ in range(8)])
    await gateway.node.platform.use(CommandsCapability).tokens_of_limits.drain()
    return _held(gateway, sender.tenant) > 0


def test_a_slow_sender_does_not_prefetch_and_unused_tokens_return() -> None:
    """Requirements 94"""
    blocks, limit = TokenBlocks(), Limit(100, HOUR * 1000)
    assert [blocks.wanted("r", limit, number * 1000) for number in range(20)] == [0] * 20
    counts = [blocks.wanted("r", limit, 30_000 + number) for number in range(10)]
    assert counts[:4] == [0] * 4 and all(counts[4:])
    blocks.put("r", 0, 3, 31_000)
    assert blocks.take("r", 30_500) == 0 and blocks.has("r", 30_999) and not blocks.has("r", 31_000)
    [(key, block)] = blocks.take_unused(31_000)
    assert (key, block.interval, block.left) == ("r", 0, 2) and blocks.take_unused(31_000) == []
    blocks.put("r", 1, 1, 40_000)
    blocks.put("r", 2, 2, 50_000)
    blocks.put("r", 3, 3, 60_000)
    blocks.put("s", 3, 4, 60_000)
    assert [(key, one.left) for key, one in blocks.take_unused(50_000)] == [("r", 1), ("r", 2)]
    assert [(key, one.left) for key, one in blocks.take_unused(60_000)] == [("r", 3), ("s", 4)], "also of an idle route"
    blocks.put("r", 1, 1, 40_000)
    blocks.put("r", 2, 2, 50_000)
    assert [(key, one.left) for key, one in blocks.drain()] == [("r", 1), ("r", 2)] and blocks.drain() == []


async def test_a_small_limit_is_not_prefetched(gateway: Gateway, tenant: Tenant) -> None:
    sender = await limited(tenant, {"max": 5})
    await send_many(sender, 4)
    assert _held(gateway, tenant) == 0


async def test_shadow_mode_reports_and_never_refuses(tenant: Tenant) -> None:
    """Requirements 229"""
    sender = await limited(tenant, {"max": 2, "mode": "shadow"})
    assert await send_many(sender, 5) == {202: 5}
    shadows = Counter(one["shadow"] for one in await outcomes(tenant))
    assert shadows == {None: 2, "rate-limit-exceeded": 3}


async def test_overflow_is_delivered_later(tenant: Tenant) -> None:
    sender = await limited(tenant, {"max": 2, "overflow": "delay", "max_delay_seconds": 2 * HOUR})
    answers = [await sender.send() for _ in range(7)]
    assert [one.status for one in answers] == [202] * 6 + [429]
    times = [one.json.get("deliverAt") for one in answers[:6]]
    assert times[:2] == [None, None] and times[2] == times[3] < times[4] == times[5]
    assert await tenant.stats("/v1/queues/bot-post") == {"ready": 2, "leased": 0, "delayed": 4}
    assert (await usage(tenant))["delayed"] == 4
    events = await outcomes(tenant)
    assert [one.get("deliver_at") for one in events[:6]] == times


async def test_a_delivery_failure_returns_its_token(gateway: Gateway, tenant: Tenant) -> None:
    sender = await limited(tenant, {"max": 3})
    (await tenant.client.delete("/v1/queues/bot-post")).ok(204)
    for _ in range(5):
        (await sender.send()).problem(502, "delivery-failure")
        await gateway.node.platform.use(CommandsCapability).tokens_of_limits.drain()
    assert (await usage(tenant))["used"] == 0


async def test_a_changed_limit_holds_at_once(gateway: Gateway, tenant: Tenant) -> None:
    sender = await limited(tenant, {"max": 2})
    assert (await send_many(sender, 4)) == {202: 2, 429: 2}
    body = {"queue": "bot-post", "rate_limit": {"max": 5, "interval_seconds": HOUR}}
    (await tenant.client.put("/v1/routes/bot/post", body)).ok()
    assert (await send_many(sender, 5)) == {202: 3, 429: 2}
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post"})).ok()
    assert (await send_many(sender, 5)) == {202: 5}


@pytest.mark.parametrize(
    ("rate", "path"),
    [
        ({"max": 0}, "$.rate_limit.max"),
        ({"max": 1, "interval_seconds": 90_000}, "$.rate_limit.interval_seconds"),
        ({"max": 1, "burst": -1}, "$.rate_limit.burst"),
        ({"max": 1, "mode": "off"}, "$.rate_limit.mode"),
        ({"max": 1, "more": 1}, "$.rate_limit"),
        ({"max": 1, "overflow": "delay", "interval_seconds": 60, "max_delay_seconds": 59}, "$.rate_limit.max_delay_seconds"),
    ],
)
async def test_invalid_limits_are_refused(tenant: Tenant, rate: dict[str, Any], path: str) -> None:
    await register_target(tenant)
    problem = (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "rate_limit": rate})).problem(
        422, "invalid-body"
    )
    assert problem["errors"][0]["path"] == path


async def test_fairness_needs_a_limit(tenant: Tenant) -> None:
    await register_target(tenant)
    body = {"queue": "bot-post", "fairness": {"enabled": False}}
    (await tenant.client.put("/v1/routes/bot/post", body)).problem(422, "invalid-body")


# The source of tokens


async def test_acquisitions_of_a_worker_share_writes(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 95: one write for all that wait."""
    source = gateway.node.platform.use(CommandsCapability).tokens_of_limits
    limit = Limit(60, HOUR * 1000)
    key = f"{tenant.id}.a.b"
    writes: list[object] = []
    original = source._write

    async def counted(*given: Any) -> None:
        writes.append(given)
        await original(*given)

    source._write = counted  # type: ignore[method-assign, assignment]
    got = await asyncio.gather(*[source.acquire(key, limit) for _ in range(100)])
    assert sum(isinstance(one, Token) for one in got) == 60
    assert sum(isinstance(one, Exhausted) for one in got) == 40
    assert len(writes) <= 2
    before = len(writes)
    assert isinstance(await source.acquire(key, limit), Exhausted)  # known from memory
    assert len(writes) == before


async def test_returned_tokens_end_the_memory_of_an_exhausted_limit(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    """Requirements 95, 96, 126: at once where they were returned, elsewhere after some seconds."""
    limit, key = Limit(2, HOUR * 1000), f"{tenant.id}.a.b"
    source, other = (one.node.platform.use(CommandsCapability).tokens_of_limits for one in (gateway, second_gateway))
    got = [await source.acquire(key, limit) for _ in range(3)]
    end_ms = gateway.clock() - gateway.clock() % (HOUR * 1000) + HOUR * 1000
    assert [type(one) for one in got] == [Token, Token, Exhausted] and got[2] == Exhausted(end_ms)
    assert await other.acquire(key, limit) == Exhausted(end_ms)
    assert isinstance(got[0], Token)
    source.give_back(key, limit, got[0].interval, 2)
    await source.drain()
    assert isinstance(await source.acquire(key, limit), Token)
    assert await other.acquire(key, limit) == Exhausted(end_ms)
    assert second_gateway.clock.frozen_ms is not None
    second_gateway.clock.frozen_ms += 5_000
    assert isinstance(await other.acquire(key, limit), Token)
    assert await other.acquire(key, limit) == Exhausted(end_ms)


async def test_few_workers_prefetch_and_their_records_expire(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements 109, 110, 111: the engine removes the records of limits and of bans when they do not matter any more."""
    limit, key, bucket = Limit(100, HOUR * 1000), f"{tenant.id}.a.b", gateway.node.platform.bucket("postroad_rates")
    taken: list[str] = []

    def prefetched_by(name: str, _interval: int, _count: int, _end_ms: int) -> None:
        taken.append(name)

    workers = [TokenSource(bucket, gateway.clock, worker=name, deadline_seconds=30) for name in "abc"]
    for name, source in zip("abc", workers, strict=True):
        source.prefetch(key, limit, 5, 2, partial(prefetched_by, name))
        await source.drain()
    assert taken == ["a", "b"], "a third worker has none in this second"
    monkeypatch.setattr(rate_rules, "ttl_seconds", lambda _record, _limit: 1)
    assert isinstance(await workers[0].acquire(key, limit), Token)

    async def has_expired() -> bool:
        return await bucket.get(key) is None

    await eventually(has_expired, 10)
    commands = gateway.node.platform.use(CommandsCapability)
    await limited(tenant, {"max": 100})
    route = commands.view.route(tenant.id, "bot", "post")
    assert route is not None
    log = WarmBanLog(
        gateway.node.platform.bucket("postroad_warm_bans"), commands.bans, now_ms, count=3, minutes=1, ban_seconds=60
    )
    assert await log.record(route, f"{tenant.id}/x", 1000) == 1
    value = await gateway.node.platform.bucket("postroad_warm_bans").get(f"{route.key}.{tenant.id}.x")
    assert value is not None and value.expires_at_ms is not None and 0 < value.expires_at_ms - now_ms() <= 60_000


async def test_an_unreadable_record_of_another_client_does_not_stop_commands(gateway: Gateway, tenant: Tenant) -> None:
    sender = await limited(tenant, {"max": 3})
    bucket = gateway.node.platform.bucket("postroad_rates")
    await bucket.put(f"{tenant.id}.bot.post", b"not json")
    (await sender.send()).ok(202)


# Fairness


async def fair(gateway: Gateway, tenant: Tenant, other: Tenant | None = None, **fairness: Any) -> tuple[Sender, Sender]:
    """A noisy sender, perhaps of another tenant, and a quiet one on one route, and tokens for both in memory."""
    rules = {"window_seconds": 3600, "ban_seconds": 3600, **fairness}
    quiet = await limited(tenant, {"max": 1000}, "quiet", fairness=rules)
    noisy = await register_sender(other or tenant, "noisy")
    await grant(tenant, noisy.source)
    prefetched(gateway, tenant)
    return noisy, quiet


def prefetched(gateway: Gateway, tenant: Tenant) -> None:
    """Tokens of the route in the gateway's memory."""
    now = gateway.clock()
    end = now - now % (HOUR * 1000) + HOUR * 1000
    gateway.node.platform.use(CommandsCapability).warm.tokens.put(f"{tenant.id}.bot.post", now // (HOUR * 1000), 300, end)


async def escalations(tenant: Tenant) -> Counter[tuple[str, str | None]]:
    return Counter((one["source"].partition("/")[2], one["escalated"]) for one in await outcomes(tenant))


async def test_a_dominant_sender_loses_the_warm_path(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 99, 100, 114, 115, 116, 207"""
    noisy, quiet = await fair(gateway, tenant)
    for _ in range(5):
        (await quiet.send()).ok(202)
    for _ in range(60):
        (await noisy.send()).ok(202)
    (await quiet.send()).ok(202)
    found = await escalations(tenant)
    assert found["noisy", "warm_banned"] > 20 and found["quiet", "warm_banned"] == 0
    assert found["quiet", None] == 6

    async def reported() -> list[Any]:
        return [one for one in await tenant.events("COMMANDS") if one["event"] == "snavio.fairness.warm-path-ban"]

    [event] = await eventually(reported)
    assert (event["source"], event["target"], event["command.name"]) == (noisy.source, f"{tenant.id}/bot", "post")
    assert event["source_share"] > 0.8 and event["competing_share"] >= 0.1
    assert event["retry_after_ms"] == 3_600_000 and event["throttle_until"]


async def test_bans_by_several_workers_in_one_window_are_one_event(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    """Requirements 116, 207: each worker decides alone; the events have the same id."""
    noisy, quiet = await fair(gateway, tenant, window_seconds=60, ban_seconds=1)
    both = (gateway, second_gateway)
    for after_ms in (0, 500, 60_000):
        for one in both:
            assert one.clock.frozen_ms is not None
            one.clock.frozen_ms += after_ms
        prefetched(at := both[after_ms == 500], tenant)
        for sender in [quiet] * 5 + [noisy] * 25:
            (await sender.at(at).send()).ok(202)

    async def reported() -> list[str]:
        found = [one["event_id"] for one in await tenant.events("COMMANDS") if one["event"] == "snavio.fairness.warm-path-ban"]
        return found if len(found) == 3 else []

    first, second, third = await eventually(reported)
    assert first == second != third


async def test_a_sender_without_competitors_is_not_banned(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 97, 118"""
    noisy, _quiet = await fair(gateway, tenant)
    for _ in range(40):
        (await noisy.send()).ok(202)
    assert (await escalations(tenant))["noisy", "warm_banned"] == 0


async def test_a_route_sets_how_many_commands_make_a_sender_dominant(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 100"""
    noisy, quiet = await fair(gateway, tenant, dispatches_min=8, competing_sources=1)
    (await quiet.send()).ok(202)
    for _ in range(8):
        (await noisy.send()).ok(202)
    assert (await escalations(tenant))["noisy", "warm_banned"] == 0
    (await noisy.send()).ok(202)
    assert (await escalations(tenant))["noisy", "warm_banned"] == 1


async def test_fairness_can_be_turned_off(gateway: Gateway, tenant: Tenant) -> None:
    noisy, quiet = await fair(gateway, tenant, enabled=False)
    for _ in range(5):
        (await quiet.send()).ok(202)
    for _ in range(40):
        (await noisy.send()).ok(202)
    assert (await escalations(tenant))["noisy", "warm_banned"] == 0


async def test_a_dominant_sender_that_chose_the_slow_path_is_banned_too(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 99, 112, 113: `cold-only` of the sender's tenant is no way around its quota."""
    other = await gateway.tenant()
    noisy, quiet = await fair(gateway, tenant, other)
    (await other.client.post("/v1/admin/settings", {"snavioDispatchMode": "cold-only"})).ok()
    (await tenant.client.put(f"/v1/quotas/bot/post/{noisy.source}", {"max": 2, "interval_seconds": HOUR})).ok(201)
    for _ in range(5):
        (await quiet.send()).ok(202)
    found = [await noisy.send(target=f"{tenant.id}/bot") for _ in range(60)]
    accepted = sum(one.status == 202 for one in found)
    assert 20 < accepted < 40 and found[-1].problem(429, "rate-limit-exceeded")["detail"] == "source-quota"
    assert (await outcomes(other))[-1]["escalated"] == "cold_only"


async def test_repeated_warm_bans_become_a_ban_on_all_routes(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 101, 102, 103, 105: those of several workers in one window count once."""
    noisy, quiet = await fair(gateway, tenant, window_seconds=60, ban_seconds=120)
    started = gateway.clock()
    for at, after_ms, count in (
        (gateway, 0, 1),
        (second_gateway, 59_000, 1),
        (second_gateway, 200_000, 2),
        (gateway, 300_000, 3),
    ):
        for one in (gateway, second_gateway):
            one.clock.frozen_ms = started + after_ms
        prefetched(at, tenant)
        for sender in [quiet] * 5 + [noisy] * 25:
            (await sender.at(at).send()).ok(202)
        await at.node.platform.use(CommandsCapability).limiter._warm_bans.drain()
        bans = (await tenant.client.get("/v1/bans")).ok()["bans"]
        assert len(bans) == (count == 3), after_ms
        value = await gateway.node.platform.bucket("postroad_warm_bans").get(f"{tenant.id}.bot.post.{tenant.id}.noisy")
        assert value is not None and value.value is not None and len(msgspec.json.decode(value.value)["times"]) == count
    [ban] = bans
    assert (ban["kind"], ban["creator"], ban["target"], ban["source"]) == ("warm", "dispatcher", None, noisy.source)
    until, since = datetime.fromisoformat(ban["expires_at"]), datetime.fromisoformat(ban["created_at"])
    assert until - since == timedelta(minutes=10)


async def ban(tenant: Tenant, source: str = "billing", kind: str = "warm") -> None:
    body = {"source": source, "kind": kind, "target": "bot", "command": "post", "reason": "test"}
    (await tenant.client.post("/v1/bans", body)).ok(201)


@pytest.mark.parametrize(
    ("route", "mode", "kinds", "escalated"),
    [
        ({}, "adaptive", ["warm"], "warm_banned"),
        ({"dedupe_mode": "strict"}, "adaptive", ["warm"], "warm_banned"),
        ({"acl_check": "sync"}, "adaptive", ["warm"], "acl_sync"),
        ({}, "cold-only", ["warm"], "cold_only"),
        ({}, "adaptive", ["warm", "cold-only"], "cold_only"),
    ],
)
async def test_a_quota_applies_to_a_banned_sender_only(
    tenant: Tenant, route: dict[str, Any], mode: str, kinds: list[str], escalated: str
) -> None:
    """Requirements 107, 108: whatever else makes its commands take the slow path."""
    sender = await limited(tenant, {"max": 100}, **route)
    (await tenant.client.put("/v1/quotas/bot/post/billing", {"max": 2, "interval_seconds": HOUR})).ok(201)
    (await tenant.client.post("/v1/admin/settings", {"snavioDispatchMode": mode})).ok()
    assert await send_many(sender, 5) == {202: 5}
    for kind in kinds:
        await ban(tenant, kind=kind)
    assert await send_many(sender, 5) == {202: 2, 429: 3}
    events = [one for one in await outcomes(tenant) if one["event"] == "snavio.command.failed"]
    assert {(one["reason"], one["detail"], one["escalated"]) for one in events} == {
        ("rate-limit-exceeded", "source-quota", escalated)
    }
    assert (await usage(tenant))["used"] >= 7
    (await tenant.client.delete("/v1/quotas/bot/post/billing")).ok(204)
    assert await send_many(sender, 5) == {202: 5}


async def test_quotas_are_validated_and_listed(tenant: Tenant) -> None:
    await limited(tenant, {"max": 100})
    client = tenant.client
    (await client.put("/v1/quotas/bot/none/billing", {"max": 1})).problem(404, "command-route-not-found")
    (await client.put("/v1/quotas/bot/post/billing", {"max": 0})).problem(422, "invalid-body")
    (await client.put(f"/v1/quotas/bot/post/{tenant.id}/*", {"max": 1})).problem(400, "invalid-parameter")
    for name in ("a", "b", "other/c"):
        (await client.put(f"/v1/quotas/bot/post/{name}", {"max": 1})).ok(201)
    (await client.put("/v1/quotas/bot/post/a", {"max": 1})).ok(200)
    first = (await client.get("/v1/quotas?limit=2")).ok()
    rest = (await client.get(f"/v1/quotas?limit=2&cursor={first['nextCursor']}")).ok()
    assert len(first["quotas"]) == 2 and len(rest["quotas"]) == 1 and rest["nextCursor"] is None
    (await client.delete("/v1/quotas/bot/post/z")).problem(404, "quota-not-found")


async def test_a_deleted_route_leaves_no_quotas(gateway: Gateway, tenant: Tenant) -> None:
    """Also if the deletion was interrupted: a new route of that name starts without them."""
    await limited(tenant, {"max": 100})
    await register_target(tenant, command="other")
    client, quotas = tenant.client, gateway.node.platform.use(CommandsCapability).quotas

    async def names() -> list[str]:
        return [f"{one['command']} {one['source']}" for one in (await client.get("/v1/quotas")).ok()["quotas"]]

    for path in ("post/billing", "post/other/c", "other/billing"):
        (await client.put(f"/v1/quotas/bot/{path}", {"max": 1})).ok(201)
    kept = quotas.table.get(f"{tenant.id}.bot.post.{tenant.id}.billing")
    assert kept is not None
    (await client.delete("/v1/routes/bot/post")).ok(204)
    assert await names() == [f"other {tenant.id}/billing"]
    await quotas.table.create(kept.key, kept)
    (await client.put("/v1/routes/bot/post", {"queue": "bot-post"})).ok(201)
    assert await names() == [f"other {tenant.id}/billing"]


async def test_a_delayed_command_that_is_not_delivered_returns_its_token_in_time(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 136: to the interval in which it would have been delivered."""
    sender = await limited(tenant, {"max": 1, "overflow": "delay", "max_delay_seconds": HOUR})
    (await sender.send()).ok(202)
    (await tenant.client.delete("/v1/queues/bot-post")).ok(204)
    (await sender.send()).problem(502, "delivery-failure")
    (await tenant.client.put("/v1/queues/bot-post", {"maxAttempts": 3})).ok(201)
    tokens = gateway.node.platform.use(CommandsCapability).tokens_of_limits
    key = f"{tenant.id}.bot.post"
    limit = tokens.known_limit(key)
    assert limit is not None and (await usage(tenant))["delayed"] == 1
    assert gateway.clock.frozen_ms is not None
    gateway.clock.frozen_ms += HOUR * 1000
    assert (await usage(tenant))["available"] == 0, "until its timer"
    tokens.give_back_at(key, limit, gateway.clock())

    async def is_back() -> bool:
        return bool((await usage(tenant))["available"] == 1)

    await eventually(is_back)
    (await sender.send()).ok(202)


async def test_a_dominant_banned_sender_of_an_exhausted_route_is_refused_with_its_shares(tenant: Tenant) -> None:
    """Requirements 123, 124, 204"""
    sender = await limited(tenant, {"max": 30, "prefetch_workers": 0}, fairness={"meaningful_share": 0.05})
    await grant(tenant, "quiet")
    quiet = await register_sender(tenant, "quiet")
    await ban(tenant)
    (await quiet.send()).ok(202)
    (await quiet.send()).ok(202)
    assert await send_many(sender, 28) == {202: 28}
    refused = (await sender.send()).problem(429, "fairness-violation")
    assert (refused["source_share"], refused["competing_share"], refused["dispatch_volume"]) == (0.9333, 0.0667, 30)
    assert refused["retry_after_ms"] > 0 and refused["throttle_until"]
    event = (await outcomes(tenant))[-1]
    assert (event["reason"], event["source_share"], event["dispatch_volume"]) == ("fairness-violation", 0.9333, 30)
    (await quiet.send()).problem(429, "rate-limit-exceeded")


async def test_cold_only_mode_takes_the_slow_path(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 96, 112: changed while running."""
    sender = await limited(tenant, {"max": 1000})
    (await tenant.client.post("/v1/admin/settings", {"snavioDispatchMode": "cold-only"})).ok()
    answers = await asyncio.gather(*[sender.send() for _ in range(30)])
    assert {one.ok(202)["path"] for one in answers} == {"slow"} and _held(gateway, tenant) == 0
    assert {one["escalated"] for one in await outcomes(tenant)} == {"cold_only"}
    (await tenant.client.post("/v1/admin/settings", {"snavioDispatchMode": "adaptive"})).ok()
    (await sender.send()).ok(202)
    assert (await outcomes(tenant))[-1]["escalated"] == "token_required"
    (await tenant.client.post("/v1/admin/settings", {"snavioDispatchMode": "warm"})).problem(422, "invalid-body")
