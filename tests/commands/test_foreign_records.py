"""Records that another client of the NATS server wrote, or that are damaged: no 5xx, nothing delivered, nothing stuck."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.commands.ban_view import BanView
from postroad.commands.capability import CommandsCapability
from postroad.commands.limit_records import BANS_BUCKET, BanRecord, QuotaRecord, ban_of, quota_of, usage_of
from postroad.commands.rate_rules import Limit, RateRecord, acquire, is_possible, retry_at_ms, ttl_seconds
from postroad.commands.records import ROUTES_BUCKET, SERVICES_BUCKET, RouteRecord, ServiceRecord, grant_of, route_of, service_of
from postroad.commands.registry_view import known_route
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.token_source import RATES_BUCKET
from postroad.kernel.clock import rfc3339
from tests.commands.senders import grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.mark.parametrize("junk", [b"", b"junk", b"[]", b"{}", b'{"v":1,"tenant":1}', b"\xff"])
async def test_an_unreadable_route_refuses_its_commands_and_can_be_replaced(
    gateway: Gateway, tenant: Tenant, junk: bytes
) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    platform = gateway.node.platform
    await platform.bucket(ROUTES_BUCKET).put(f"{tenant.id}.bot.post", junk)
    commands = platform.use(CommandsCapability)
    await eventually(lambda: commands.route_table.get(f"{tenant.id}.bot.post") is None)
    (await sender.send()).problem(404, "route-missing")
    assert [one["reason"] for one in await outcomes(tenant)] == ["route-missing"]
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 0


@pytest.mark.parametrize("junk", [b"junk", b"{}"])
async def test_an_unreadable_service_sends_nothing(gateway: Gateway, tenant: Tenant, junk: bytes) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    platform = gateway.node.platform
    await platform.bucket(SERVICES_BUCKET).put(f"{tenant.id}.billing", junk)
    commands = platform.use(CommandsCapability)
    await eventually(lambda: commands.service_table.get(f"{tenant.id}.billing") is None)
    (await sender.send()).problem(403, "source-refused")
    assert await outcomes(tenant) == []


async def test_keys_that_no_name_can_have_and_damaged_secrets_are_left_alone(gateway: Gateway, tenant: Tenant) -> None:
    sender = await register_sender(tenant)
    await register_target(tenant)
    await grant(tenant, "billing")
    platform = gateway.node.platform
    commands = platform.use(CommandsCapability)
    for bucket in (ROUTES_BUCKET, SERVICES_BUCKET):
        for key in (tenant.id, f"{tenant.id}.a.b.c.d", f"{tenant.id}._zz._q"):
            await platform.bucket(bucket).put(key, b"junk")
    record = commands.service_table.get(f"{tenant.id}.billing")
    assert record is not None
    damaged = tuple(msgspec.structs.replace(one, locked="not base64!") for one in record.secrets)
    await platform.bucket(SERVICES_BUCKET).put(
        f"{tenant.id}.billing", msgspec.json.encode(msgspec.structs.replace(record, secrets=damaged))
    )

    def is_seen() -> bool:
        current = commands.service_table.get(f"{tenant.id}.billing")
        return current is not None and current.secrets == damaged

    await eventually(is_seen)
    await commands.services.maintain_secrets()
    assert (await sender.send()).problem(400, "command-invalid")["reason"] == "version-unknown"
    (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    current = (await tenant.client.get("/v1/tenant-config")).ok()["services"][0]["secrets"][0]
    assert current["versionId"] == "hmac-v2"


async def test_a_record_with_other_names_than_its_key_is_not_used(gateway: Gateway, tenant: Tenant) -> None:
    """Else a route of one tenant could deliver to the queue of another."""
    other = await gateway.tenant()
    await register_target(tenant)
    await register_target(other)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    platform = gateway.node.platform
    commands = platform.use(CommandsCapability)
    for bucket, table, key in (
        (ROUTES_BUCKET, commands.route_table, f"{tenant.id}.bot.post"),
        (SERVICES_BUCKET, commands.service_table, f"{tenant.id}.billing"),
    ):
        record = table.get(key)
        assert record is not None
        foreign = msgspec.structs.replace(record, tenant=other.id)
        await platform.bucket(bucket).put(key, msgspec.json.encode(foreign))

        def is_left_out(table: Any = table, key: str = key) -> bool:
            return table.get(key) is None

        await eventually(is_left_out)
        answer = await sender.send()
        answer.problem(*((404, "route-missing") if bucket == ROUTES_BUCKET else (403, "source-refused")))
    for one in (tenant, other):
        assert (await one.stats("/v1/queues/bot-post"))["ready"] == 0
    assert await commands.snapshot_writer.write() is not None, "the rest of the registry can be written, and read back"


@pytest.mark.parametrize(
    "damage", [{"interval": 10**15}, {"interval_ms": 10**18}, {"debt": 10**30}, {"cooldown_until_ms": 10**18}]
)
async def test_a_damaged_record_of_a_limit_counts_as_none(gateway: Gateway, tenant: Tenant, damage: dict[str, int]) -> None:
    await register_target(tenant, rate_limit={"max": 5})
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    record = {"interval": 10**9, "interval_ms": 1000, "used": 10**6, **damage}
    await gateway.node.platform.bucket(RATES_BUCKET).put(f"{tenant.id}.bot.post", _encoded(record))
    (await sender.send()).ok(202)


async def test_a_damaged_ban_does_not_stop_a_sender(gateway: Gateway, tenant: Tenant) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    ban = {**_BAN, "source": sender.source, "kind": "hard", "expiresAtMs": 10**18}
    await gateway.node.platform.bucket(BANS_BUCKET).put(f"{tenant.id}.billing.hard", _encoded(ban))
    table = gateway.node.platform.use(CommandsCapability).bans.table
    await eventually(lambda: table.revision(f"{tenant.id}.billing.hard"))
    (await sender.send()).ok(202)
    assert (await tenant.client.get("/v1/bans")).ok()["bans"] == []


# Formats

NOW = 1_800_000_000_000
_SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from([0, -1, 10**15, 10**18]) | st.text(max_size=10)
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_ROUTE = {"v": 1, "tenant": "a", "service": "b", "command": "c", "queue": "q", "createdAtMs": 0, "updatedAtMs": 0}
_SERVICE = {"v": 1, "tenant": "a", "name": "b", "incarnation": "i", "secrets": [], "createdAtMs": 0, "updatedAtMs": 0}
_BAN = {"v": 1, "source": "a/b", "kind": "hard", "reason": "r", "creator": "owner", "createdAtMs": 0, "expiresAtMs": NOW + 1}
_TIMES = {"createdAtMs": 0, "updatedAtMs": 0}
_QUOTA = {"v": 1, "route": ["a", "b", "c"], "source": "a/b", "max": 5, "intervalSeconds": 60, "burst": 0, **_TIMES}
_RATE = {"v": 1, "interval": NOW // 60_000, "interval_ms": 60_000, "used": 5, "carried": 0, "debt": 0, "cooldown_until_ms": 0}
LIMITS = (Limit(5, 60_000), Limit(1, 86_400_000, 3, 500, 3), Limit(10, 1000))


def _encoded(record: dict[str, Any]) -> bytes:
    """Also integers of more than 64 bits, which other programs write."""
    return json.dumps(record).encode()


def use_route(text: bytes) -> None:
    record = msgspec.json.decode(text, type=RouteRecord)
    route_of(record)
    for one in record.grants:
        grant_of(record, one)
    known_route(record).grant("a/b", 0)
    auditor = RevocationAuditor(lambda _event: None, lambda: NOW)
    for source in ("a/b", *(one.source for one in record.revoked)):
        auditor.record(record, source, NOW)
    auditor.check(record)


def use_service(text: bytes) -> None:
    service_of(msgspec.json.decode(text, type=ServiceRecord), NOW)


def use_ban(text: bytes) -> None:
    record, view = msgspec.json.decode(text, type=BanRecord), BanView()
    ban_of(record)
    view.apply("a.b.hard", record)
    view.find("a/b", "a", "b", "c", NOW)


def use_limit(limit: Limit, record: RateRecord | None = None) -> None:
    acquired = acquire(record, limit, NOW, 20, prefetch=5, worker="w", prefetch_workers=1)
    usage_of(acquired.record, limit)
    for at_ms in (retry_at_ms(acquired.record, limit, NOW), *acquired.borrowed):
        rfc3339(at_ms)
    assert 0 < ttl_seconds(acquired.record, limit) < 2**32
    msgspec.json.encode(acquired.record)


def use_quota(text: bytes) -> None:
    record = msgspec.json.decode(text, type=QuotaRecord)
    quota_of(record)
    use_limit(record.limit)


def use_rate(text: bytes) -> None:
    record = msgspec.json.decode(text, type=RateRecord)
    for limit in LIMITS if is_possible(record) else ():
        use_limit(limit, record)


FORMATS: tuple[tuple[dict[str, Any], tuple[str, ...], Callable[[bytes], None]], ...] = (
    (_ROUTE, ("grants", "revoked", "expiresAtMs", "sensitivity", "rateLimit", "other"), use_route),
    (_SERVICE, ("trustedKeys", "contact"), use_service),
    (_BAN, ("keyId",), use_ban),
    (_QUOTA, (), use_quota),
    (_RATE, ("prefetchers",), use_rate),
)
_SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "grants": st.tuples(st.just("a/b"), _SCALARS, st.just("key"), _SCALARS).map(lambda one: [one]),
    "revoked": st.tuples(st.just("a/b"), _SCALARS).map(lambda one: [one]),
    "secrets": st.fixed_dictionaries(
        {"number": _SCALARS, "locked": st.just(""), "createdAtMs": _SCALARS, "expiresAtMs": _SCALARS}
    ).map(lambda one: [one]),
}
_RECORDS = st.one_of(
    *[
        st.tuples(st.just(record), st.just(name), _SHAPES.get(name, _SCALARS) | _JSON, st.just(use))
        for record, others, use in FORMATS
        for name in (*record, *others)
    ]
)


@settings(max_examples=500)
@given(_RECORDS)
def test_a_record_with_any_field_is_refused_or_can_be_used_and_shown(
    given_: tuple[dict[str, Any], str, Any, Callable[[bytes], None]],
) -> None:
    record, name, value, use = given_
    with contextlib.suppress(msgspec.DecodeError):
        use(_encoded({**record, name: value}))


def test_records_of_a_later_version_can_be_read() -> None:
    later = {**_ROUTE, "v": 2, "rateLimit": {"max": 5}, "grants": [["a/b", 1, "key", None, "low", "more"]]}
    record = msgspec.json.decode(msgspec.json.encode(later), type=RouteRecord)
    assert record.grants[0].sensitivity == "low"
    service = {"tenant": "a", "name": "b", "incarnation": "i", "secrets": [], "createdAtMs": 0, "updatedAtMs": 0, "x": 1}
    assert msgspec.json.decode(msgspec.json.encode(service), type=ServiceRecord).trusted_keys == ()
