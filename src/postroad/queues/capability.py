"""Wiring of queues."""

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.registry import Collector

from postroad.api.queues import (
    AlreadySettled,
    IdempotencyMismatch,
    JobWasCancelled,
    LeaseExpired,
    MessageNotFound,
    QueueNotFound,
    ReceiptInvalid,
    SchemaMismatch,
    SchemaTooSlow,
)
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import QUEUE, queue_name
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.browsing import QueueBrowser
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.consuming import Consumer
from postroad.queues.consuming_routes import ConsumingRoutes
from postroad.queues.dead_letter_routes import DeadLetterRoutes
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.events import EVENTS
from postroad.queues.gauges import QueueGauges, SamplePublisher
from postroad.queues.lease_log import LeaseLog, lease_stream
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.message_locator import MessageLocator
from postroad.queues.message_moves import MOVE, MessageMover
from postroad.queues.message_routes import MessageRoutes
from postroad.queues.progress import ProgressReports
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord
from postroad.queues.redrive import REDRIVE, Redriver
from postroad.queues.routes import QueueRoutes
from postroad.queues.rules import MessageLimits
from postroad.queues.sampler import QueueSampler
from postroad.queues.schemas import Schemas
from postroad.queues.settings import QueuesSettings
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.queues.validator_process import ValidatorProcess
from postroad.queues.waiting import WaitingPulls
from postroad.settings import Settings
from postroad.tasks.service import Handler
from postroad.telemetry.settings import TelemetrySettings

_RECOVER_SECONDS = 300.0
_COMPACT_SECONDS = 10.0


class QueuesCapability(Capability):
    name = "queues"
    resources = (
        ResourceKind(
            "queue", {"pattern": f"^{QUEUE.pattern}$", "description": "Name of the queue."}, ("Q", "D"), check=queue_name
        ),
    )
    errors = (
        QueueNotFound,
        MessageNotFound,
        IdempotencyMismatch,
        SchemaMismatch,
        SchemaTooSlow,
        ReceiptInvalid,
        LeaseExpired,
        AlreadySettled,
        JobWasCancelled,
    )
    events = EVENTS
    buckets = (QUEUES_BUCKET, FAILURES_BUCKET)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        connection, committers, outbox, clock = platform.connection, platform.committers, platform.outbox, platform.clock
        settings, chosen = platform.settings, platform.settings.section(QueuesSettings)
        self.table = platform.table(QUEUES_BUCKET, QueueRecord)
        self.throughput = Throughput(connection)
        self.validator_process = ValidatorProcess()
        self.schemas = Schemas(self.validator_process)
        self.dead_letters = DeadLetters(
            connection,
            committers,
            platform.bucket(FAILURES_BUCKET),
            platform.audit,
            clock,
            replicas=settings.replica_count,
        )
        self.lease_log = LeaseLog(connection, committers, self.table, clock)
        self._waiting = WaitingPulls(connection, lambda: self.consumer.waiting_pulls())
        self.stats_reader = QueueStatsReader(connection, self.dead_letters, self.lease_log, self._waiting, self.throughput, clock)
        self.lifecycle = QueueLifecycle(
            connection,
            self.table,
            outbox,
            clock,
            tenant_settings=platform.tenant_settings,
            audit=platform.audit,
            dead_letters=self.dead_letters,
            schemas=self.schemas,
            replicas=settings.replica_count,
        )
        self.publisher = Publisher(
            connection,
            committers,
            self.lifecycle,
            self.table,
            self.stats_reader,
            outbox,
            self.throughput,
            clock,
            tenant_settings=platform.tenant_settings,
            schemas=self.schemas,
            limits=MessageLimits(chosen.message_headers_max, chosen.message_headers_bytes_max),
        )
        self.locator = MessageLocator(connection)
        self.cancelled_messages = CancelledMessages(connection, committers, self.dead_letters, clock)
        self.consumer = Consumer(
            connection,
            self.lifecycle,
            self.table,
            self.dead_letters,
            self.cancelled_messages,
            self.lease_log,
            outbox,
            platform.signer("receipt"),
            self.throughput,
            clock,
        )
        self._progress = ProgressReports(self.consumer, outbox, clock)
        self.browser = QueueBrowser(connection, self.stats_reader, self.lease_log, outbox, platform.audit, clock)
        self._redriver = Redriver(self.lifecycle, self.publisher, self.dead_letters, platform.tasks, outbox)
        self.mover = MessageMover(self.lifecycle, self.publisher, self.consumer, self.stats_reader, platform.tasks, outbox)
        self._gauges = QueueGauges(connection)
        sample_seconds = settings.section(TelemetrySettings).sample_seconds
        self._sampler = QueueSampler(
            connection,
            self.table,
            self.stats_reader,
            self.throughput,
            outbox,
            platform.identities.tenant_ids,
            SamplePublisher(connection, queues_max=chosen.queue_metrics_max, seconds=sample_seconds),
            seconds=sample_seconds,
        )

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (lease_stream(settings.replica_count, settings.share_of_store(32)),)

    def collectors(self) -> Sequence[Collector]:
        return (self._gauges,)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        chosen = self.platform.settings.section(QueuesSettings)
        queues = QueueRoutes(self.lifecycle, self.browser, self.stats_reader)
        messages = MessageRoutes(self.lifecycle, self.publisher, self.browser, batch_max=chosen.batch_messages_max)
        consuming = ConsumingRoutes(
            self.consumer, self._progress, self.platform.tenant_settings, wait_ms_max=chosen.pull_wait_ms_max
        )
        dead_letters = DeadLetterRoutes(self.lifecycle, self.dead_letters, self._redriver, self.mover)
        return [*queues.table(), *messages.table(), *consuming.table(), *dead_letters.table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.throughput.run),
            BackgroundJob(self.lease_log.run),
            BackgroundJob(self._waiting.run),
            BackgroundJob(self._gauges.run),
            BackgroundJob(self.validator_process.run, Role.GATEWAY),
            BackgroundJob(self._sampler.run, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_COMPACT_SECONDS, self.lease_log.compact, "compact leases"), Role.CONTROL, leader_only=True),
            BackgroundJob(every(_RECOVER_SECONDS, self.lifecycle.recover_all, "recover queues"), Role.CONTROL, leader_only=True),
        )

    def task_handlers(self) -> Mapping[str, Handler]:
        return {REDRIVE: self._redriver.run, MOVE: self.mover.run}

    async def flush(self) -> None:
        await self.lease_log.flush()

    async def delete_tenant(self, tenant: str) -> None:
        await self.lifecycle.delete_all(tenant)
        await self.dead_letters.delete_stream(tenant)


CAPABILITY = QueuesCapability
