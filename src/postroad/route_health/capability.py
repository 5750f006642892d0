"""Wiring of route health."""

from collections.abc import Sequence
from typing import Any

from prometheus_client.registry import Collector

from postroad.commands.capability import CommandsCapability
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.queues.capability import QueuesCapability
from postroad.route_health.events import EVENTS
from postroad.route_health.gauges import RouteHealthGauges
from postroad.route_health.misroutes import MisrouteCounter
from postroad.route_health.monitor import RouteHealthMonitor
from postroad.route_health.records import HEALTH_BUCKET, MISROUTES_BUCKET, RouteHealthRecord, TenantMisroutes
from postroad.route_health.routes import RouteHealthRoutes


class RouteHealthCapability(Capability):
    name = "route_health"
    events = EVENTS
    buckets = (HEALTH_BUCKET, MISROUTES_BUCKET)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        queues, commands = platform.use(QueuesCapability), platform.use(CommandsCapability)
        self._routes, self._queues = commands.route_table, queues.table
        self.table = platform.table(HEALTH_BUCKET, RouteHealthRecord)
        self.misroutes = platform.table(MISROUTES_BUCKET, TenantMisroutes)
        self.monitor = RouteHealthMonitor(
            self._routes, self._queues, self.table, platform.outbox, platform.clock, self._has_storage
        )
        self.counter = MisrouteCounter(platform.connection, self.misroutes, platform.identities.is_deleted)
        queues.sampler.add_listener(self.monitor)

    def _has_storage(self, tenant: str) -> bool:
        budget = self.platform.committers.storage.of_tenant(tenant)
        return budget.used < budget.quota

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table, self.misroutes)

    def collectors(self) -> Sequence[Collector]:
        return (RouteHealthGauges(self._routes, self.table),)

    def routes(self) -> Sequence[Route]:
        return RouteHealthRoutes(self._routes, self._queues, self.table, self.misroutes).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.counter.run, Role.CONTROL, leader_only=True),)

    async def delete_tenant(self, tenant: str) -> None:
        for key in list(self.table.keys_under(f"{tenant}.")):
            await self.table.delete(key)
        if self.misroutes.get(tenant) is not None:
            await self.misroutes.delete(tenant)


CAPABILITY = RouteHealthCapability
