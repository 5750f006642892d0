"""Wiring of queues."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from postroad.api.health import Check
from postroad.api.queues import (
    ENGINE,
    RABBITMQ,
    AlreadySettled,
    BackendCannot,
    BackendUnavailable,
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
from postroad.jetstream.membership import MemberRecord, Membership
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.configuration import Secret
from postroad.kernel.ids import new_request_id
from postroad.kernel.names import QUEUE, queue_name
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.backends import Backends
from postroad.queues.browsing import QueueBrowser
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.client_routes import ClientRoutes
from postroad.queues.consumer_activity import ConsumerReports
from postroad.queues.consuming import Consumer
from postroad.queues.consuming_routes import ConsumingRoutes, LeasedQueue
from postroad.queues.dead_letter_routes import DeadLetterRoutes
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.deferred_messages import DeferredMessages
from postroad.queues.deferred_mover import DeferredMover
from postroad.queues.dispatch_routing import Dispatchers, DispatchRouting, DispatchServer
from postroad.queues.engine_backend import EngineBackend
from postroad.queues.events import EVENTS
from postroad.queues.gauges import QueueGauges, SamplePublisher
from postroad.queues.group_shares import GroupShares
from postroad.queues.lease_log import LeaseLog, lease_stream
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.live_queues import LiveQueues
from postroad.queues.message_locator import MessageLocator
from postroad.queues.message_moves import MOVE, MessageMover
from postroad.queues.message_removal import MessageRemoval
from postroad.queues.message_routes import MessageRoutes
from postroad.queues.message_search import MessageSearch
from postroad.queues.new_queues import NewQueues
from postroad.queues.numbered_deliveries import NumberedDeliveries
from postroad.queues.ordered_leases import OrderedLeases
from postroad.queues.progress import ProgressReports
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord
from postroad.queues.redrive import REDRIVE, Redriver
from postroad.queues.routes import QueueRoutes
from postroad.queues.rules import MessageLimits
from postroad.queues.sample_history import LatestSamples
from postroad.queues.sampler import QueueSampler
from postroad.queues.schemas import Schemas
from postroad.queues.settings import QueuesSettings
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Rate, Throughput
from postroad.queues.validator_process import ValidatorProcess
from postroad.queues.waiting import WaitingPulls
from postroad.regions.capability import RegionsCapability
from postroad.settings import Settings
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import Handler
from postroad.telemetry.live_sections import LiveSection
from postroad.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from postroad.queues.rabbitmq.service import RabbitService

MEMBERS_BUCKET = "postroad_dispatch_members"
_RECOVER_SECONDS = 300.0
_COMPACT_SECONDS = 10.0
_MOVE_SECONDS = 5.0


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
        BackendCannot,
        BackendUnavailable,
        ReceiptInvalid,
        LeaseExpired,
        AlreadySettled,
        JobWasCancelled,
    )
    events = EVENTS
    buckets = (QUEUES_BUCKET, FAILURES_BUCKET, MEMBERS_BUCKET)
    ephemeral_buckets = (MEMBERS_BUCKET,)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._placements = platform.use(RegionsCapability).placements
        connection, committers, outbox, clock = platform.connection, platform.committers, platform.outbox, platform.clock
        settings, chosen = platform.settings, platform.settings.section(QueuesSettings)
        self.table = platform.table(QUEUES_BUCKET, QueueRecord)
        self.throughput = Throughput(connection, platform.flows)
        self.validator_process = ValidatorProcess()
        self.schemas = Schemas(self.validator_process)
        self.dead_letters = DeadLetters(
            connection,
            committers,
            platform.bucket(FAILURES_BUCKET),
            platform.audit,
            clock,
            replicas=settings.replica_count,
            flows=platform.flows,
        )
        self.lease_log = LeaseLog(connection, committers, self.table, clock)
        self._waiting = WaitingPulls(connection, lambda: self.consumer.waiting_pulls())
        self.cancelled_messages = CancelledMessages(connection, committers, self.dead_letters, clock)
        self.members_table = platform.table(MEMBERS_BUCKET, MemberRecord)
        self.membership = Membership(self.members_table, f"{platform.worker}-{new_request_id()}")
        self.dispatchers = Dispatchers(
            connection,
            committers,
            lambda tenant, name: self.lifecycle.cached(tenant, name),
            lambda *exhausted: self.ordered_leases.dead_letter_exhausted(*exhausted),
            clock,
        )
        self.table.on_change(self.dispatchers.queue_changed)
        self.ordered_leases = OrderedLeases(
            connection,
            DispatchRouting(connection, self.dispatchers, self.membership, is_member=platform.role.includes(Role.GATEWAY)),
            self.dead_letters,
            self.cancelled_messages,
            outbox,
            platform.signer("receipt"),
            self.throughput,
            clock,
            platform.tracer,
        )
        self.deferred_messages = DeferredMessages(connection, committers)
        self.group_shares = GroupShares(connection, self.lease_log, self.table, clock)
        self.backend = Backends(
            EngineBackend(connection, committers, self.table, self.lease_log, self.deferred_messages, self._placements)
        )
        self.rabbit = self._rabbit_service(chosen.rabbitmq_url)
        self.stats_reader = QueueStatsReader(
            connection,
            self.backend,
            self.dead_letters,
            self._waiting,
            self.throughput,
            clock,
            self.ordered_leases,
        )
        self.lifecycle = QueueLifecycle(
            connection,
            self.table,
            outbox,
            clock,
            backend=self.backend,
            tenant_settings=platform.tenant_settings,
            audit=platform.audit,
            dead_letters=self.dead_letters,
            schemas=self.schemas,
            placements=self._placements,
            new_queues=NewQueues(
                RABBITMQ if chosen.queue_backend == RABBITMQ else ENGINE,
                has_rabbitmq=self.rabbit is not None,
                lease_ms_max=chosen.rabbitmq_lease_ms_max,
            ),
        )
        self.publisher = Publisher(
            connection,
            committers,
            self.backend,
            self.lifecycle,
            self.table,
            self.stats_reader,
            outbox,
            self.throughput,
            clock,
            tenant_settings=platform.tenant_settings,
            schemas=self.schemas,
            shares=self.group_shares,
            limits=MessageLimits(chosen.message_headers_max, chosen.message_headers_bytes_max),
        )
        self.numbered_deliveries = NumberedDeliveries(connection, committers, self.publisher, outbox, self.throughput)
        self.locator = MessageLocator(connection)
        self.consumer = Consumer(
            connection,
            self.backend,
            self.lifecycle,
            self.dead_letters,
            self.cancelled_messages,
            self.lease_log,
            outbox,
            platform.signer("receipt"),
            self.throughput,
            clock,
            self.ordered_leases,
            self.deferred_messages,
            self.group_shares,
            platform.tracer,
        )
        self.consumer_reports = ConsumerReports(connection, self.lease_log.delivery_state)
        self.consumer.reports = self.consumer_reports
        self._progress = ProgressReports(self.consumer, outbox, clock)
        self.browser = QueueBrowser(
            connection,
            self.backend,
            self.stats_reader,
            self.lease_log,
            outbox,
            platform.audit,
            clock,
            self.ordered_leases,
            self.deferred_messages,
        )
        self.deferred_mover = DeferredMover(
            connection, committers, self.deferred_messages, self.group_shares, self.table, self.membership, clock
        )
        self._dispatch_server = DispatchServer(connection, self.dispatchers, self.lifecycle.find, self.membership.name)
        self._redriver = Redriver(self.lifecycle, self.publisher, self.dead_letters, platform.tasks, outbox, platform.flows)
        self.mover = MessageMover(self.lifecycle, self.publisher, self.consumer, self.stats_reader, platform.tasks, outbox)
        self.reserved: dict[str, LeasedQueue] = {}  # queues of other capabilities, by their reserved names
        self.lifecycle.reserved = self.reserved
        self._gauges = QueueGauges(connection)
        self._samples = LatestSamples(connection, clock)
        sample_seconds = settings.section(TelemetrySettings).sample_seconds
        self.sampler = QueueSampler(
            connection,
            self.table,
            self.stats_reader,
            self.throughput,
            outbox,
            platform.identities.tenant_ids,
            SamplePublisher(connection, queues_max=chosen.queue_metrics_max, seconds=sample_seconds),
            seconds=sample_seconds,
        )

    def _rabbit_service(self, url: Secret | None) -> "RabbitService | None":
        """RabbitMQ's client is an extra, and imported only where it is used."""
        if url is None:
            return None
        from postroad.queues.rabbitmq.service import RabbitService

        made = RabbitService(self.platform, url, self.backend.engine, self.table, self.lease_log, self.dead_letters)
        self.backend.others[RABBITMQ] = made.backend
        return made

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (lease_stream(settings.replica_count, settings.share_of_store(32)),)

    def collectors(self) -> Sequence[Collector]:
        return (self._gauges,)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table, self.members_table)

    def routes(self) -> Sequence[Route]:
        chosen = self.platform.settings.section(QueuesSettings)
        platform = self.platform
        removal = MessageRemoval(
            platform.connection,
            self.locator,
            self.cancelled_messages,
            self.consumer,
            self.lease_log,
            platform.outbox,
            platform.audit,
            self.deferred_messages,
        )
        search = MessageSearch(self.lifecycle, self.browser, self.dead_letters, self.platform.clock, self._published_rate)
        queues = QueueRoutes(self.lifecycle, self.browser, removal, self.stats_reader, self._placements, self._samples)
        messages = MessageRoutes(
            self.lifecycle, self.publisher, self.browser, removal, search, batch_max=chosen.batch_messages_max
        )
        consuming = ConsumingRoutes(
            self.consumer,
            self._progress,
            self.platform.tenant_settings,
            self.reserved,
            wait_ms_max=chosen.pull_wait_ms_max,
        )
        dead_letters = DeadLetterRoutes(self.lifecycle, self.dead_letters, self._redriver, self.mover)
        clients = ClientRoutes(
            self.lifecycle, self.stats_reader, self.consumer_reports, platform.flows, platform.identities, platform.clock
        )
        return [*queues.table(), *messages.table(), *consuming.table(), *dead_letters.table(), *clients.table()]

    def live_sections(self) -> Sequence[LiveSection]:
        connection, clock = self.platform.connection, self.platform.clock
        return (LiveQueues(connection, self.table, self.stats_reader, self.throughput, clock),)

    def _published_rate(self, tenant: str) -> float:
        rate = self.throughput.rates_by_tenant().get(tenant)
        return 0.0 if rate is None else rate.in_per_second

    def tenant_levels(self, tenants: Iterable[str]) -> dict[str, tuple[int, float, float]]:
        """The number of queues of each tenant, and their rates together."""
        rates = self.throughput.rates_by_tenant()
        idle = Rate(0.0, 0.0)
        found = {name: (self.table.count_under(f"{name}."), rates.get(name, idle)) for name in tenants}
        return {name: (count, rate.in_per_second, rate.out_per_second) for name, (count, rate) in found.items()}

    def _rabbit_jobs(self) -> Sequence[BackgroundJob]:
        if self.rabbit is None:
            return ()
        move = every(_MOVE_SECONDS, self.rabbit.dead_letters.run_once, "move dead letters of RabbitMQ")
        return (
            BackgroundJob(self.rabbit.backend.routing.run),
            BackgroundJob(self.rabbit.outboxes.run, Role.GATEWAY),
            BackgroundJob(move, Role.CONTROL, leader_only=True),
        )

    async def readiness(self) -> Mapping[str, Check]:
        return {} if self.rabbit is None else {RABBITMQ: await self.rabbit.check()}

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            *self._rabbit_jobs(),
            BackgroundJob(self.throughput.run),
            BackgroundJob(self.consumer_reports.run, Role.GATEWAY),
            BackgroundJob(self.lease_log.run),
            BackgroundJob(self._waiting.run),
            BackgroundJob(self._gauges.run),
            BackgroundJob(self.validator_process.run, Role.GATEWAY),
            BackgroundJob(self._dispatch_server.run, Role.GATEWAY),
            BackgroundJob(self.membership.run, Role.GATEWAY),
            BackgroundJob(self.group_shares.run),
            BackgroundJob(self.deferred_mover.run, Role.GATEWAY),
            BackgroundJob(self.sampler.run, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_COMPACT_SECONDS, self.lease_log.compact, "compact leases"), Role.CONTROL, leader_only=True),
            BackgroundJob(every(_RECOVER_SECONDS, self.lifecycle.recover_all, "recover queues"), Role.CONTROL, leader_only=True),
        )

    def task_handlers(self) -> Mapping[str, Handler]:
        return {REDRIVE: self._redriver.run, MOVE: self.mover.run}

    def died_again(self) -> Mapping[str, Callable[[TaskRecord], Awaitable[int | None]]]:
        return {REDRIVE: self._redriver.died_again}

    async def flush(self) -> None:
        self._samples.close()
        await self.lease_log.flush()
        if self.rabbit is not None:
            await self.rabbit.close()

    async def delete_tenant(self, tenant: str) -> None:
        await self.lifecycle.delete_all(tenant)
        await self.dead_letters.delete_stream(tenant)


CAPABILITY = QueuesCapability
