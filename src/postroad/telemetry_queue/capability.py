"""Wiring of the telemetry queue."""

from collections.abc import Sequence
from typing import Any

from postroad.commands.capability import CommandsCapability
from postroad.http.routing import Route
from postroad.jetstream.management import delete_consumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.telemetry.capability import TelemetryCapability
from postroad.telemetry_queue.activity import HourlyActivity
from postroad.telemetry_queue.drops import DropCounter
from postroad.telemetry_queue.events import EVENTS
from postroad.telemetry_queue.evictor import FrameEvictor
from postroad.telemetry_queue.frame_consumer import FrameConsumers
from postroad.telemetry_queue.queue import NAME, TelemetryQueue
from postroad.telemetry_queue.records import DROPS_BUCKET, READS_BUCKET, STREAM, ReadRecord, consumer_name
from postroad.telemetry_queue.routes import TelemetryQueueRoutes
from postroad.telemetry_queue.status import StatusReader, StatusSampler

_SAMPLE_SECONDS = 60.0
_DROP_SECONDS = 300.0
_EVICT_SECONDS = 5.0


class TelemetryQueueCapability(Capability):
    name = "telemetry_queue"
    events = EVENTS
    buckets = (READS_BUCKET, DROPS_BUCKET)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._services = platform.use(CommandsCapability).service_table
        self.reads = platform.table(READS_BUCKET, ReadRecord)
        self._consumers = FrameConsumers(platform.connection)
        self._activity = HourlyActivity(platform.connection)
        self.queue = TelemetryQueue(
            self._consumers,
            platform.tenant_settings,
            self.reads,
            self._activity,
            platform.position_cipher("telemetry receipt"),
            platform.clock,
            self._has_services,
        )
        platform.use(QueuesCapability).reserved[NAME] = self.queue
        self.reader = StatusReader(platform.connection, self.reads, self._activity, platform.clock)
        self.sampler = StatusSampler(self.reader, platform.outbox, platform.clock, self._tenants)
        self.drops = self.new_drop_counter()
        self.evictor = FrameEvictor(platform.connection, self.drops, platform.outbox, platform.clock)
        platform.use(TelemetryCapability).on_removal.append(self.evictor.expect_removal)

    def new_drop_counter(self) -> DropCounter:
        platform = self.platform
        return DropCounter(
            platform.connection,
            self._consumers,
            platform.bucket(DROPS_BUCKET),
            self.reads,
            platform.outbox,
            platform.clock,
            self._tenants,
            self.queue.filter_of,
        )

    def _has_services(self, tenant: str) -> bool:
        return self._services.count_under(f"{tenant}.") > 0

    def _tenants(self) -> Sequence[str]:
        """The tenants that have the queue. Reading that of a tenant that is being deleted would create its consumer again."""
        identities = self.platform.identities
        return [one for one in identities.tenant_ids() if self._has_services(one) and not identities.is_deleted(one)]

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.reads,)

    def routes(self) -> Sequence[Route]:
        return TelemetryQueueRoutes(self.queue, self.reader, self.drops).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self._activity.run),
            BackgroundJob(
                every(_SAMPLE_SECONDS, self.sampler.run_once, "sample telemetry queues"), Role.CONTROL, leader_only=True
            ),
            BackgroundJob(every(_DROP_SECONDS, self.drops.run_once, "count dropped telemetry"), Role.CONTROL, leader_only=True),
            BackgroundJob(
                every(_EVICT_SECONDS, self.evictor.run_once, "make room for telemetry"), Role.CONTROL, leader_only=True
            ),
        )

    async def delete_tenant(self, tenant: str) -> None:
        await delete_consumer(self.platform.connection, STREAM, consumer_name(tenant))
        self._consumers.forget(tenant)
        await self.platform.bucket(DROPS_BUCKET).delete(tenant)
        if self.reads.get(tenant) is not None:
            await self.reads.delete(tenant)


CAPABILITY = TelemetryQueueCapability
