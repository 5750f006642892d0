"""Queues as one thing: services and routes, put together."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.access.service import Access
from postroad.crypto.signing import Signer
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.queues.browsing import REDRIVE, Upkeep
from postroad.queues.browsing_routes import UpkeepRoutes
from postroad.queues.consuming import Consumer
from postroad.queues.consuming_routes import LeaseRoutes
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.routes import QueueRoutes
from postroad.queues.rules import MessageLimits, QueueRecord
from postroad.queues.sampler import QueueSampler
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.tasks.service import Handler, Tasks
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class QueueOptions:
    replicas: int
    batch_max: int
    wait_ms_max: int
    limits: MessageLimits
    platform_keys: tuple[str, ...]
    sample_seconds: float


class QueuesCapability:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        access: Access,
        tasks: Tasks,
        outbox: Outbox,
        clock: Clock,
        options: QueueOptions,
    ) -> None:
        self._access, self._options = access, options
        self.table = ReplicatedTable(Bucket(connection, QUEUES_BUCKET, committers), QueueRecord)
        self.rates = Throughput(connection)
        self._dead = DeadLetters(
            connection, committers, Bucket(connection, FAILURES_BUCKET, committers), clock, replicas=options.replicas
        )
        self._meter = QueueStatsReader(connection, self._dead, self.rates, clock)
        self.definitions = QueueLifecycle(
            connection,
            self.table,
            outbox,
            clock,
            tenant_settings=access.tenant_settings,
            audit=access.audit,
            dead=self._dead,
            replicas=options.replicas,
        )
        self._queues = Publisher(
            connection,
            committers,
            self.definitions,
            self.table,
            self._meter,
            outbox,
            self.rates,
            clock,
            tenant_settings=access.tenant_settings,
            limits=options.limits,
        )
        sealer = Signer(options.platform_keys, "receipt")
        self._leases = Consumer(
            connection, self.definitions, self.table, self._dead, outbox, sealer, access.tenant_settings, self.rates, clock
        )
        self._upkeep = Upkeep(
            connection,
            self.definitions,
            self._queues,
            self._dead,
            self._meter,
            tasks,
            outbox,
            access.audit,
            access.tenant_settings,
            clock,
        )

        self.sampler = QueueSampler(
            connection,
            self.table,
            self._meter,
            self.rates,
            outbox,
            access.directory.tenant_ids,
            clock,
            seconds=options.sample_seconds,
        )

    @property
    def task_handlers(self) -> dict[str, Handler]:
        return {REDRIVE: self._upkeep.carry_out_redrive}

    def routes(self) -> Sequence[Route]:
        queues = QueueRoutes(self.definitions, self._queues, self._meter, batch_max=self._options.batch_max)
        leases = LeaseRoutes(self._leases, self._access.tenant_settings, wait_ms_max=self._options.wait_ms_max)
        upkeep = UpkeepRoutes(self.definitions, self._dead, self._upkeep)
        return [*queues.table(), *leases.table(), *upkeep.table()]

    async def delete_all(self, tenant: str) -> None:
        """All that a tenant has here; it is being deleted."""
        await self.definitions.delete_all(tenant)
        await self._dead.delete_all(tenant)
