"""Limits on requests per second and live connections, per tenant and key."""

import asyncio
from typing import Any

import pytest
from tests.access.control import AT_ONCE, EVERY_SCOPE, KEYS, SETTINGS, STREAM
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

from postroad.access.keys import TENANT_PREFIX
from postroad.api.governance import TenantSettings
from postroad.governance.rate_limiter import RateLimiter
from postroad.governance.settings import GovernanceSettings
from postroad.governance.tenant_settings import default_settings
from postroad.kernel.errors import RateLimited
from postroad.kernel.identity import ALL_SCOPES, Caller

RATE = 10


class Chosen:
    """Settings of tenants, in place of the store."""

    def __init__(self) -> None:
        self.rates: dict[str, int] = {}

    def of(self, tenant: str) -> TenantSettings:
        values = {**_fields(default_settings(GovernanceSettings())), "max_requests_per_second": self.rates.get(tenant)}
        return TenantSettings(**values)


def _fields(settings: TenantSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


class Limiting:
    def __init__(self, shared_rate: int = RATE, key_rate: int = 0) -> None:
        self.now, self.chosen = 100.0, Chosen()
        self.limiter = RateLimiter(self.chosen, shared_rate=shared_rate, key_rate=key_rate, now=lambda: self.now)  # type: ignore[arg-type]

    def admitted(self, tenant: str, count: int = 100, key: str = "k", rate: int | None = None) -> int:
        """The number of admitted requests of so many at once."""
        caller = Caller(tenant, f"{tenant}-{key}", frozenset(ALL_SCOPES), max_requests_per_second=rate)
        admitted = 0
        for _ in range(count):
            try:
                self.limiter.admit(caller)
                admitted += 1
            except RateLimited:
                pass
        return admitted


def test_a_tenant_alone_is_not_limited() -> None:
    limiting = Limiting()
    for _ in range(5):
        assert limiting.admitted("a") == 100
        limiting.now += 1


def test_tenants_that_share_a_worker_are_limited_and_others_not_affected() -> None:
    limiting = Limiting()
    limiting.admitted("a")
    limiting.admitted("b", 1)
    limiting.now += 1
    assert limiting.admitted("a") == 2 * RATE, "the burst"
    assert limiting.admitted("b", 5) == 5
    limiting.now += 1
    assert limiting.admitted("a") == RATE
    assert limiting.admitted("b", 5) == 5
    limiting.now += 1
    limiting.admitted("a")
    limiting.now += 1
    assert limiting.admitted("a") == 100, "alone again"


def test_a_tenants_own_limit_applies_always_and_zero_is_none() -> None:
    limiting = Limiting()
    limiting.chosen.rates = {"a": 3, "free": 0}
    assert limiting.admitted("a") == 6
    limiting.admitted("free")
    limiting.now += 1
    assert (limiting.admitted("a"), limiting.admitted("free")) == (3, 100)
    limiting.chosen.rates["a"] = 30
    limiting.now += 1
    assert limiting.admitted("a") == 60


def test_a_key_is_limited_by_its_own_rate_or_the_default() -> None:
    limiting = Limiting(key_rate=5)
    assert limiting.admitted("a", key="default") == 10
    assert limiting.admitted("a", key="slow", rate=2) == 4
    assert limiting.admitted("a", key="free", rate=0) == 100
    limiting.now += 1
    assert limiting.admitted("a", key="slow", rate=2) == 2


def test_idle_tenants_and_keys_are_forgotten() -> None:
    limiting = Limiting(key_rate=5)
    for number in range(20):
        limiting.admitted(f"t{number}", 3)
    limiting.now += 10
    limiting.admitted("a", 1)
    limiting.now += 10
    limiting.admitted("a", 1)
    assert set(limiting.limiter._tenants) == {"a"}
    assert set(limiting.limiter._keys) == {"a-k"}


def test_a_refusal_has_the_time_to_wait_and_the_limit() -> None:
    limiting = Limiting()
    limiting.chosen.rates = {"a": 1}
    limiting.admitted("a", 2)
    with pytest.raises(RateLimited, match="the tenant has sent more than 1 requests per second") as refused:
        limiting.limiter.admit(Caller("a", "k", frozenset(ALL_SCOPES)))
    assert refused.value.retry_after == pytest.approx(1)
    assert dict(refused.value.headers) == {"RateLimit-Policy": '"tenant";q=1;w=1', "RateLimit": '"tenant";r=0;t=1'}


# Through the API


async def statuses(tenant: Tenant, count: int) -> set[int]:
    answers = await asyncio.gather(*(tenant.client.get("/v1/whoami") for _ in range(count)))
    return {answer.status for answer in answers}


async def test_a_key_with_a_limit_gets_429_and_other_keys_do_not(gateway: Gateway, tenant: Tenant) -> None:
    created = (await tenant.client.post(KEYS, {"name": "slow", "scopes": EVERY_SCOPE, "maxRequestsPerSecond": 1})).ok(201)
    assert created["key"].startswith(TENANT_PREFIX) and created["record"]["maxRequestsPerSecond"] == 1
    slow = gateway.with_key(created["key"])
    answers = [await slow.get("/v1/whoami") for _ in range(5)]
    assert [answer.status for answer in answers[:2]] == [200, 200]
    refused = next(answer for answer in answers if answer.status != 200)
    assert refused.problem(429, "rate-limited")["retryable"]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["ratelimit-policy"] == '"key";q=1;w=1'
    assert await statuses(tenant, 5) == {200}
    await tenant.client.call("PATCH", f"{KEYS}/{created['record']['id']}", {"maxRequestsPerSecond": 0})

    async def is_unlimited() -> bool:
        return {(await slow.get("/v1/whoami")).status for _ in range(10)} == {200}

    await eventually(is_unlimited)


async def test_a_limited_key_cannot_create_or_take_over_a_key_with_a_higher_limit(gateway: Gateway, tenant: Tenant) -> None:
    limited = await tenant.another_key(max_requests_per_second=50, max_live_connections=2)
    (await limited.client.post(KEYS, {"name": "more", "scopes": EVERY_SCOPE})).problem(403, "forbidden")
    within = {"name": "less", "scopes": ["read"], "maxRequestsPerSecond": 50, "maxLiveConnections": 1}
    created = (await limited.client.post(KEYS, within)).ok(201)
    path = f"{KEYS}/{created['record']['id']}"
    (await limited.client.call("PATCH", path, {"maxRequestsPerSecond": 51})).problem(403, "forbidden")
    (await limited.client.post(f"{KEYS}/{tenant.record.id}/rotate", {})).problem(403, "forbidden")
    (await limited.client.post(f"{path}/rotate", {})).ok()


async def test_a_tenants_limit_is_set_by_the_operator(gateway: Gateway, tenant: Tenant) -> None:
    (await tenant.client.post(SETTINGS, {"maxRequestsPerSecond": 5})).problem(403, "forbidden")
    operator = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    (await operator.post(SETTINGS, {"maxRequestsPerSecond": 5})).ok()

    async def is_limited() -> bool:
        return 429 in await statuses(tenant, 20)

    await eventually(is_limited)
    assert {(await operator.get(SETTINGS)).status for _ in range(30)} == {200}, "platform keys are not limited"
    assert await statuses(await gateway.tenant(), 20) == {200}


@pytest.mark.parametrize("owner", ["tenant", "key"])
async def test_live_connections_are_limited_per_tenant_and_key(gateway: Gateway, tenant: Tenant, owner: str) -> None:
    if owner == "tenant":
        operator = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
        (await operator.post(SETTINGS, {"maxLiveConnections": 1})).ok()
        reader = tenant
    else:
        reader = await tenant.another_key(max_live_connections=1)

    def is_known() -> bool:
        return owner == "key" or gateway.node.platform.tenant_settings.of(tenant.id).max_live_connections == 1

    await eventually(is_known, AT_ONCE)
    async with reader.client.events(STREAM):
        refused = await reader.client.get(STREAM)
        assert f"the {owner} has 1 live connections" in refused.problem(429, "rate-limited")["detail"]

    async def is_free() -> bool:
        try:
            async with reader.client.events(STREAM):
                return True
        except AssertionError:
            return False

    await eventually(is_free)
