"""Builds and runs one process: the platform's services, the capabilities of the registry, the HTTP application."""

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from postroad import __version__, registry
from postroad.access.capability import AccessCapability
from postroad.access.identity_cache import IdentityCache
from postroad.access.key_usage import KeyUsage
from postroad.access.records import KEY_USES_BUCKET, KEYS_BUCKET, TENANTS_BUCKET, KeyRecord, TenantRecord
from postroad.access.settings import AccessSettings
from postroad.api.health import Check
from postroad.governance.audit import Audit
from postroad.governance.capability import GovernanceCapability
from postroad.governance.settings import GovernanceSettings
from postroad.governance.tenant_settings import SETTINGS_BUCKET, TenantSettingsRecord, TenantSettingsStore, default_settings
from postroad.http.admission import AdmissionLimits
from postroad.http.app import App, AppSettings
from postroad.http.client_ip import networks
from postroad.http.openapi import openapi_document
from postroad.http.routing import Route, Router
from postroad.http.system_routes import SystemRoutes
from postroad.installation.capability import check_installation
from postroad.installation.records import INSTALLATION_BUCKET, LEASES_BUCKET
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.clock_sync import ClockSync
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.health_monitor import HealthMonitor
from postroad.jetstream.integrity import read_damage
from postroad.jetstream.leader import Leadership
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.storage_budget import StorageBudgets
from postroad.jetstream.store_sync import StoreSync
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import Clock, EngineClock, now_ms
from postroad.kernel.errors import PostroadError
from postroad.kernel.spans import Tracer
from postroad.kernel.usage_counters import UsageCounters
from postroad.outbound.client import Outbound, OutboundLimits
from postroad.outbound.rules import Destinations
from postroad.platform import Assembly, BackgroundJob, Platform, Role, Work
from postroad.settings import Secret, Settings
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TASKS_BUCKET, Tasks
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.outbox import Outbox
from postroad.tracing.exporter import span_exporter
from postroad.tracing.settings import TracingSettings

__all__ = [
    "Node",
    "Role",
    "build",
    "described_assembly",
    "described_routes",
    "prepare_engine",
    "running_node",
    "running_platform",
]

_LOAD_SECONDS = 300.0  # a million registry keys take more than a minute on an idle machine
_PREPARE_AT_ONCE = 8
_PREPARE_SECONDS = 120.0  # for each stream: a cluster over long distances may elect its leader more than once meanwhile
_FLUSH_SECONDS = 1.0
_SYNC_DETAILS = {"group": "one sync per group of writes", "always": "one sync per write"}


@dataclass(frozen=True, slots=True)
class Node:
    """A running process."""

    app: App
    platform: Platform
    assembly: Assembly
    routes: tuple[Route, ...]

    @property
    def access(self) -> AccessCapability:
        return self.platform.use(AccessCapability)


def connection_settings(settings: Settings, name: str) -> ConnectionSettings:
    if settings.nats_url is None:
        raise PostroadError("POSTROAD_NATS_URL is not set. Use `postroad up`, which runs an embedded server")
    return ConnectionSettings(
        urls=tuple(url.strip() for url in settings.nats_url.reveal().split(",")),
        name=name,
        credentials_file=settings.nats_credentials,
        nkey_file=settings.nats_nkey,
        tls_ca=settings.nats_tls_ca,
        tls_cert=settings.nats_tls_cert,
        tls_key=settings.nats_tls_key,
        has_replicas=settings.replica_count > 1,
    )


def platform_keys(settings: Settings) -> tuple[str, ...]:
    if settings.platform_key is None:
        raise PostroadError(
            "POSTROAD_PLATFORM_KEY is not set. All processes of an installation share one; `postroad up` generates it"
        )
    return tuple(key.strip() for key in settings.platform_key.reveal().split(","))


def build_platform(
    settings: Settings, role: Role, connection: Connection, clock: Clock | None = None, *, system_clock: Clock = now_ms
) -> Platform:
    """The services on a connection. Their clock is the engine's, as `clock_sync` measures it, unless another is passed."""
    engine_clock = EngineClock(system_clock)
    clock = clock or engine_clock
    policy = CommitPolicy(batch_min_pending=settings.commit_batch_min_pending, deadline_seconds=settings.engine_timeout)
    storage = StorageBudgets(factor=settings.workers * settings.replica_count)
    committers = Committers(connection, policy, WriteBufferLimit(settings.write_buffer_bytes_max), storage)

    worker = f"{socket.gethostname()}-{os.getpid()}"
    engine_health = HealthMonitor(connection, f"$KV.{LEASES_BUCKET}.probe.{worker}")

    tracing = settings.section(TracingSettings)
    process = {"service.version": __version__, "service.instance.id": worker, "postroad.role": role.value}
    exporter = span_exporter(tracing, {"service.name": "postroad", **process})

    def bucket(name: str) -> Bucket:
        return Bucket(connection, name, committers)

    audit = Audit(connection, committers, clock)
    tenant_settings = TenantSettingsStore(
        ReplicatedTable(bucket(SETTINGS_BUCKET), TenantSettingsRecord, clock),
        audit,
        clock,
        default_settings(settings.section(GovernanceSettings)),
    )
    identities = IdentityCache(
        ReplicatedTable(bucket(TENANTS_BUCKET), TenantRecord, clock),
        ReplicatedTable(bucket(KEYS_BUCKET), KeyRecord, clock),
        KeyUsage(bucket(KEY_USES_BUCKET), clock),
        clock,
        engine_health,
        max_age_seconds=settings.section(AccessSettings).registry_max_age_refuse_seconds,
    )
    return Platform(
        settings=settings,
        role=role,
        worker=worker,
        clock=clock,
        clock_sync=ClockSync(
            connection,
            engine_clock,
            [spec.name for kind in registry.capabilities() for spec in kind.streams(settings)],
            skew_seconds_max=settings.clock_skew_seconds_max,
        ),
        connection=connection,
        engine_health=engine_health,
        committers=committers,
        usage=UsageCounters(tuple(name for kind in registry.capabilities() for name in kind.usage)),
        audit=audit,
        tenant_settings=tenant_settings,
        identities=identities,
        outbox=Outbox(committers, clock, lambda tenant: tenant_settings.of(tenant).audit_mode),
        flows=FlowCounters(connection, clock, keeps=role.includes(Role.GATEWAY)),
        tasks=Tasks(ReplicatedTable(bucket(TASKS_BUCKET), TaskRecord, clock), audit, clock),
        outbound=Outbound(Destinations.parse(settings.outbound_allow), _outbound_limits(settings)),
        platform_keys=platform_keys(settings),
        tracer=None if exporter is None else Tracer(tracing.sampler, exporter.record),
        span_exporter=exporter,
    )


def build(platform: Platform) -> tuple[Assembly, tuple[Route, ...]]:
    """Build every capability; return them, and the routes that this process serves."""
    capabilities = tuple(platform.add(kind) for kind in registry.capabilities())
    system = SystemRoutes(
        __version__,
        lambda: _readiness(platform, assembly),
        platform.use(AccessCapability).authenticator,
        platform.settings.metrics_dir,
        [collector for capability in capabilities for collector in capability.collectors()],
    )
    routes: list[Route] = [*system.table()]
    if platform.role.includes(Role.GATEWAY):
        routes += [route for capability in capabilities for route in capability.routes()]
    assembly = Assembly(capabilities, ())
    guarded = frozenset(kind.name for kind in assembly.resources)
    recorded = platform.audit.refused_attempts.recorded
    assembly = Assembly(capabilities, tuple(recorded(_guarded(route, guarded)) for route in routes))
    system.describe(assembly.routes, parameter_schemas(assembly), assembly.errors)
    for capability in capabilities:
        capability.assembled(assembly)
    return assembly, assembly.routes


def _guarded(route: Route, kinds: frozenset[str]) -> Route:
    """The route with the parameters that a key's restrictions are checked against."""
    return dataclasses.replace(route, guarded=tuple(name for name in route.parameters if name in kinds))


def parameter_schemas(assembly: Assembly) -> dict[str, dict[str, object]]:
    schemas = {kind.name: dict(kind.schema) for kind in assembly.resources}
    for capability in assembly.capabilities:
        schemas.update({name: dict(schema) for name, schema in capability.parameters.items()})
    return schemas


def described_assembly() -> Assembly:
    """All capabilities and routes without a server, for descriptions of them."""
    platform = build_platform(Settings.of(platform_key=Secret("x" * 32)), Role.ALL, Connection(ConnectionSettings(urls=())))
    return build(platform)[0]


def described_routes() -> tuple[Route, ...]:
    """The operations of the API, without the console's pages."""
    return tuple(route for route in described_assembly().routes if not route.is_page)


def openapi() -> dict[str, Any]:
    """The OpenAPI document of all routes."""
    assembly = described_assembly()
    return openapi_document(assembly.routes, __version__, parameter_schemas(assembly))


async def prepare_engine(platform: Platform) -> None:
    """Create or update the streams and buckets of the installation. Once, before the workers start.

    Raises RestoreIncomplete, FormatTooNew before it changes anything.
    """
    kinds, replicas = registry.capabilities(), platform.settings.replica_count
    await platform.bucket(INSTALLATION_BUCKET).ensure(replicas=replicas, timeout=_PREPARE_SECONDS)
    await check_installation(platform)
    streams = [spec for kind in kinds for spec in kind.streams(platform.settings)]
    buckets = [*(bucket for kind in kinds for bucket in kind.buckets), LEASES_BUCKET]
    await _run_some_at_once(
        [
            *(ensure_stream(platform.connection, spec, timeout=_PREPARE_SECONDS) for spec in streams),
            *(platform.bucket(name).ensure(replicas=replicas, timeout=_PREPARE_SECONDS) for name in buckets),
        ]
    )
    await platform.clock_sync.measure()


async def _run_some_at_once(works: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Each takes a second or two on a cluster over long distances. Raises the first failure, once all have ended."""
    slots = asyncio.Semaphore(_PREPARE_AT_ONCE)

    async def run(work: Coroutine[Any, Any, object]) -> None:
        async with slots:
            await work

    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(run(work))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    finally:
        for work in works:
            work.close()  # those that were not begun


@asynccontextmanager
async def group_sync(settings: Settings, connection: Connection) -> AsyncIterator[None]:
    """During the block this process syncs what it writes through the connection, if the settings say so."""
    if not settings.has_group_sync or settings.store_dir is None:
        yield
        return
    connection.store_sync = store_sync = StoreSync(settings.store_dir, deadline_seconds=settings.engine_timeout)
    try:
        yield
    finally:
        store_sync.close()


@asynccontextmanager
async def running_platform(settings: Settings, name: str) -> AsyncIterator[Platform]:
    """The platform's services on an open connection, without capabilities or background jobs."""
    platform = build_platform(settings, Role.CONTROL, Connection(connection_settings(settings, name)))
    await platform.connection.open()
    try:
        await platform.clock_sync.measure()
        async with group_sync(settings, platform.connection):
            yield platform
    finally:
        await platform.outbound.close()
        await platform.connection.close()


@asynccontextmanager
async def running_node(
    settings: Settings, role: Role, *, clock: Clock | None = None, system_clock: Clock = now_ms
) -> AsyncIterator[Node]:
    """A process of this role, ready to serve. A background job that fails ends the process; the supervisor restarts it."""
    connection = Connection(connection_settings(settings, f"postroad-{role}-{os.getpid()}"))
    platform = build_platform(settings, role, connection, clock, system_clock=system_clock)
    assembly, routes = build(platform)
    await connection.open()
    try:
        await platform.clock_sync.measure()
        async with group_sync(settings, connection), asyncio.TaskGroup() as background:
            for capability in assembly.capabilities:
                await capability.preload()
            tables = [table for capability in assembly.capabilities for table in capability.tables()]
            tasks = [background.create_task(table.run()) for table in tables]
            tasks.append(background.create_task(connection.raise_when_closed()))
            tasks.append(background.create_task(connection.store_sync.raise_when_failed()))
            async with asyncio.timeout(_LOAD_SECONDS):
                for table in tables:
                    await table.wait_loaded()
            await platform.engine_health.check(tables)
            tasks.append(background.create_task(platform.engine_health.run(tables)))
            jobs = [job for capability in assembly.capabilities for job in capability.background_jobs()]
            tasks += [background.create_task(work()) for work in _works(platform, jobs)]
            app = App(
                Router(routes),
                platform.use(AccessCapability).authenticator,
                app_settings(settings),
                platform.usage,
                platform.use(GovernanceCapability).rate_limiter,
                next((one for capability in assembly.capabilities if (one := capability.protocol()) is not None), None)
                if role.includes(Role.GATEWAY)
                else None,
                platform.tracer,
            )
            try:
                yield Node(app, platform, assembly, routes)
            finally:
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH_SECONDS):
                        for capability in assembly.capabilities:
                            await capability.flush()
    finally:
        await platform.outbound.close()
        await connection.close()


def _works(platform: Platform, jobs: Sequence[BackgroundJob]) -> list[Work]:
    """The jobs of this process's role; those for a leader only run together under one lease per role."""
    mine = [job for job in jobs if job.role is None or platform.role.includes(job.role)]
    works = [job.run for job in mine if not job.leader_only]
    for role in Role:
        led = [job.run for job in mine if job.leader_only and job.role is role]
        if led:
            works.append(_led(Leadership(platform.bucket(LEASES_BUCKET), role.value, platform.worker), led))
    return works


def _led(leadership: Leadership, works: Iterable[Work]) -> Work:
    async def all_works() -> None:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work())

    async def lead() -> None:
        await leadership.run(all_works)

    return lead


def app_settings(settings: Settings) -> AppSettings:
    is_open = settings.section(AccessSettings).open
    return AppSettings(
        body_bytes_max=settings.body_bytes_max,
        anonymous_body_bytes_max=settings.anonymous_body_bytes_max,
        limits=AdmissionLimits(
            requests_max=settings.requests_max,
            requests_per_tenant_max=settings.requests_per_tenant_max,
            requests_per_address_max=settings.requests_per_address_max,
            live_connections_max=settings.live_max,
            live_connections_per_tenant_max=settings.live_connections_per_tenant_max,
            body_buffer_bytes_max=settings.body_buffer_bytes_max,
        ),
        cors_origin="" if is_open and settings.cors_origin == "*" else settings.cors_origin,
        is_open=is_open,
        access_log=settings.access_log,
        trusted_proxies=networks(settings.trusted_proxies),
    )


def _outbound_limits(settings: Settings) -> OutboundLimits:
    return OutboundLimits(
        connections_max=settings.outbound_connections_max,
        connections_per_tenant_max=settings.outbound_connections_per_tenant_max,
        connections_per_host_max=settings.outbound_connections_per_host_max,
        lookups_max=settings.outbound_lookups_max,
        lookups_per_tenant_max=settings.outbound_lookups_per_tenant_max,
        lookup_seconds=settings.outbound_lookup_seconds,
    )


async def _readiness(platform: Platform, assembly: Assembly) -> dict[str, Check]:
    age = max(table.staleness_seconds for capability in assembly.capabilities for table in capability.tables())
    limit = platform.settings.registry_max_age_unready_seconds
    checks = {
        "engine": _engine_check(platform),
        "registry": Check(age <= limit, f"followed {age:.1f} s ago" if age < float("inf") else "not loaded yet"),
    }
    for capability in assembly.capabilities:
        checks.update(await capability.readiness())
    if damage := read_damage(platform.settings.data_dir):  # the names of streams contain those of tenants
        checks["store"] = Check(True, f"{len(damage)} reports of damage: see the log and `postroad check`")
    return checks


def _engine_check(platform: Platform) -> Check:
    """The monitor's latest probe: an open connection alone proves nothing."""
    monitor = platform.engine_health
    if not platform.connection.is_up:
        return Check(False, "not connected")
    if monitor.health.is_suspect:
        detail = f"the connected server has not completed a request for {monitor.unproven_seconds:.0f} s: {monitor.health.cause}"
        return Check(False, detail)
    return Check(True, f"answers; {_SYNC_DETAILS.get(platform.settings.sync, 'one sync per interval')}")
