"""Samples of processes and of the traffic of tenants."""

import asyncio
import time
from typing import Any

import pytest

from postroad.kernel.clock import now_ms
from postroad.kernel.event import PLATFORM
from postroad.kernel.usage_counters import ANONYMOUS, TenantCounters, UsageCounters
from postroad.telemetry import process_sampler
from postroad.telemetry.outbox import Outbox
from postroad.telemetry.process_sampler import ProcessSampler, memory_bytes
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.telemetry.samples import event
from tests.waiting import eventually

# Counting


def test_differences_since_the_last_call_are_taken() -> None:
    usage = UsageCounters(("appends",))
    unused = dict.fromkeys(usage.names, 0)
    counters = usage.of("a")
    counters.requests += 2
    usage.of("b")
    assert list(usage.take()) == [("a", {**unused, "requests": 2})]
    assert list(usage.take()) == []
    counters.requests += 1
    counters.appends += 5
    assert list(usage.take()) == [("a", {**unused, "requests": 1, "appends": 5})]


def test_counters_that_a_caller_keeps_stay_in_use() -> None:
    usage = UsageCounters()
    kept = usage.of("a")
    list(usage.take())
    assert usage.of("a") is kept


def test_a_counter_that_is_not_declared_is_refused() -> None:
    with pytest.raises(AttributeError):
        UsageCounters().of("a").appends += 1


# One process

DECLARED = ("appends", "append_bytes", "fanout_messages")


class Sampling:
    """A sampler with its own counters and outbox. The worker has the name of the test."""

    def __init__(self, gateway: Gateway, name: str, tenants: list[str], *, waiting_bytes_max: int = 1_000_000) -> None:
        self.usage, self.connection, self.name = UsageCounters(DECLARED), gateway.node.platform.connection, name
        self.outbox = Outbox(gateway.node.platform.committers, now_ms, waiting_bytes_max=waiting_bytes_max)
        self.usage.open_requests = 3
        self.sampler = ProcessSampler(
            self.outbox,
            self.usage,
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

    async def samples(self, tenant: str = PLATFORM) -> list[dict[str, Any]]:
        return [one for one in await events_of(self.connection, "TELEMETRY", tenant) if one.get("worker") == self.name]


@pytest.fixture
async def sampling(gateway: Gateway, name: str, tenant: Tenant) -> Sampling:
    return Sampling(gateway, name, [tenant.id])


async def test_the_traffic_of_a_tenant_is_sampled_with_its_duration(sampling: Sampling, tenant: Tenant) -> None:
    counters = sampling.usage.of(tenant.id)
    counters.requests, counters.client_errors, counters.server_errors, counters.bytes_in, counters.bytes_out = 10, 2, 1, 100, 200
    counters.appends, counters.append_bytes, counters.fanout_messages = 4, 40, 7
    await sampling.sample()
    [sample] = await sampling.samples(tenant.id)
    assert (sample["event"], sample["requests"], sample["failures"]) == ("traffic.sampled", 10, 3)
    assert (sample["bytes_in"], sample["bytes_out"]) == (100, 200)
    assert (sample["appends"], sample["append_bytes"], sample["fanout_messages"]) == (4, 40, 7)
    assert 0 < sample["seconds"] < 60
    counters.requests += 1
    await sampling.sample()
    _, again = await sampling.samples(tenant.id)
    assert (again["requests"], again["failures"], again["appends"]) == (1, 0, 0)


async def test_a_tenant_without_traffic_is_not_sampled(sampling: Sampling, tenant: Tenant) -> None:
    sampling.usage.of(tenant.id).requests += 1
    for _ in range(3):
        await sampling.sample()
    assert len(await sampling.samples(tenant.id)) == 1
    assert len(await sampling.samples()) == 3


async def test_a_deleted_tenant_is_not_sampled(gateway: Gateway, name: str, tenant: Tenant) -> None:
    sampling = Sampling(gateway, name, [])
    sampling.usage.of(tenant.id).requests += 1
    await sampling.sample()
    assert await sampling.samples(tenant.id) == []


async def test_a_process_samples_all_its_requests_and_its_state(sampling: Sampling, tenant: Tenant) -> None:
    for tenant_id in (tenant.id, ANONYMOUS):
        counters = sampling.usage.of(tenant_id)
        counters.requests, counters.client_errors, counters.server_errors = 10, 2, 1
    await sampling.sample()
    [sample] = await sampling.samples()
    assert (sample["event"], sample["tenant"], sample["role"]) == ("process.sampled", PLATFORM, "gateway")
    assert (sample["requests"], sample["client_errors"], sample["server_errors"]) == (20, 4, 2)
    assert (sample["open_requests"], sample["events_dropped"]) == (3, 0)
    assert 0.5 < sample["memory_bytes"] / memory_bytes() < 2


def test_memory_is_the_resident_memory_of_the_process() -> None:
    held = bytearray(b"x" * 64 * 1024 * 1024)
    before = memory_bytes()
    assert before > len(held)
    del held
    assert before - memory_bytes() > 32 * 1024 * 1024


async def test_memory_is_0_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(process_sampler, "_STATM", tmp_path / "nothing")
    assert memory_bytes() == 0


async def test_dropped_events_are_sampled(gateway: Gateway, name: str, tenant: Tenant) -> None:
    sampling = Sampling(gateway, name, [], waiting_bytes_max=300)
    sampling.outbox.record(None, event(tenant.id, padding=500))
    sampling.outbox.record(None, event(tenant.id), event(tenant.id))
    await sampling.outbox.drain()
    await sampling.sample()
    await sampling.sample()
    assert [sample["events_dropped"] for sample in await sampling.samples()] == [2, 0]


async def test_a_blocked_event_loop_is_sampled_as_lag(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sampler, "_TICK_SECONDS", 0.01)
    running = asyncio.create_task(sampling.sampler.run())
    try:
        await asyncio.sleep(0)  # the sampler sleeps now
        time.sleep(0.12)  # noqa: ASYNC251  # blocks the loop on purpose
        await eventually(lambda: sampling.sampler._lag > 0)
        sampling.sampler.sample()
        await sampling.sample()
    finally:
        running.cancel()
    blocked, free = await sampling.samples()
    assert blocked["loop_lag_ms"] >= 100
    assert free["loop_lag_ms"] < blocked["loop_lag_ms"]


# A gateway


async def test_a_gateway_samples_periodically_and_when_it_stops(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, sample_seconds=0.3)) as gateway:
        tenant = await gateway.tenant()
        connection = gateway.node.platform.connection
        (await gateway.anonymous.get("/nowhere")).problem(404, "route-not-found")
        body, path = b"x" * 100, "/v1/stream/a"
        (await tenant.client.call("PUT", path, headers={"Content-Type": "text/plain"})).ok(201)
        (await tenant.client.call("POST", path, headers={"Content-Type": "text/plain"}, data=body)).ok(204)
        assert (await tenant.client.get(f"{path}?offset=-1")).body == body
        (await tenant.client.call("HEAD", path)).ok()
        problem = await tenant.client.get("/v1/stream/none")
        problem.problem(404, "stream-not-found")

        async def total() -> dict[str, int]:
            found = [one for one in await tenant.events("TELEMETRY") if one["event"] == "traffic.sampled"]
            return added(found) if sum(one["requests"] for one in found) == 5 else {}

        found = await eventually(total)
        assert (found["failures"], found["bytes_in"], found["appends"], found["append_bytes"]) == (1, 100, 1, 100)
        assert found["bytes_out"] == len(body) + len(problem.body), "nothing for a HEAD"
        count = len(await tenant.events("TELEMETRY"))
        settings = gateway.settings
        platform = [one for one in await events_of(connection, "TELEMETRY", PLATFORM) if one["event"] == "process.sampled"]
        assert any(one["client_errors"] for one in platform)
    async with running_gateway(gateway_settings(engine_url, sample_seconds=3600)) as gateway:
        seen = gateway.seen_by(tenant)
        assert (await seen.client.get(f"{path}?offset=-1")).status == 200
        assert len(await seen.events("TELEMETRY")) == count, "an idle process sends no sample"
    async with running_gateway(settings) as gateway:
        last = (await gateway.seen_by(tenant).events("TELEMETRY"))[count:]
        assert [(one["event"], one["requests"], one["bytes_out"]) for one in last] == [("traffic.sampled", 1, len(body))]


def added(samples: list[dict[str, Any]]) -> dict[str, int]:
    names = ("requests", "failures", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
    return {name: sum(one[name] for one in samples) for name in names}


async def test_the_bytes_of_a_live_response_are_counted_as_they_are_sent(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, sample_seconds=0.3)) as gateway:
        tenant = await gateway.tenant()
        headers = {"Content-Type": "text/plain"}
        (await tenant.client.call("PUT", "/v1/stream/a", headers=headers)).ok(201)
        async with tenant.client.events("/v1/stream/a?offset=-1&live=sse") as reader:
            (await tenant.client.call("POST", "/v1/stream/a", headers=headers, data=b"x" * 500)).ok(204)
            while (await reader.next()) is not None:

                async def is_sampled() -> bool:
                    found = [one for one in await tenant.events("TELEMETRY") if one["event"] == "traffic.sampled"]
                    return added(found)["bytes_out"] >= 500

                await eventually(is_sampled)
                break


async def test_requests_without_a_tenant_are_counted_as_anonymous(gateway: Gateway) -> None:
    before = counts_of(gateway, ANONYMOUS)
    (await gateway.anonymous.get("/nowhere")).problem(404, "route-not-found")
    (await gateway.anonymous.get("/v1/queues")).problem(401, "unauthenticated")
    (await gateway.admin.get("/api/control/tenants")).ok()
    now = counts_of(gateway, ANONYMOUS)
    assert (now[0] - before[0], now[1] - before[1]) == (3, 2)


def counts_of(gateway: Gateway, tenant: str) -> tuple[int, int]:
    counters: TenantCounters = gateway.node.platform.usage.of(tenant)
    return counters.requests, counters.client_errors
