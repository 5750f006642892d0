"""The brake on guessing."""

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


def failures(guard: LoginThrottle, address: str, count: int) -> list[type[Exception]]:
    return [type(guard.record_failure(address, "")) for _ in range(count)]


def test_after_the_burst_an_address_is_told_to_wait(time: Time) -> None:
    guard = LoginThrottle(3, 60, time)
    assert not guard.is_throttled("192.0.2.1")
    assert failures(guard, "192.0.2.1", 5) == [Unauthenticated] * 3 + [RateLimited] * 2
    assert guard.is_throttled("192.0.2.1")
    problem = guard.record_failure("192.0.2.1", "")
    assert isinstance(problem, RateLimited) and problem.retry_after == pytest.approx(1)


def test_time_lets_it_try_again(time: Time) -> None:
    guard = LoginThrottle(3, 60, time)
    failures(guard, "192.0.2.1", 10)
    time.seconds += 1.1
    assert not guard.is_throttled("192.0.2.1")
    assert failures(guard, "192.0.2.1", 3) == [Unauthenticated, RateLimited, RateLimited]
    time.seconds += 3600
    assert failures(guard, "192.0.2.1", 4) == [Unauthenticated] * 3 + [RateLimited]


def test_tries_while_it_waits_do_not_make_it_longer(time: Time) -> None:
    guard = LoginThrottle(1, 60, time)
    failures(guard, "192.0.2.1", 1000)
    time.seconds += 1.1
    assert failures(guard, "192.0.2.1", 1) == [Unauthenticated]


def test_one_address_does_not_brake_another(time: Time) -> None:
    guard = LoginThrottle(1, 60, time)
    failures(guard, "192.0.2.1", 5)
    assert not guard.is_throttled("192.0.2.2")
    assert failures(guard, "192.0.2.2", 1) == [Unauthenticated]


def test_a_whole_64_of_ipv6_is_one_user(time: Time) -> None:
    guard = LoginThrottle(1, 60, time)
    failures(guard, "2001:db8:0:1::1", 1)
    assert guard.is_throttled("2001:db8:0:1:ffff::2") and guard.is_throttled("2001:db8:0:1::3%eth0")
    assert not guard.is_throttled("2001:db8:0:2::1")


def test_ipv4_users_of_a_socket_for_both_are_told_apart(time: Time) -> None:
    guard = LoginThrottle(1, 60, time)
    failures(guard, "::ffff:192.0.2.1", 1)
    assert guard.is_throttled("::ffff:192.0.2.1") and guard.is_throttled("192.0.2.1")
    assert not guard.is_throttled("::ffff:192.0.2.2")


@pytest.mark.parametrize("address", ["", "unix:", "not an address", ":::::", "2001:db8::1%"])
def test_an_address_that_is_none_is_a_user_too(time: Time, address: str) -> None:
    guard = LoginThrottle(1, 60, time)
    assert failures(guard, address, 2) == [Unauthenticated, RateLimited]


def test_what_it_remembers_is_bounded_and_those_who_went_quiet_go_first(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "_ADDRESSES_MAX", 10)
    guard = LoginThrottle(2, 60, time)
    for number in range(100):
        failures(guard, f"10.0.0.{number}", 1)
        failures(guard, "192.0.2.1", 1)  # keeps on trying
    assert len(guard._levels) == 10
    assert guard.is_throttled("192.0.2.1")


# Over HTTP


@pytest.fixture(scope="module")
async def braked(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway behind a proxy that it trusts, whose users may fail three times."""
    settings = gateway_settings(
        engine_url, auth_failures_burst=3, auth_failures_per_minute=1, trusted_proxies="127.0.0.0/8, 10.0.0.0/8"
    )
    async with running_gateway(settings) as running:
        yield running


async def guess(gateway: Gateway, forwarded_for: str) -> Answer:
    return await gateway.with_key(new_key()).get(WHOAMI, headers={"X-Forwarded-For": forwarded_for})


async def test_who_keeps_guessing_is_told_when_to_come_back(braked: Gateway) -> None:
    for _ in range(3):
        (await guess(braked, "192.0.2.1")).problem(401, "unauthenticated")
    answer = await guess(braked, "192.0.2.1")
    assert answer.problem(429, "rate-limited")["retryable"] is True
    assert 0 < int(answer.headers["retry-after"]) <= 60


async def test_good_keys_go_on_working_from_there(braked: Gateway) -> None:
    tenant = await braked.tenant()
    for _ in range(4):
        await guess(braked, "192.0.2.2")
    there = tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.2"})
    assert await status_of(there) == 200
    text, _ = await new_key_by(there)
    assert await status_of(braked.with_key(text).with_headers(**{"X-Forwarded-For": "192.0.2.2"})) == 200


async def test_an_address_is_the_one_that_a_trusted_proxy_saw(braked: Gateway) -> None:
    for number in range(4):
        await guess(braked, f"203.0.113.{number}, 192.0.2.3, 10.1.2.3")
    assert (await guess(braked, "203.0.113.9, 192.0.2.3")).status == 429, "what the client claims does not count"
    assert (await guess(braked, "192.0.2.4")).status == 401


async def test_an_unknown_key_is_not_looked_up_for_who_is_braked(braked: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        await guess(braked, "192.0.2.5")
    table = braked.node.platform.identities.keys
    asked: list[str] = []
    fetch = table.fetch

    async def count(key: str) -> object:
        asked.append(key)
        return await fetch(key)

    monkeypatch.setattr(table, "fetch", count)
    assert (await guess(braked, "192.0.2.5")).status == 429
    assert asked == []
    assert (await guess(braked, "192.0.2.6")).status == 401
    assert len(asked) == 1


async def test_who_guesses_codes_of_invites_is_braked_too(braked: Gateway) -> None:
    for status in (404, 404, 404, 429):
        body = {"code": "pr_invite_x", "tenant": "anyone"}
        assert (await braked.nobody.post(CLAIM, body, headers={"X-Forwarded-For": "192.0.2.7"})).status == status
    assert (await guess(braked, "192.0.2.7")).status == 429


async def test_who_sends_no_credential_or_may_not_do_something_does_not_guess(braked: Gateway) -> None:
    tenant = await braked.tenant()
    for _ in range(5):
        assert (await braked.nobody.get(WHOAMI, headers={"X-Forwarded-For": "192.0.2.8"})).status == 401
        assert (await tenant.client.get("/api/control/tenants", headers={"X-Forwarded-For": "192.0.2.8"})).status == 403
    assert (await guess(braked, "192.0.2.8")).status == 401


async def test_the_audit_log_has_the_address_that_the_proxy_saw(braked: Gateway) -> None:
    tenant = await braked.tenant()
    await new_key_by(tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.9, 10.0.0.1"}))
    assert [entry["address"] for entry in await entries_of(braked, tenant.id)] == ["192.0.2.9"]


async def test_who_is_not_behind_a_trusted_proxy_is_who_connects(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    await new_key_by(tenant.client.with_headers(**{"X-Forwarded-For": "192.0.2.9"}))
    assert [entry["address"] for entry in await entries_of(gateway, tenant.id)] == ["127.0.0.1"]
