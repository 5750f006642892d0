"""Queues as one thing: services and routes, put together."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.access.service import Access
from postroad.crypto.signing import Sealer
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Link
from postroad.jetstream.replicated_table import Table
from postroad.kernel.clock import Clock
from postroad.queues.browsing import REDRIVE, Upkeep
from postroad.queues.browsing_routes import UpkeepRoutes
from postroad.queues.consuming import Leases
from postroad.queues.consuming_routes import LeaseRoutes
from postroad.queues.dead_letters import FAILURES_BUCKET, DeadLetters
from postroad.queues.lifecycle import QUEUES_BUCKET, Definitions
from postroad.queues.publishing import Queues
from postroad.queues.routes import QueueRoutes
from postroad.queues.rules import MessageLimits, QueueRecord
from postroad.queues.sampler import QueueSampler
from postroad.queues.stats import Meter
from postroad.queues.throughput import Rates
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


class QueueParts:
    def __init__(
        self,
        link: Link,
        committers: Committers,
        access: Access,
        tasks: Tasks,
        outbox: Outbox,
        clock: Clock,
        options: QueueOptions,
    ) -> None:
        self._access, self._options = access, options
        self.table = Table(Bucket(link, QUEUES_BUCKET, committers), QueueRecord)
        self.rates = Rates(link)
        self._dead = DeadLetters(link, committers, Bucket(link, FAILURES_BUCKET, committers), clock, replicas=options.replicas)
        self._meter = Meter(link, self._dead, self.rates, clock)
        self.definitions = Definitions(
            link,
            self.table,
            outbox,
            clock,
            preferences=access.preferences,
            audit=access.audit,
            dead=self._dead,
            replicas=options.replicas,
        )
        self._queues = Queues(
            link,
            committers,
            self.definitions,
            self.table,
            self._meter,
            outbox,
            self.rates,
            clock,
            preferences=access.preferences,
            limits=options.limits,
        )
        sealer = Sealer(options.platform_keys, "receipt")
        self._leases = Leases(
            link, self.definitions, self.table, self._dead, outbox, sealer, access.preferences, self.rates, clock
        )
        self._upkeep = Upkeep(
            link,
            self.definitions,
            self._queues,
            self._dead,
            self._meter,
            tasks,
            outbox,
            access.audit,
            access.preferences,
            clock,
        )

        self.sampler = QueueSampler(
            link,
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
        leases = LeaseRoutes(self._leases, self._access.preferences, wait_ms_max=self._options.wait_ms_max)
        upkeep = UpkeepRoutes(self.definitions, self._dead, self._upkeep)
        return [*queues.table(), *leases.table(), *upkeep.table()]

    async def delete_all(self, tenant: str) -> None:
        """All that a tenant has here; it is being deleted."""
        await self.definitions.delete_all(tenant)
        await self._dead.delete_all(tenant)
