"""Runs the scenarios of all tenants until the time is over or a signal arrives, and counts the results."""

import asyncio
import contextlib
import logging
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from postroad.client import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.demo.clock import DRAIN_SECONDS, DemoClock
from postroad.demo.command_actors import ban, read_telemetry, revoke, rotate, send
from postroad.demo.command_scenarios import BAN, READS_TELEMETRY, ROUTES, SENDERS
from postroad.demo.counters import TenantCounters
from postroad.demo.plan import plan_sessions
from postroad.demo.queue_actors import consume, publish, redrive
from postroad.demo.scenarios import SCENARIOS
from postroad.demo.services import DemoServices, register_services
from postroad.demo.stream_actors import append, publish_to_sessions, run_session
from postroad.demo.tenants import DEADLINE_SECONDS, DemoTenant, prepared_tenant
from postroad.demo.topic_actors import change_stock, publish_events

_PROGRESS_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class DemoOptions:
    url: str
    admin_key: str
    seconds: float
    seed: int
    rate: float
    delete_tenants: bool
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Counters and end of a run. `ended_by` is `time`, `signal` or `problem`."""

    options: DemoOptions
    counters: tuple[TenantCounters, ...]
    began_at: datetime
    ended_at: datetime
    calls: int
    ended_by: str
    problem: PostroadError | None

    def summary(self) -> dict[str, Any]:
        return {
            "seed": self.options.seed,
            "seconds": self.options.seconds,
            "rate": self.options.rate,
            "beganAt": self.began_at.isoformat().replace("+00:00", "Z"),
            "endedAt": self.ended_at.isoformat().replace("+00:00", "Z"),
            "endedBy": self.ended_by,
            "calls": self.calls,
            "tenants": {one.tenant: one.summary() for one in self.counters},
        }


OnProgress = Callable[[DemoClock, tuple[TenantCounters, ...]], None]


def run_demo(options: DemoOptions, on_progress: OnProgress) -> DemoResult:
    """Run the demo; calls `on_progress` a few times a second.

    Raises PostroadError if the tenants cannot be prepared, KeyboardInterrupt after a second signal.
    """
    logging.getLogger("postroad.streams").addHandler(logging.NullHandler())  # an unavailable server is reported once, at the end
    try:
        return asyncio.run(_run(options, on_progress))
    except asyncio.CancelledError:  # by a second signal
        raise KeyboardInterrupt from None


async def _run(options: DemoOptions, on_progress: OnProgress) -> DemoResult:
    async with contextlib.AsyncExitStack() as opened:
        platform = await opened.enter_async_context(
            AsyncPostroad(options.url, options.admin_key, tenant="", deadline=DEADLINE_SECONDS, ca_file=options.ca_file)
        )
        tenants = [
            await opened.enter_async_context(
                prepared_tenant(platform, options.url, options.admin_key, scenario, options.seconds, options.ca_file)
            )
            for scenario in SCENARIOS
        ]
        services = await register_services(tenants)
        clock = DemoClock(options.seconds, options.rate, options.seed, uuid.uuid4().hex[:12])
        counters = tuple(TenantCounters(tenant.id) for tenant in tenants)
        began_at = datetime.now(UTC)
        with _signal_handlers(clock) as received:
            await _run_actors(clock, tenants, services, counters, on_progress)
        if options.delete_tenants and clock.problem is None:
            for tenant in tenants:
                await platform.tenants.delete(tenant.id)
    ended_by = "problem" if clock.problem else "signal" if received else "time"
    return DemoResult(options, counters, began_at, datetime.now(UTC), clock.calls, ended_by, clock.problem)


async def _run_actors(
    clock: DemoClock,
    tenants: list[DemoTenant],
    services: DemoServices,
    counters: tuple[TenantCounters, ...],
    on_progress: OnProgress,
) -> None:
    """Planned actors end with their plan, consumers when their queue is empty, and all of them when the clock ends."""
    planned: list[Coroutine[Any, Any, None]] = []
    consumers: list[Coroutine[Any, Any, None]] = []
    for tenant, counted in zip(tenants, counters, strict=True):
        planned += _planned_actors(clock, tenant, counted)
        consumers += _consumers(clock, tenant, counted)
    by_name = {tenant.scenario.name: counted for tenant, counted in zip(tenants, counters, strict=True)}
    planned += _command_actors(clock, services, by_name)
    consumers += _command_consumers(clock, services, by_name)
    async with asyncio.TaskGroup() as actors:
        progress = asyncio.create_task(_report_progress(clock, counters, on_progress))
        tasks = [actors.create_task(clock.supervise(actor)) for actor in planned]
        for actor in consumers:
            actors.create_task(clock.supervise(actor))
        end = asyncio.get_running_loop().call_later(clock.seconds + DRAIN_SECONDS, clock.end)
        await asyncio.wait({*tasks, actors.create_task(clock.sleep(clock.seconds))})
        clock.drain()
    end.cancel()
    progress.cancel()
    await asyncio.gather(progress, return_exceptions=True)


def _planned_actors(clock: DemoClock, tenant: DemoTenant, counters: TenantCounters) -> list[Coroutine[Any, Any, None]]:
    scenario, client = tenant.scenario, tenant.client
    sessions = plan_sessions(clock.seed, scenario, clock.seconds, clock.rate)
    return [
        *(
            publish(clock, tenant.publishers[queue.name], scenario.name, queue, counters.queue(queue.name))
            for queue in scenario.queues
        ),
        *(redrive(clock, client, one, counters.queue(one.queue)) for one in scenario.redrives),
        append(clock, client, scenario, counters.counts),
        publish_to_sessions(clock, client, scenario, counters.counts),
        *(run_session(clock, client, session, counters.counts) for session in sessions),
        *(actor(clock, client, scenario.events, counters.counts) for actor in (publish_events, change_stock) if scenario.events),
    ]


def _consumers(clock: DemoClock, tenant: DemoTenant, counters: TenantCounters) -> list[Coroutine[Any, Any, None]]:
    name = tenant.scenario.name
    return [
        consume(clock, tenant.consumers[queue.name], name, queue, number, counters.queue(queue.name))
        for queue in tenant.scenario.queues
        for number in range(queue.consumer_count)
    ]


def _command_actors(
    clock: DemoClock, services: DemoServices, counters: Mapping[str, TenantCounters]
) -> list[Coroutine[Any, Any, None]]:
    return [
        *(
            send(
                clock,
                services,
                one,
                counters[one.tenant].service(one.service),
                counters[one.route.tenant].queue(one.route.queue.name),
            )
            for one in SENDERS
        ),
        ban(clock, services, counters[BAN.sender.tenant].service(BAN.sender.service)),
        *(rotate(clock, services, one, one.rotates_at) for one in SENDERS if one.rotates_at is not None),
        *(revoke(clock, services, one, one.revoked_at) for one in SENDERS if one.revoked_at is not None),
    ]


def _command_consumers(
    clock: DemoClock, services: DemoServices, counters: Mapping[str, TenantCounters]
) -> list[Coroutine[Any, Any, None]]:
    return [
        *(
            consume(
                clock,
                services.tenants[route.tenant].client,
                route.tenant,
                route.queue,
                number,
                counters[route.tenant].queue(route.queue.name),
            )
            for route in ROUTES
            for number in range(route.queue.consumer_count)
        ),
        *(read_telemetry(clock, services.tenants[name], counters[name]) for name in READS_TELEMETRY),
    ]


async def _report_progress(clock: DemoClock, counters: tuple[TenantCounters, ...], on_progress: OnProgress) -> None:
    while True:
        on_progress(clock, counters)
        await asyncio.sleep(_PROGRESS_SECONDS)


@contextlib.contextmanager
def _signal_handlers(clock: DemoClock) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM end the run after the current calls; a second signal cancels it. Yields the received signals.

    Handlers are set in the main thread only, as Python delivers signals there."""
    received: list[int] = []
    running = asyncio.current_task()

    def stop(number: int) -> None:
        if received and running is not None:
            running.cancel()
        received.append(number)
        clock.end()

    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    for number in numbers if is_main else ():
        loop.add_signal_handler(number, stop, number)
    try:
        yield received
    finally:
        for number in numbers if is_main else ():
            loop.remove_signal_handler(number)
