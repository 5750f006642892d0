"""What a process tells of itself and of its tenants' traffic."""

import asyncio
import time
from typing import Any

import pytest

from postroad.kernel.clock import now_ms
from postroad.kernel.event import PLATFORM
from postroad.kernel.usage_counters import ANONYMOUS, UsageCounters, UsageDelta
from postroad.telemetry import process_sampler
from postroad.telemetry.outbox import Outbox
from postroad.telemetry.process_sampler import ProcessSampler, memory_bytes
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.telemetry.samples import event
from tests.waiting import eventually

# Counting


def test_what_is_taken_is_what_was_counted_since() -> None:
    traffic = UsageCounters()
    tally = traffic.of("a")
    tally.requests += 2
    traffic.of("b")
    assert list(traffic.take()) == [("a", UsageDelta(requests=2))]
    assert list(traffic.take()) == []
    tally.requests += 1
    tally.bytes_out += 5
    assert list(traffic.take()) == [("a", UsageDelta(requests=1, bytes_out=5))]


def test_a_tally_that_somebody_keeps_goes_on_counting() -> None:
    traffic = UsageCounters()
    kept = traffic.of("a")
    list(traffic.take())
    assert traffic.of("a") is kept


# One process


class Place:
    """A sampler with all that it looks at; its worker's name is the test's own."""

    def __init__(self, gateway: Gateway, name: str, tenants: list[str], *, waiting_bytes_max: int = 1_000_000) -> None:
        self.traffic, self.connection, self.name = UsageCounters(), gateway.node.platform.connection, name
        self.outbox = Outbox(gateway.node.platform.committers, now_ms, waiting_bytes_max=waiting_bytes_max)
        self.traffic.open_requests = 3
        self.sampler = ProcessSampler(
            self.outbox,
            self.traffic,
            worker=name,
            role="gateway",
            tenants=lambda: tenants,
            seconds=3600,
        )

    async def sample(self) -> None:
        started = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() - started > 0.002)  # some time has passed
        self.sampler.sample()
        await self.outbox.drain()

    async def told(self, tenant: str = PLATFORM) -> list[dict[str, Any]]:
        return [one for one in await events_of(self.connection, "TELEMETRY", tenant) if one.get("worker") == self.name]


@pytest.fixture
async def place(gateway: Gateway, name: str, tenant: Tenant) -> Place:
    return Place(gateway, name, [tenant.id])


async def test_each_tenants_traffic_is_told_with_how_long_it_took(place: Place, tenant: Tenant) -> None:
    tally = place.traffic.of(tenant.id)
    tally.requests, tally.client_errors, tally.server_errors, tally.bytes_in, tally.bytes_out = 10, 2, 1, 100, 200
    tally.appends, tally.append_bytes, tally.fanout_messages = 4, 40, 7
    await place.sample()
    [told] = await place.told(tenant.id)
    assert (told["event"], told["requests"], told["failures"]) == ("traffic.sampled", 10, 3)
    assert (told["bytes_in"], told["bytes_out"]) == (100, 200)
    assert (told["appends"], told["append_bytes"], told["fanout_messages"]) == (4, 40, 7)
    assert 0 < told["seconds"] < 60
    tally.requests += 1
    await place.sample()
    _, again = await place.told(tenant.id)
    assert (again["requests"], again["failures"], again["appends"]) == (1, 0, 0)


async def test_a_process_that_did_nothing_for_a_tenant_says_nothing(place: Place, tenant: Tenant) -> None:
    place.traffic.of(tenant.id).requests += 1
    for _ in range(3):
        await place.sample()
    assert len(await place.told(tenant.id)) == 1
    assert len(await place.told()) == 3


async def test_nothing_is_told_of_a_tenant_that_was_deleted(gateway: Gateway, name: str, tenant: Tenant) -> None:
    place = Place(gateway, name, [])
    place.traffic.of(tenant.id).requests += 1
    await place.sample()
    assert await place.told(tenant.id) == []


async def test_a_process_tells_of_all_its_requests_and_how_it_is(place: Place, tenant: Tenant) -> None:
    for whose in (tenant.id, ANONYMOUS):
        tally = place.traffic.of(whose)
        tally.requests, tally.client_errors, tally.server_errors = 10, 2, 1
    await place.sample()
    [told] = await place.told()
    assert (told["event"], told["tenant"], told["role"]) == ("process.sampled", PLATFORM, "gateway")
    assert (told["requests"], told["client_errors"], told["server_errors"]) == (20, 4, 2)
    assert (told["open_requests"], told["events_dropped"]) == (3, 0)
    assert 0.5 < told["memory_bytes"] / memory_bytes() < 2


def test_what_is_in_memory_is_as_much_as_the_system_says() -> None:
    held = bytearray(b"x" * 64 * 1024 * 1024)
    before = memory_bytes()
    assert before > len(held)
    del held
    assert before - memory_bytes() > 32 * 1024 * 1024


async def test_where_the_system_does_not_say_it_is_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(process_sampler, "_STATM", tmp_path / "nothing")
    assert memory_bytes() == 0


async def test_a_process_tells_of_events_that_it_had_to_drop(gateway: Gateway, name: str, tenant: Tenant) -> None:
    place = Place(gateway, name, [], waiting_bytes_max=300)
    place.outbox.record(None, event(tenant.id, padding=500))
    place.outbox.record(None, event(tenant.id), event(tenant.id))
    await place.outbox.drain()
    await place.sample()
    await place.sample()
    assert [told["events_dropped"] for told in await place.told()] == [2, 0]


async def test_what_keeps_the_process_from_its_work_shows_as_lag(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sampler, "_TICK_SECONDS", 0.01)
    running = asyncio.create_task(place.sampler.run())
    try:
        await asyncio.sleep(0)  # it has begun to wait
        time.sleep(0.12)  # noqa: ASYNC251  # that is what the test is about
        await eventually(lambda: place.sampler._lag > 0)
        place.sampler.sample()
        await place.sample()
    finally:
        running.cancel()
    blocked, free = await place.told()
    assert blocked["loop_lag_ms"] >= 100
    assert free["loop_lag_ms"] < blocked["loop_lag_ms"]


# A gateway


async def test_a_gateway_tells_of_its_requests_every_few_seconds_and_of_the_last_when_it_stops(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, sample_seconds=0.3)) as gateway:
        tenant = await gateway.tenant()
        connection = gateway.node.platform.connection
        (await gateway.nobody.get("/nowhere")).problem(404, "route-not-found")
        body, path = b"x" * 100, "/v1/stream/a"
        (await tenant.client.call("PUT", path, headers={"Content-Type": "text/plain"})).ok(201)
        (await tenant.client.call("POST", path, headers={"Content-Type": "text/plain"}, data=body)).ok(204)
        assert (await tenant.client.get(f"{path}?offset=-1")).body == body
        (await tenant.client.call("HEAD", path)).ok()
        problem = await tenant.client.get("/v1/stream/none")
        problem.problem(404, "stream-not-found")

        async def all_of_it() -> dict[str, int]:
            told = [one for one in await tenant.events("TELEMETRY") if one["event"] == "traffic.sampled"]
            return added(told) if sum(one["requests"] for one in told) == 5 else {}

        found = await eventually(all_of_it)
        assert (found["failures"], found["bytes_in"], found["appends"], found["append_bytes"]) == (1, 100, 1, 100)
        assert found["bytes_out"] == len(body) + len(problem.body), "nothing for a HEAD"
        count = len(await tenant.events("TELEMETRY"))
        settings = gateway.settings
        platform = [one for one in await events_of(connection, "TELEMETRY", PLATFORM) if one["event"] == "process.sampled"]
        assert any(one["client_errors"] for one in platform)
    async with running_gateway(gateway_settings(engine_url, sample_seconds=3600)) as gateway:
        seen = gateway.seen_by(tenant)
        assert (await seen.client.get(f"{path}?offset=-1")).status == 200
        assert len(await seen.events("TELEMETRY")) == count, "a process that does nothing for a tenant says nothing"
    async with running_gateway(settings) as gateway:
        last = (await gateway.seen_by(tenant).events("TELEMETRY"))[count:]
        assert [(one["event"], one["requests"], one["bytes_out"]) for one in last] == [("traffic.sampled", 1, len(body))]


def added(told: list[dict[str, Any]]) -> dict[str, int]:
    names = ("requests", "failures", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
    return {name: sum(one[name] for one in told) for name in names}


async def test_what_a_follower_gets_is_counted_as_it_goes_out(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, sample_seconds=0.3)) as gateway:
        tenant = await gateway.tenant()
        headers = {"Content-Type": "text/plain"}
        (await tenant.client.call("PUT", "/v1/stream/a", headers=headers)).ok(201)
        async with tenant.client.events("/v1/stream/a?offset=-1&live=sse") as reader:
            (await tenant.client.call("POST", "/v1/stream/a", headers=headers, data=b"x" * 500)).ok(204)
            while (await reader.next()) is not None:

                async def is_told() -> bool:
                    told = [one for one in await tenant.events("TELEMETRY") if one["event"] == "traffic.sampled"]
                    return added(told)["bytes_out"] >= 500

                await eventually(is_told)
                break


async def test_requests_that_are_no_tenants_are_nobodys(gateway: Gateway) -> None:
    before = counted_of(gateway, ANONYMOUS)
    (await gateway.nobody.get("/nowhere")).problem(404, "route-not-found")
    (await gateway.nobody.get("/v1/queues")).problem(401, "unauthenticated")
    (await gateway.admin.get("/api/control/tenants")).ok()
    now = counted_of(gateway, ANONYMOUS)
    assert (now.requests - before.requests, now.client_errors - before.client_errors) == (3, 2)


def counted_of(gateway: Gateway, tenant: str) -> UsageDelta:
    tally = gateway.node.app._tallies[tenant]
    return UsageDelta(*(getattr(tally, field) for field in UsageDelta._fields))
