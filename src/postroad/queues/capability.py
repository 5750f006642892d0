"""Wiring of queues."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import QUEUE
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.browsing import REDRIVE, Upkeep
from postroad.queues.browsing_routes import UpkeepRoutes
from postroad.queues.consuming import Consumer
from postroad.queues.consuming_routes import LeaseRoutes
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.events import EVENTS
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.routes import QueueRoutes
from postroad.queues.rules import MessageLimits, QueueRecord
from postroad.queues.sampler import QueueSampler
from postroad.queues.settings import QueuesSettings
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.tasks.service import Handler
from postroad.telemetry.settings import TelemetrySettings

_RECOVER_SECONDS = 300.0


class QueuesCapability(Capability):
    name = "queues"
    resources = (ResourceKind("queue", {"pattern": f"^{QUEUE.pattern}$"}, ("Q", "D")),)
    events = EVENTS
    buckets = (QUEUES_BUCKET, FAILURES_BUCKET)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        connection, committers, outbox, clock = platform.connection, platform.committers, platform.outbox, platform.clock
        settings, chosen = platform.settings, platform.settings.section(QueuesSettings)
        self.table = platform.table(QUEUES_BUCKET, QueueRecord)
        self.throughput = Throughput(connection)
        self._dead = DeadLetters(connection, committers, platform.bucket(FAILURES_BUCKET), clock, replicas=settings.replica_count)
        self._stats = QueueStatsReader(connection, self._dead, self.throughput, clock)
        self.lifecycle = QueueLifecycle(
            connection,
            self.table,
            outbox,
            clock,
            tenant_settings=platform.tenant_settings,
            audit=platform.audit,
            dead=self._dead,
            replicas=settings.replica_count,
        )
        self.publisher = Publisher(
            connection,
            committers,
            self.lifecycle,
            self.table,
            self._stats,
            outbox,
            self.throughput,
            clock,
            tenant_settings=platform.tenant_settings,
            limits=MessageLimits(chosen.message_headers_max, chosen.message_headers_bytes_max),
        )
        self._consumer = Consumer(
            connection, self.lifecycle, self.table, self._dead, outbox, platform.signer("receipt"), self.throughput, clock
        )
        self._upkeep = Upkeep(
            connection, self.lifecycle, self.publisher, self._dead, self._stats, platform.tasks, outbox, platform.audit
        )
        self._sampler = QueueSampler(
            connection,
            self.table,
            self._stats,
            self.throughput,
            outbox,
            platform.identities.tenant_ids,
            seconds=settings.section(TelemetrySettings).sample_seconds,
        )

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        chosen = self.platform.settings.section(QueuesSettings)
        queues = QueueRoutes(self.lifecycle, self.publisher, self._stats, batch_max=chosen.batch_messages_max)
        leases = LeaseRoutes(self._consumer, self.platform.tenant_settings, wait_ms_max=chosen.pull_wait_ms_max)
        upkeep = UpkeepRoutes(self.lifecycle, self._dead, self._upkeep)
        return [*queues.table(), *leases.table(), *upkeep.table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.throughput.run),
            BackgroundJob(self._sampler.run, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_RECOVER_SECONDS, self.lifecycle.sweep, "recover queues"), Role.CONTROL, leader_only=True),
        )

    def task_handlers(self) -> Mapping[str, Handler]:
        return {REDRIVE: self._upkeep.carry_out_redrive}

    async def delete_tenant(self, tenant: str) -> None:
        await self.lifecycle.delete_all(tenant)
        await self._dead.delete_all(tenant)


CAPABILITY = QueuesCapability
