"""Wiring of schedules."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.api.schedules import ScheduleNotFound
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import QUEUE
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.queues.capability import QueuesCapability
from postroad.schedules.events import EVENTS
from postroad.schedules.records import ScheduleRecord
from postroad.schedules.routes import ScheduleRoutes
from postroad.schedules.rules import CatchUpLimits
from postroad.schedules.service import SCHEDULES_BUCKET, Schedules
from postroad.schedules.settings import SchedulesSettings
from postroad.schedules.ticker import Ticker


class SchedulesCapability(Capability):
    name = "schedules"
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "schedule": {"pattern": f"^{QUEUE.pattern}$", "description": "Name of the schedule."}
    }
    errors = (ScheduleNotFound,)
    events = EVENTS
    buckets = (SCHEDULES_BUCKET,)
    cli_groups: ClassVar[Mapping[str, str]] = {"schedules": "Messages published by cron expression or interval."}

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        queues, chosen = platform.use(QueuesCapability), platform.settings.section(SchedulesSettings)
        self.table = platform.table(SCHEDULES_BUCKET, ScheduleRecord)
        self._schedules = Schedules(
            self.table, queues.lifecycle, queues.publisher, platform.outbox, platform.audit, platform.clock, chosen
        )
        self.ticker = self.new_ticker()

    def new_ticker(self) -> Ticker:
        chosen = self.platform.settings.section(SchedulesSettings)
        limits = CatchUpLimits(chosen.schedule_grace_seconds * 1000, chosen.schedule_catch_up_seconds * 1000)
        publisher = self.platform.use(QueuesCapability).publisher
        is_served = self.platform.identities.is_served
        return Ticker(self.table, publisher, self.platform.outbox, self.platform.clock, limits, is_served=is_served)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        return ScheduleRoutes(self._schedules).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.ticker.run, Role.CONTROL, leader_only=True),)

    async def delete_tenant(self, tenant: str) -> None:
        await self._schedules.delete_all(tenant)


CAPABILITY = SchedulesCapability
