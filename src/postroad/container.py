"""Puts the parts of one process together, and takes them apart again. The only place that knows them all."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from postroad import __version__
from postroad.access.hook import load_hook
from postroad.access.service import BUCKETS, Access, AccessOptions
from postroad.governance.audit import audit_stream
from postroad.governance.tenant_settings import AuditMode, TenantSettings
from postroad.http.app import App, AppSettings
from postroad.http.client_ip import networks
from postroad.http.routing import Route, Router
from postroad.http.sse import HEARTBEAT_SECONDS
from postroad.http.system_routes import Check, SystemRoutes
from postroad.insights.capability import InsightsCapability
from postroad.insights.store import insights_stream
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.leader import Leadership
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.jobs.archive import history_stream
from postroad.jobs.capability import Jobs
from postroad.kernel.clock import Clock, now_ms, rfc3339
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.usage_counters import UsageCounters
from postroad.outbound.client import Outbound
from postroad.queues.capability import QueueOptions, QueuesCapability
from postroad.queues.dead_letters import FAILURES_BUCKET
from postroad.queues.lifecycle import QUEUES_BUCKET, QueueLifecycle
from postroad.queues.rules import MessageLimits, QueueRecord
from postroad.queues.throughput import Throughput
from postroad.sessions.capability import SessionsCapability, SessionSettings
from postroad.sessions.cleanup_requests import cleanup_stream
from postroad.sessions.fanout_queue import queue_stream
from postroad.sessions.rules import FanoutLimits
from postroad.settings import Secret, Settings
from postroad.stream_subscriptions.capability import StreamSubscriptions
from postroad.stream_subscriptions.service import SUBSCRIPTIONS_BUCKET
from postroad.streams.capability import StreamOptions, StreamsCapability
from postroad.streams.live_reads import LiveOptions
from postroad.tasks.routes import TaskRoutes
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TASKS_BUCKET, Runner, Tasks
from postroad.telemetry.event_types import PLATFORM, WorkerStarted
from postroad.telemetry.frames import frame_streams
from postroad.telemetry.outbox import Outbox
from postroad.telemetry.process_sampler import ProcessSampler
from postroad.telemetry.routes import TelemetryRoutes
from postroad.telemetry.storage_sampler import StorageSampler

LEASES_BUCKET = "postroad_leases"
_SWEEP_SECONDS = 300.0
_DRAIN_SECONDS = 1.0

log = structlog.get_logger("postroad")


class Role(StrEnum):
    """What a process does: `gateway` answers the API, `control` has the chores of which there is one, `delivery` sends out,
    `background` does both."""

    ALL = "all"
    GATEWAY = "gateway"
    CONTROL = "control"
    DELIVERY = "delivery"
    BACKGROUND = "background"

    def includes(self, other: "Role") -> bool:
        return self in (Role.ALL, other) or (self is Role.BACKGROUND and other in (Role.CONTROL, Role.DELIVERY))


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine as one process uses it."""

    connection: Connection
    committers: Committers
    backlog: WriteBufferLimit


def connection_settings(settings: Settings, name: str) -> ConnectionSettings:
    if settings.nats_url is None:
        raise PostroadError("POSTROAD_NATS_URL is not set: use `postroad up`, which runs a server of its own")
    return ConnectionSettings(
        urls=tuple(url.strip() for url in settings.nats_url.reveal().split(",")),
        name=name,
        credentials_file=settings.nats_credentials,
        tls_ca=settings.nats_tls_ca,
        tls_cert=settings.nats_tls_cert,
        tls_key=settings.nats_tls_key,
        has_replicas=settings.replica_count > 1,
    )


def engine_on(connection: Connection, settings: Settings) -> Engine:
    backlog = WriteBufferLimit(settings.waiting_bytes_max)
    policy = CommitPolicy(batch_min_pending=settings.commit_batch_from, deadline_seconds=settings.engine_timeout)
    return Engine(connection, Committers(connection, policy, backlog), backlog)


@asynccontextmanager
async def connected(settings: Settings, name: str) -> AsyncIterator[Engine]:
    connection = Connection(connection_settings(settings, name))
    await connection.open()
    try:
        yield engine_on(connection, settings)
    finally:
        await connection.close()


async def prepare_engine(engine: Engine, settings: Settings) -> None:
    """The streams and buckets that every installation has, made or brought up to date. Once, before the workers start."""
    copies = settings.replica_count
    specs = (audit_stream(copies, settings.audit_keep_days), queue_stream(copies), cleanup_stream(copies))
    for spec in (*frame_streams(copies), *specs, insights_stream(copies), history_stream(copies)):
        await ensure_stream(engine.connection, spec)
    for name in (*BUCKETS, QUEUES_BUCKET, FAILURES_BUCKET, TASKS_BUCKET, LEASES_BUCKET, SUBSCRIPTIONS_BUCKET):
        await Bucket(engine.connection, name, engine.committers).ensure(replicas=settings.replica_count)


def access_of(engine: Engine, settings: Settings, clock: Clock = now_ms) -> Access:
    initial = TenantSettings(
        audit_mode=AuditMode(settings.audit_mode),
        auto_create_queues=False,
        visibility_timeout_ms=settings.visibility_timeout_ms,
        receipt_ttl_max_ms=settings.receipt_ttl_max_ms,
        idempotency_ttl_ms=settings.idempotency_ttl_ms,
        pull_max=settings.pull_messages_max,
        max_message_bytes=settings.message_bytes_max,
        max_queues=settings.queues_per_tenant_max,
        max_keys=settings.keys_per_tenant_max,
    )
    options = AccessOptions(
        platform_keys(settings),
        initial,
        trust_seconds_max=settings.trust_seconds_max,
        failures_burst=settings.auth_failures_burst,
        failures_per_minute=settings.auth_failures_per_minute,
        authorize=load_hook(settings.authorize) if settings.authorize else None,
        keys_in_urls=settings.keys_in_urls,
        is_open=settings.open,
    )
    return Access(engine.connection, engine.committers, clock, options)


@dataclass(frozen=True, slots=True)
class Node:
    """One process, put together and running."""

    app: App
    access: Access
    engine: Engine
    routes: tuple[Route, ...]


def platform_keys(settings: Settings) -> tuple[str, ...]:
    if settings.platform_key is None:
        raise PostroadError(
            "POSTROAD_PLATFORM_KEY is not set: all processes of an installation share one, `postroad up` makes it"
        )
    return tuple(key.strip() for key in settings.platform_key.reveal().split(","))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a process is made of, before anything runs."""

    engine: Engine
    access: Access
    tables: tuple[ReplicatedTable[Any], ...]  # what every process follows
    rates: Throughput
    outbox: Outbox
    traffic: UsageCounters
    outbound: Outbound
    routes: tuple[Route, ...]
    chores: Callable[[], Coroutine[None, None, None]]
    deliver: Callable[[], Coroutine[None, None, None]]
    wake: Callable[[], Coroutine[None, None, None]]


def build(settings: Settings, role: Role, connection: Connection, clock: Clock) -> _Parts:
    engine = engine_on(connection, settings)
    access = access_of(engine, settings, clock)
    outbox, traffic = Outbox(engine.committers), UsageCounters()
    task_table = ReplicatedTable(Bucket(connection, TASKS_BUCKET, engine.committers), TaskRecord)
    tasks = Tasks(task_table, access.audit, clock)
    options = QueueOptions(
        replicas=settings.replica_count,
        batch_max=settings.batch_messages_max,
        wait_ms_max=settings.pull_wait_ms_max,
        limits=MessageLimits(settings.message_headers_max, settings.message_headers_bytes_max),
        platform_keys=platform_keys(settings),
        sample_seconds=settings.sample_seconds,
    )
    queues = QueuesCapability(connection, engine.committers, access, tasks, outbox, clock, options)
    streams = StreamsCapability(connection, engine.committers, outbox, traffic, clock, _stream_options(settings))
    outbound = Outbound(networks(settings.outbound_allow))
    subscriptions = StreamSubscriptions(
        connection,
        engine.committers,
        streams.service,
        outbound,
        access.audit,
        platform_keys(settings),
        clock,
        lambda request: request.base_url(settings.public_url),
        is_served=access.directory.is_served,
        has_localhost=settings.open,
    )
    sessions = SessionsCapability(
        connection,
        engine.committers,
        streams.service,
        outbox,
        traffic,
        access.directory.tenant_ids,
        clock,
        _session_settings(settings),
    )
    jobs = Jobs(connection, clock, settings.data_dir / "jobs", settings.jobs_keep_days)
    insights = InsightsCapability(connection, clock)
    access.tenants.clean_with(
        *(queues.delete_all, subscriptions.delete_all, streams.delete_all, access.secrets.delete_all, tasks.delete_all),
        *(insights.delete_all, jobs.delete_all),
    )
    runner = Runner(task_table, clock, queues.task_handlers)
    readiness = _readiness(settings, engine, access, queues.table, insights)
    operations = SystemRoutes(__version__, readiness, access.gate, settings.metrics_dir)
    routes = [*operations.table()]
    if role.includes(Role.GATEWAY):
        routes += [*access.routes(), *queues.routes(), *streams.routes(), *subscriptions.routes(), *sessions.routes()]
        routes += [*jobs.table(), *TaskRoutes(tasks).table(), *TelemetryRoutes(connection).table(), *insights.routes()]
    operations.describe(routes)
    access.tokens.offer(routes)
    sweeping = _sweeping(queues.definitions, streams, access)
    storage = StorageSampler(connection, outbox, access.directory.tenant_ids, clock)
    sampling = (queues.sampler.run, storage.run)
    chores = _chores(access.tenants.clean_up, runner.run, jobs.lead, sweeping, insights.measure, *sampling)
    return _Parts(
        engine,
        access,
        (*access.tables, queues.table, task_table, *subscriptions.tables),
        queues.rates,
        outbox,
        traffic,
        outbound,
        tuple(routes),
        chores,
        sessions.deliver,
        subscriptions.deliver,
    )


def described_routes() -> tuple[Route, ...]:
    """The whole route table without a server, for descriptions of it."""
    settings = Settings(platform_key=Secret("x" * 32))
    return build(settings, Role.ALL, Connection(ConnectionSettings(urls=())), now_ms).routes


@asynccontextmanager
async def running_node(settings: Settings, role: Role, *, clock: Clock = now_ms) -> AsyncIterator[Node]:
    """A process of this role, ready to serve. Background work that fails takes the process down: it is started again, clean."""
    worker = f"{socket.gethostname()}-{os.getpid()}"
    connection = Connection(connection_settings(settings, f"postroad-{role}-{os.getpid()}"))
    parts = build(settings, role, connection, clock)

    def leading(what: str) -> Leadership:
        return Leadership(Bucket(connection, LEASES_BUCKET, parts.engine.committers), what, worker)

    await connection.open()
    try:
        async with asyncio.TaskGroup() as background:
            tasks = [background.create_task(table.run()) for table in parts.tables]
            tasks.append(background.create_task(connection.raise_when_closed()))
            tasks.append(background.create_task(parts.access.uses.run()))
            tasks.append(background.create_task(parts.rates.run()))
            async with asyncio.timeout(30):
                for table in parts.tables:
                    await table.wait_loaded()
            if role.includes(Role.CONTROL):
                tasks.append(background.create_task(leading("control").run(parts.chores)))
            if role.includes(Role.DELIVERY):
                tasks.append(background.create_task(leading("delivery").run(parts.wake)))
                tasks.append(background.create_task(parts.deliver()))
            app = App(Router(parts.routes), parts.access.gate, _app_settings(settings), parts.traffic)
            sampler = ProcessSampler(
                parts.outbox,
                parts.traffic,
                clock,
                worker=worker,
                role=role.value,
                tenants=parts.access.directory.tenant_ids,
                open_requests=lambda: app.open_requests,
                seconds=settings.sample_seconds,
            )
            tasks.append(background.create_task(sampler.run()))
            parts.outbox.emit([_started(worker, role, clock)])
            try:
                yield Node(app, parts.access, parts.engine, parts.routes)
            finally:
                for task in tasks:
                    task.cancel()
                sampler.tell()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        await parts.outbox.drain()
                        await parts.access.uses.write()
    finally:
        await parts.outbound.close()
        await connection.close()


def _app_settings(settings: Settings) -> AppSettings:
    return AppSettings(
        body_bytes_max=settings.body_bytes_max,
        requests_max=settings.requests_max,
        cors_origin=settings.cors_origin,
        access_log=settings.access_log,
        trusted_proxies=networks(settings.trusted_proxies),
    )


def _readiness(
    settings: Settings, engine: Engine, access: Access, queues: ReplicatedTable[QueueRecord], insights: InsightsCapability
) -> Callable[[], Coroutine[None, None, dict[str, Check]]]:
    async def checks() -> dict[str, Check]:
        age = max(access.out_of_touch_seconds, queues.staleness_seconds)
        limit = settings.out_of_touch_seconds_max
        reached = await _engine_check(engine.connection)
        return {
            "engine": reached,
            "registry": Check(age <= limit, f"followed {age:.1f} s ago" if age < float("inf") else "not loaded yet"),
            "pipeline": Check(True, await insights.watch.detail() if reached.ok else "unknown"),  # nothing here depends on it
        }

    return checks


async def _engine_check(connection: Connection) -> Check:
    """A real round trip to JetStream: a connection alone proves nothing."""
    if not connection.is_up:
        return Check(False, "not connected")
    try:
        await connection.call("INFO", timeout=2)
    except PostroadError as problem:
        return Check(False, problem.detail)
    return Check(True, "answers")


def _chores(*works: Callable[[], Coroutine[None, None, None]]) -> Callable[[], Coroutine[None, None, None]]:
    """What one process of the installation does; all of it ends together."""

    async def chores() -> None:
        async with asyncio.TaskGroup() as all_of_it:
            for work in works:
                all_of_it.create_task(work())

    return chores


def _session_settings(settings: Settings) -> SessionSettings:
    return SessionSettings(
        ttl_seconds=settings.session_ttl_seconds,
        limits=FanoutLimits(settings.fanout_queue_threshold, settings.fanout_inline_max, settings.fanout_queue),
        complete_seconds=settings.fanout_complete_seconds,
        clean_seconds=settings.session_clean_seconds,
    )


def _stream_options(settings: Settings) -> StreamOptions:
    return StreamOptions(
        replicas=settings.replica_count,
        live=LiveOptions(settings.stream_long_poll_seconds, settings.stream_sse_seconds, HEARTBEAT_SECONDS),
        public_url=settings.public_url,
    )


def _sweeping(
    definitions: QueueLifecycle, streams: StreamsCapability, access: Access
) -> Callable[[], Coroutine[None, None, None]]:
    async def sweep() -> None:
        while True:
            try:
                await access.secrets.relock()
                swept = await definitions.sweep()
                for tenant in access.directory.tenant_ids():
                    await streams.end_expired(tenant)
                if swept:
                    log.info("streams_swept", count=swept)
            except PostroadError as problem:
                log.warning("sweep_failed", code=problem.code)
            await asyncio.sleep(_SWEEP_SECONDS)

    return sweep


def _started(worker: str, role: Role, clock: Clock) -> WorkerStarted:
    return WorkerStarted(
        event_id=new_id(),
        timestamp=rfc3339(clock()),
        tenant=PLATFORM,
        worker=worker,
        role=role.value,
        postroad_version=__version__,
    )
