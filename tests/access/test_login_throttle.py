"""Throttling of invalid credentials."""

from collections.abc import AsyncIterator

import pytest

from postroad.access import login_throttle
from postroad.access.keys import new_key
from postroad.access.login_throttle import LoginThrottle
from postroad.kernel.errors import RateLimited, Unauthenticated
from tests.access.control import CLAIM, WHOAMI, entries_of, new_key_by, status_of
from tests.gateway import Answer, Gateway, gateway_settings, running_gateway


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


def failures(throttle: LoginThrottle, address: str, count: int) -> list[type[Exception]]:
    return [type(throttle.record_failure(address, "")) for _ in range(count)]


def test_after_the_burst_an_address_is_rate_limited(time: Time) -> None:
    throttle = LoginThrottle(3, 60, time)
    assert not throttle.is_throttled("192.0.2.1")
    assert failures(throttle, "192.0.2.1", 5) == [Unauthenticated] * 3 + [RateLimited] * 2
    assert throttle.is_throttled("192.0.2.1")
    problem = throttle.record_failure("192.0.2.1", "")
    assert isinstance(problem, RateLimited) and problem.retry_after == pytest.approx(1)


def test_failures_are_forgotten_over_time(time: Time) -> None:
    throttle = LoginThrottle(3, 60, time)
    failures(throttle, "192.0.2.1", 10)
    time.seconds += 1.1
    assert not throttle.is_throttled("192.0.2.1")
    assert failures(throttle, "192.0.2.1", 3) == [Unauthenticated, RateLimited, RateLimited]
    time.seconds += 3600
    assert failures(throttle, "192.0.2.1", 4) == [Unauthenticated] * 3 + [RateLimited]


def test_failures_while_throttled_do_not_extend_the_wait(time: Time) -> None:
    throttle = LoginThrottle(1, 60, time)
    failures(throttle, "192.0.2.1", 1000)
    time.seconds += 1.1
    assert failures(throttle, "192.0.2.1", 1) == [Unauthenticated]


def test_addresses_are_throttled_separately(time: Time) -> None:
    throttle = LoginThrottle(1, 60, time)
    failures(throttle, "192.0.2.1", 5)
    assert not throttle.is_throttled("192.0.2.2")
    assert failures(throttle, "192.0.2.2", 1) == [Unauthenticated]


def test_an_ipv6_64_network_is_one_address(time: Time) -> None:
    throttle = LoginThrottle(1, 60, time)
    failures(throttle, "2001:db8:0:1::1", 1)
    assert throttle.is_throttled("2001:db8:0:1:ffff::2") and throttle.is_throttled("2001:db8:0:1::3%eth0")
    assert not throttle.is_throttled("2001:db8:0:2::1")


def test_mapped_ipv4_addresses_are_separate(time: Time) -> None:
    throttle = LoginThrottle(1, 60, time)
    failures(throttle, "::ffff:192.0.2.1", 1)
    assert throttle.is_throttled("::ffff:192.0.2.1") and throttle.is_throttled("192.0.2.1")
    assert not throttle.is_throttled("::ffff:192.0.2.2")


@pytest.mark.parametrize("address", ["", "unix:", "not an address", ":::::", "2001:db8::1%"])
def test_a_malformed_address_is_throttled_too(time: Time, address: str) -> None:
    throttle = LoginThrottle(1, 60, time)
    assert failures(throttle, address, 2) == [Unauthenticated, RateLimited]


def test_the_number_of_addresses_is_bounded_and_the_oldest_are_dropped(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "_ADDRESSES_MAX", 10)
    throttle = LoginThrottle(2, 60, time)
    for number in range(100):
        failures(throttle, f"10.0.0.{number}", 1)
        failures(throttle, "192.0.2.1", 1)  # keeps on trying
    assert len(throttle._levels) == 10
    assert throttle.is_throttled("192.0.2.1")


# Over HTTP


@pytest.fixture(scope="module")
async def throttled(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway behind a trusted proxy. Clients may fail three times."""
    settings = gateway_settings(
        engine_url, auth_failures_burst=3, auth_failures_per_minute=1, trusted_proxies="127.0.0.0/8, 10.0.0.0/8"
    )
    async with running_gateway(settings) as running:
        yield running


async def guess(gateway: Gateway, forwarded_for: str) -> Answer:
    return await gateway.with_key(new_key()).get(WHOAMI, headers={"X-Forwarded-For": forwarded_for})


async def test_repeated_failures_are_rate_limited_with_retry_after(throttled: Gateway) -> None:
    for _ in range(3):
        (await guess(throttled, "192.0.2.1")).problem(401, "unauthenticated")
    answer = await guess(throttled, "192.0.2.1")
    assert answer.problem(429, "rate-limited")["retryable"] is True
    assert 0 < int(answer.headers["retry-after"]) <= 60


async def test_valid_keys_work_from_a_throttled_address(throttled: Gateway) -> None:
    tenant = await throttled.tenant()
    for _ in range(4):
        await guess(throttled, "192.0.2.2")
    there = tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.2"})
    assert await status_of(there) == 200
    text, _ = await new_key_by(there)
    assert await status_of(throttled.with_key(text).with_headers(**{"X-Forwarded-For": "192.0.2.2"})) == 200


async def test_the_address_is_that_of_the_trusted_proxy_header(throttled: Gateway) -> None:
    for number in range(4):
        await guess(throttled, f"203.0.113.{number}, 192.0.2.3, 10.1.2.3")
    assert (await guess(throttled, "203.0.113.9, 192.0.2.3")).status == 429, "what the client claims does not count"
    assert (await guess(throttled, "192.0.2.4")).status == 401


async def test_unknown_keys_of_a_throttled_address_are_not_looked_up(throttled: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        await guess(throttled, "192.0.2.5")
    table = throttled.node.platform.identities.keys
    asked: list[str] = []
    fetch = table.fetch

    async def count(key: str) -> object:
        asked.append(key)
        return await fetch(key)

    monkeypatch.setattr(table, "fetch", count)
    assert (await guess(throttled, "192.0.2.5")).status == 429
    assert asked == []
    assert (await guess(throttled, "192.0.2.6")).status == 401
    assert len(asked) == 1


async def test_unknown_invite_codes_are_throttled_too(throttled: Gateway) -> None:
    for status in (404, 404, 404, 429):
        body = {"code": "pr_invite_x", "tenant": "anyone"}
        assert (await throttled.anonymous.post(CLAIM, body, headers={"X-Forwarded-For": "192.0.2.7"})).status == status
    assert (await guess(throttled, "192.0.2.7")).status == 429


async def test_missing_credentials_and_missing_scopes_are_not_failures(throttled: Gateway) -> None:
    tenant = await throttled.tenant()
    for _ in range(5):
        assert (await throttled.anonymous.get(WHOAMI, headers={"X-Forwarded-For": "192.0.2.8"})).status == 401
        assert (await tenant.client.get("/api/control/tenants", headers={"X-Forwarded-For": "192.0.2.8"})).status == 403
    assert (await guess(throttled, "192.0.2.8")).status == 401


async def test_the_audit_log_has_the_forwarded_address(throttled: Gateway) -> None:
    tenant = await throttled.tenant()
    await new_key_by(tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.9, 10.0.0.1"}))
    assert [entry["address"] for entry in await entries_of(throttled, tenant.id)] == ["192.0.2.9"]


async def test_without_a_trusted_proxy_the_address_is_that_of_the_connection(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    await new_key_by(tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.9"}))
    assert [entry["address"] for entry in await entries_of(gateway, tenant.id)] == ["127.0.0.1"]
