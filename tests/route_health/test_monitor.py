"""The monitor of route health, its events, its records and the routes that show them."""

import asyncio
from typing import Any

import pytest

from postroad.jetstream import stream_reader
from postroad.kernel.event import PLATFORM
from postroad.queues.events import QueueSampled
from postroad.route_health.capability import RouteHealthCapability
from postroad.route_health.misroutes import MisrouteCounter
from postroad.route_health.monitor import RouteHealthMonitor
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Gateway, ShiftedClock, Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.engine


class Watch:
    """A monitor that the test feeds, with the tables of the gateway."""

    def __init__(self, gateway: Gateway, tenant: Tenant) -> None:
        self.tenant, self.gateway, self.clock = tenant, gateway, ShiftedClock()
        self.health = gateway.node.platform.use(RouteHealthCapability)
        self.monitor = self.new_monitor()

    def new_monitor(self) -> RouteHealthMonitor:
        of = self.health.monitor
        return RouteHealthMonitor(of._routes, of._queues, of._health, of._outbox, self.clock)

    async def feed(self, count: int = 2, *, queue: str = "bot-post", ready: int = 0, **more: Any) -> None:
        for index in range(count):
            fields = {"leased": 1, "delayed": 0, "dead": 0, "waiting": 0, "in_per_second": 0.0, "out_per_second": 0.0, **more}
            rising = fields.pop("rising", False)
            sample = QueueSampled(
                tenant=self.tenant.id,
                queue=queue,
                ready=ready + (index if rising else 0),
                expected_drain_seconds=300,
                seconds=10.0,
                **fields,
            )
            await self.monitor.observe([sample])
            self.clock.ahead_ms += 10_000

    async def quiet_rounds(self, count: int = 2) -> None:
        for _ in range(count):
            await self.monitor.observe([])
            self.clock.ahead_ms += 10_000

    async def shown(self, **query: str) -> Any:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return (await self.tenant.client.get(f"/v1/route-health?{text}")).ok()["routes"]

    async def events(self) -> list[dict[str, Any]]:
        await self.gateway.node.platform.outbox.drain()
        return [one for one in await self.tenant.events("COMMANDS") if one["event"].startswith("route.")]


@pytest.fixture
async def watch(gateway: Gateway, tenant: Tenant) -> Watch:
    await register_target(tenant)
    return Watch(gateway, tenant)


async def state(watch: Watch) -> tuple[str, list[str]]:
    [one] = await watch.shown()
    return one["status"], one["problems"]


async def test_a_new_route_is_unknown_and_healthy_after_two_samples(watch: Watch) -> None:
    assert await state(watch) == ("unknown", [])
    await watch.feed(1)
    assert await state(watch) == ("unknown", [])
    await watch.feed(1)
    assert await state(watch) == ("healthy", [])
    assert await watch.events() == []


@pytest.mark.parametrize(
    ("problem", "bad", "count"),
    [
        ("old", {"ready": 1, "oldest_age_ms": 10**7}, 2),
        ("growing", {"ready": 1, "rising": True}, 7),
        ("unpolled", {"ready": 1, "leased": 0}, 6),
    ],
)
async def test_problems_of_samples_are_found_and_recovered(watch: Watch, problem: str, bad: dict[str, Any], count: int) -> None:
    """Requirements 38, 39, 40, 41"""
    await watch.feed(2)
    await watch.feed(1, ready=1, oldest_age_ms=10**7)
    await watch.feed(2)
    assert await state(watch) == ("healthy", []), "one outlier is no problem"
    await watch.feed(count, **bad)
    assert await state(watch) == ("unhealthy", [problem])
    await watch.feed(1)
    assert await state(watch) == ("unhealthy", [problem])
    await watch.feed(1)
    assert await state(watch) == ("healthy", [])
    unhealthy, recovered = await watch.events()
    assert (unhealthy["event"], unhealthy["problems"], recovered["event"]) == ("route.unhealthy", [problem], "route.recovered")
    assert (unhealthy["target"], unhealthy["command.name"], unhealthy["queue"]) == (f"{watch.tenant.id}/bot", "post", "bot-post")
    assert recovered["unhealthy_seconds"] > 0


async def test_conditions_of_the_queue_are_found_and_recovered(watch: Watch) -> None:
    """Requirement 177"""
    tenant = watch.tenant
    await watch.feed(2)
    (await tenant.client.post("/v1/queues/bot-post/pause")).ok()
    await watch.quiet_rounds()
    assert await state(watch) == ("unhealthy", ["paused"])
    (await tenant.client.post("/v1/queues/bot-post/resume")).ok()
    await watch.quiet_rounds()
    assert await state(watch) == ("healthy", [])
    (await tenant.client.patch("/v1/queues/bot-post", {"maxAttempts": 0, "maxMessages": 5})).ok()
    await watch.feed(2, ready=4)
    assert await state(watch) == ("unhealthy", ["not-dead-lettering", "full"])
    (await tenant.client.patch("/v1/queues/bot-post", {"maxAttempts": 3})).ok()
    await watch.feed(2, ready=3)
    assert await state(watch) == ("healthy", [])
    assert (await tenant.client.delete("/v1/queues/bot-post")).status in (202, 204)
    await watch.quiet_rounds()
    await eventually(lambda: _is_missing(watch))
    (await tenant.client.put("/v1/queues/bot-post", {"maxAttempts": 3})).ok(201)
    await watch.feed(2)
    assert await state(watch) == ("healthy", [])
    events = [(one["event"], one.get("problems")) for one in await watch.events()]
    assert events == [
        (name, problems if name == "route.unhealthy" else None)
        for problems in (["paused"], ["not-dead-lettering", "full"], ["missing-queue"])
        for name in ("route.unhealthy", "route.recovered")
    ]


async def _is_missing(watch: Watch) -> bool:
    await watch.quiet_rounds(1)
    return await state(watch) == ("unhealthy", ["missing-queue"])


async def test_the_drain_time_is_that_of_the_route_else_of_the_queue(watch: Watch) -> None:
    """Requirement 37"""
    client = watch.tenant.client
    await watch.feed(2, ready=1, oldest_age_ms=125_000)
    assert await state(watch) == ("healthy", []), "300 seconds if neither has one"
    (await client.patch("/v1/queues/bot-post", {"expectedDrainSeconds": 60})).ok()
    await watch.feed(2, ready=1, oldest_age_ms=125_000)
    assert await state(watch) == ("unhealthy", ["old"])
    assert [one["expectedDrainSeconds"] for one in await watch.shown()] == [60]
    (await client.put("/v1/routes/bot/post", {"queue": "bot-post", "expected_drain_seconds": 120})).ok()
    await watch.feed(2, ready=1, oldest_age_ms=125_000)
    assert await state(watch) == ("healthy", [])
    unhealthy, recovered = await watch.events()
    assert (unhealthy["expected_drain_seconds"], recovered["event"]) == (60, "route.recovered")


async def test_the_state_survives_a_change_of_the_leader(watch: Watch) -> None:
    await watch.feed(8, ready=1, rising=True)
    assert await state(watch) == ("unhealthy", ["growing"])
    watch.monitor = watch.new_monitor()
    await watch.feed(4, ready=9, rising=True)
    assert await state(watch) == ("unhealthy", ["growing"]), "too few samples to say that it does not grow"
    await watch.feed(8, ready=9)
    assert await state(watch) == ("healthy", [])
    assert [one["event"] for one in await watch.events()] == ["route.unhealthy", "route.recovered"]


async def test_a_deleted_unhealthy_route_is_recovered(watch: Watch) -> None:
    await watch.feed(2, ready=1, oldest_age_ms=10**7)
    assert (await watch.tenant.client.delete("/v1/routes/bot/post")).status == 204
    await watch.quiet_rounds(1)
    assert [(one["event"], one.get("deleted", False)) for one in await watch.events()] == [
        ("route.unhealthy", False),
        ("route.recovered", True),
    ]
    assert watch.health.table.count_under(f"{watch.tenant.id}.") == 0


async def test_the_list_has_the_worst_first_in_pages_and_by_status(
    watch: Watch, gateway: Gateway, second_gateway: Gateway
) -> None:
    tenant = watch.tenant
    for command in ("b", "c", "d"):
        await register_target(tenant, "bot", command)
    other = await gateway.tenant()
    await register_target(other)
    await watch.feed(2, queue="bot-b")
    await watch.feed(2, queue="bot-d", ready=1, oldest_age_ms=10**7)
    assert [(one["command"], one["status"]) for one in await watch.shown()] == [
        ("d", "unhealthy"),
        ("c", "unknown"),
        ("post", "unknown"),
        ("b", "healthy"),
    ]
    assert [one["command"] for one in await watch.shown(status="unknown")] == ["c", "post"]
    seen: list[str] = []
    more: str | None = ""
    while more is not None:
        page = (await tenant.client.get(f"/v1/route-health?limit=1{more}")).ok()
        seen += [one["command"] for one in page["routes"]]
        more = f"&cursor={page['nextCursor']}" if page["nextCursor"] else None
    assert seen == ["d", "c", "post", "b"]
    elsewhere = second_gateway.seen_by(tenant)
    await eventually(lambda: _first_is(elsewhere, "d"))
    limited = await tenant.another_key(allowed_services=("x*",))
    assert (await limited.client.get("/v1/route-health")).ok()["routes"] == []
    (await tenant.client.get("/v1/route-health?status=fine")).problem(400, "invalid-parameter")


async def _first_is(tenant: Tenant, command: str) -> bool:
    return bool((await tenant.client.get("/v1/route-health")).ok()["routes"][0]["command"] == command)


async def test_metrics_count_routes_by_status_and_problem(watch: Watch) -> None:
    """Requirement 42"""
    await watch.feed(2, ready=1, oldest_age_ms=10**7)
    text = (await watch.gateway.anonymous.get("/metrics")).body.decode()
    assert f'postroad_route_unhealthy{{command="post",queue="bot-post",target="{watch.tenant.id}/bot"}} 1.0' in text
    assert 'postroad_routes{status="unhealthy"}' in text and 'postroad_route_problems{problem="old"}' in text


async def test_commands_without_a_route_are_counted_once_by_target_and_command(watch: Watch, gateway: Gateway) -> None:
    """Requirement 177"""
    sender = await register_sender(watch.tenant)
    await grant(watch.tenant, sender.source)
    counter = watch.health.counter

    async def count_until(wanted: int) -> None:
        running = asyncio.create_task(counter.run())
        try:
            await eventually(lambda: watch.health.misroutes.get(PLATFORM))
            await eventually(lambda: _misrouted(watch.tenant, wanted))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    await count_until(0)
    for _ in range(3):
        (await sender.send(name="nothing")).problem(404, "route-missing")
    (await sender.send()).ok(202)
    await count_until(3)
    (await sender.send(name="nothing")).problem(404, "route-missing")
    await count_until(4)
    [one] = (await watch.tenant.client.get("/v1/route-health/misroutes")).ok()["misroutes"]
    assert (one["target"], one["command"], one["lastSource"]) == (f"{watch.tenant.id}/bot", "nothing", sender.source)
    other = await gateway.tenant()
    assert (await other.client.get("/v1/route-health/misroutes")).ok()["misroutes"] == []


async def _misrouted(tenant: Tenant, wanted: int) -> bool:
    found = (await tenant.client.get("/v1/route-health/misroutes")).ok()["misroutes"]
    return bool(sum(one["count"] for one in found) == wanted)


async def test_misroutes_of_a_deleted_tenant_are_not_stored(gateway: Gateway) -> None:
    """Its commands are on their way when its records are deleted."""
    tenant, connection = await gateway.tenant(), gateway.node.platform.connection
    await register_target(tenant)
    sender = await register_sender(tenant)
    (await sender.send(name="nothing")).problem(404, "route-missing")
    health = gateway.node.platform.use(RouteHealthCapability)
    [frame] = (await stream_reader.read(connection, "COMMANDS", f"command.{tenant.id}")).entries
    for is_deleted in (True, False):
        counter = MisrouteCounter(connection, health.misroutes, lambda _tenant: is_deleted)  # noqa: B023
        counter._count(frame)
        await counter._flush()
        assert (health.misroutes.get(tenant.id) is None) is is_deleted


async def test_two_leaders_count_a_command_once(gateway: Gateway) -> None:
    """While leadership changes, both may have read the same frame."""
    tenant, connection = await gateway.tenant(), gateway.node.platform.connection
    await register_target(tenant)
    sender = await register_sender(tenant)
    (await sender.send(name="nothing")).problem(404, "route-missing")
    health = gateway.node.platform.use(RouteHealthCapability)
    [frame] = (await stream_reader.read(connection, "COMMANDS", f"command.{tenant.id}")).entries
    counters = [MisrouteCounter(connection, health.misroutes, lambda _tenant: False) for _ in range(2)]
    for counter in counters:
        counter._count(frame)
    for counter in counters:
        await counter._flush()
    assert await _misrouted(tenant, 1)
