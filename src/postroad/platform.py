"""What a capability is, and the services that all capabilities of a process share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

import structlog
from prometheus_client.registry import Collector

from postroad.access.identity_cache import IdentityCache
from postroad.api.health import Check
from postroad.crypto.position_encryption import PositionCipher
from postroad.crypto.signing import Signer
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.clock_sync import ClockSync
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.health_monitor import HealthMonitor
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import Record, ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import KERNEL_ERRORS, PostroadError
from postroad.kernel.event import Event
from postroad.kernel.resources import ResourceKind
from postroad.kernel.spans import Tracer
from postroad.kernel.usage_counters import UsageCounters
from postroad.outbound.client import Outbound
from postroad.settings import Settings
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import Handler, Tasks
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.live_sections import LiveSection
from postroad.telemetry.outbox import Outbox
from postroad.tracing.exporter import SpanExporter

C = TypeVar("C", bound="Capability")
Work = Callable[[], Coroutine[None, None, None]]

log = structlog.get_logger("postroad")


class Role(StrEnum):
    """What a process does: `gateway` serves the API, `control` runs the jobs that need one process, `delivery` sends messages
    out, `background` is control and delivery."""

    ALL = "all"
    GATEWAY = "gateway"
    CONTROL = "control"
    DELIVERY = "delivery"
    BACKGROUND = "background"

    def includes(self, other: "Role") -> bool:
        return self in (Role.ALL, other) or (self is Role.BACKGROUND and other in (Role.CONTROL, Role.DELIVERY))


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """Work that runs until cancelled. `role` None: in every process. `leader_only`: in one process of the role at a time."""

    run: Work
    role: Role | None = None
    leader_only: bool = False


@dataclass(frozen=True, slots=True)
class Platform:
    """Services of one process, shared by its capabilities."""

    settings: Settings
    role: Role
    worker: str
    clock: Clock
    clock_sync: ClockSync
    connection: Connection
    engine_health: HealthMonitor
    committers: Committers
    usage: UsageCounters
    audit: Audit
    tenant_settings: TenantSettingsStore
    identities: IdentityCache
    outbox: Outbox
    flows: FlowCounters
    tasks: Tasks
    outbound: Outbound
    platform_keys: tuple[str, ...]
    tracer: Tracer | None = None  # both are None while tracing is off
    span_exporter: SpanExporter | None = None
    _built: "dict[type[Capability], Capability]" = field(default_factory=dict)

    def signer(self, purpose: str) -> Signer:
        return Signer(self.platform_keys, purpose)

    def position_cipher(self, purpose: str) -> PositionCipher:
        return PositionCipher(self.platform_keys, purpose)

    def bucket(self, name: str) -> Bucket:
        return Bucket(self.connection, name, self.committers)

    def table(self, bucket: str, record: type[Record]) -> ReplicatedTable[Record]:
        return ReplicatedTable(self.bucket(bucket), record, self.clock)

    def add(self, kind: "type[C]") -> "C":
        built = self._built[kind] = kind(self)
        return built

    @property
    def capabilities(self) -> "tuple[Capability, ...]":
        """Those that were built so far; all of them once routes are asked for."""
        return tuple(self._built.values())

    def use(self, kind: "type[C]") -> "C":
        """Another capability of this process, which must precede the caller in the registry."""
        return self._built[kind]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Assembly:
    """All capabilities of a process with their routes, once they are built."""

    capabilities: "tuple[Capability, ...]"
    routes: tuple[Route, ...]

    @property
    def resources(self) -> tuple[ResourceKind, ...]:
        return tuple(kind for capability in self.capabilities for kind in capability.resources)

    @property
    def events(self) -> tuple[type[Event], ...]:
        return tuple(kind for capability in self.capabilities for kind in capability.events)

    @property
    def errors(self) -> tuple[type[PostroadError], ...]:
        """All errors that a response can have, ordered by code."""
        declared = (*KERNEL_ERRORS, *(error for capability in self.capabilities for error in capability.errors))
        return tuple(sorted(declared, key=lambda error: error.code))


class Capability:
    """A package that adds something users can name. Class attributes declare it; an instance belongs to one process."""

    name: ClassVar[str]
    resources: ClassVar[tuple[ResourceKind, ...]] = ()
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # JSON Schemas of path parameters that are not resources
    errors: ClassVar[tuple[type[PostroadError], ...]] = ()
    events: ClassVar[tuple[type[Event], ...]] = ()
    buckets: ClassVar[tuple[str, ...]] = ()
    ephemeral_buckets: ClassVar[tuple[str, ...]] = ()  # those of `buckets` about living processes: no part of a backup
    usage: ClassVar[tuple[str, ...]] = ()  # counters per tenant, which are fields of `traffic.sampled`
    cli_groups: ClassVar[Mapping[str, str]] = {}  # help texts of generated command groups

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        """Streams that every installation has."""
        return ()

    def collectors(self) -> Sequence[Collector]:
        """Metrics that are not those of this process: every process reports them to a scrape."""
        return ()

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        """Tables that every process follows, loaded before it serves."""
        return ()

    async def preload(self) -> None:
        """Called once, before the tables are followed, for what makes their load shorter. Must not fail."""

    def routes(self) -> Sequence[Route]:
        return ()

    def protocol(self) -> Route | None:
        """The handler of another wire protocol on the same port (`http.app.App`)."""
        return None

    def live_sections(self) -> Sequence[LiveSection]:
        """What it contributes to the live state of a tenant (`GET /v1/live`) and of the installation."""
        return ()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return ()

    def task_handlers(self) -> Mapping[str, Handler]:
        """Handlers of long-running tasks by kind."""
        return {}

    def died_again(self) -> "Mapping[str, Callable[[TaskRecord], Awaitable[int | None]]]":
        """By kind of task that repeats failed messages: how many of them have failed again."""
        return {}

    def assembled(self, assembly: Assembly) -> None:
        """Called once, when all capabilities are built and before any of them runs."""

    async def readiness(self) -> Mapping[str, Check]:
        return {}

    async def delete_tenant(self, tenant: str) -> None:
        """Delete everything that the tenant has here. May be repeated after an interruption."""

    async def flush(self) -> None:
        """Write what is buffered, before the process ends."""


def every(seconds: float, work: Callable[[], Coroutine[None, None, object]], name: str) -> Work:
    """Repeat the work with pauses; an expected failure is logged, and the next round tries again."""

    async def repeat() -> None:
        while True:
            try:
                await work()
            except PostroadError as problem:
                log.warning("periodic_job_failed", job=name, code=problem.code, detail=problem.detail)
            await asyncio.sleep(seconds)

    return repeat
