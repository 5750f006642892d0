"""Wiring of commands."""

import contextlib
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.capability import AccessCapability
from postroad.api.command_limits import (
    BAN_PATTERN,
    BanNotFound,
    CommandMismatch,
    FairnessViolation,
    QuotaNotFound,
    RateLimitExceeded,
)
from postroad.api.commands import (
    SOURCE_PATTERN,
    AclDenied,
    CommandInvalid,
    CommandRouteNotFound,
    DeliveryFailure,
    GrantNotFound,
    RouteMissing,
    ServiceNotFound,
    SourceRefused,
)
from postroad.commands.archive import CommandArchive
from postroad.commands.ban_routes import BanRoutes
from postroad.commands.bans import Bans
from postroad.commands.command_routes import CommandRoutes
from postroad.commands.dispatcher import Dispatcher
from postroad.commands.emit_tokens import EmitTokens
from postroad.commands.events import EVENTS
from postroad.commands.grant_routes import GrantRoutes
from postroad.commands.limit_records import BANS_BUCKET, QUOTAS_BUCKET, BanRecord, QuotaRecord, limit_of
from postroad.commands.limit_sampler import LimitSampler
from postroad.commands.limiter import Limiter
from postroad.commands.live_routes import LiveRoutes
from postroad.commands.outcome_recorder import OutcomeRecorder
from postroad.commands.quota_routes import QuotaRoutes
from postroad.commands.quotas import Quotas
from postroad.commands.records import POLLS_BUCKET, ROUTES_BUCKET, SERVICES_BUCKET, PollRecord, RouteRecord, ServiceRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import RegistryView
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.route_routes import RouteRoutes
from postroad.commands.route_test import RouteTester
from postroad.commands.rules import JITTER, Ages, CachePolicy, ages_of, source_of
from postroad.commands.search import CommandSearch
from postroad.commands.search_routes import SearchRoutes
from postroad.commands.sender_notices import SenderNotices
from postroad.commands.service_registry import ServiceRegistry
from postroad.commands.service_routes import ServiceRoutes
from postroad.commands.settings import CommandsSettings
from postroad.commands.shield import ShieldPolicy
from postroad.commands.snapshot_store import SNAPSHOTS_BUCKET, SnapshotStore
from postroad.commands.snapshots import SeenVersion, SnapshotLoader, SnapshotSeal, SnapshotWriter, registry_tables
from postroad.commands.token_source import RATES_BUCKET, TokenSource
from postroad.commands.verdict_rules import VerdictPolicy
from postroad.commands.verdicts import Verdicts, verdict_stream
from postroad.commands.warm_bans import WARM_BANS_BUCKET, WarmBanLog
from postroad.commands.warm_state import WarmState
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.object_store import ObjectStore, object_store_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import COMMAND, SERVICE, service_name, unescape
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.settings import Settings
from postroad.telemetry.live_sections import LiveSection

_SECRETS_SECONDS = 60.0
_LIMITS_SECONDS = 10.0
_TOKENS_SECONDS = 5.0


class CommandsCapability(Capability):
    name = "commands"
    resources = (
        ResourceKind("service", {"pattern": f"^{SERVICE.pattern}$", "description": "Name of the service."}, check=service_name),
    )
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "command": {"pattern": f"^{COMMAND.pattern}$", "description": "Name of the command."},
        "source": {"pattern": SOURCE_PATTERN, "description": "`<service>`, `<tenant>/<service>` or `<tenant>/*`."},
        "ban": {"pattern": BAN_PATTERN, "maxLength": 500, "description": "Id of the ban."},
    }
    errors = (
        CommandInvalid,
        AclDenied,
        SourceRefused,
        RouteMissing,
        CommandRouteNotFound,
        ServiceNotFound,
        GrantNotFound,
        DeliveryFailure,
        RateLimitExceeded,
        FairnessViolation,
        CommandMismatch,
        BanNotFound,
        QuotaNotFound,
    )
    events = EVENTS
    buckets = (SERVICES_BUCKET, ROUTES_BUCKET, POLLS_BUCKET, BANS_BUCKET, QUOTAS_BUCKET, RATES_BUCKET, WARM_BANS_BUCKET)
    cli_groups: ClassVar[Mapping[str, str]] = {
        "services": "Services that send and receive commands.",
        "routes": "Routes of commands to queues, and the change log of the registry.",
        "grants": "Which service may send which command.",
        "bans": "Senders that are restricted for a while.",
        "quotas": "Limits of single senders on routes.",
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen, queues, access = (
            platform.settings.section(CommandsSettings),
            platform.use(QueuesCapability),
            platform.use(AccessCapability),
        )
        self.registry_tables = tables = registry_tables(platform)
        self.service_table, self.route_table = tables.services, tables.routes
        self._poll_table = platform.table(POLLS_BUCKET, PollRecord)
        self.services = ServiceRegistry(
            self.service_table,
            self.route_table,
            self._poll_table,
            platform.identities,
            platform.tenant_settings,
            SecretCipher(platform.platform_keys),
            platform.audit,
            platform.clock,
            chosen,
        )
        quota_table = platform.table(QUOTAS_BUCKET, QuotaRecord)
        self.registry = RouteRegistry(
            self.route_table,
            quota_table,
            self.services,
            queues.lifecycle,
            platform.tenant_settings,
            platform.audit,
            platform.clock,
            is_encrypted=_is_encrypted(platform),
            requires_encryption=chosen.commands_require_encryption,
        )
        self.view = RegistryView(tables.packed.known, self.service_table.get, self.services.decrypt)
        self.cache = RegistryCache(
            self.route_table,
            self.service_table,
            self.view,
            cache_policy(chosen).with_jitter(_jitter(), _jitter(), _jitter()),
            platform.outbox,
            worker=platform.worker,
            slow_seconds=chosen.commands_slow_seconds,
        )
        self._has_snapshots = chosen.snapshots
        snapshots = SnapshotStore(ObjectStore(platform.connection, SNAPSHOTS_BUCKET, platform.committers), chosen.snapshot_path)
        seal = SnapshotSeal(platform.signer("registry snapshot"))
        self.snapshot_loader = SnapshotLoader(
            snapshots,
            tables,
            platform.connection,
            seal,
            SeenVersion(platform.settings.data_dir),
            platform.clock,
            chosen.snapshot_bytes_max,
        )
        self.snapshot_writer = SnapshotWriter(
            snapshots,
            tables,
            platform.connection,
            seal,
            cache_policy(chosen),
            lambda event: platform.outbox.record(None, event),
            platform.clock,
            seconds=chosen.snapshot_seconds,
            bytes_max=chosen.snapshot_bytes_max,
        )
        self._snapshot_seconds = float(chosen.snapshot_seconds)
        self.bans = Bans(platform.table(BANS_BUCKET, BanRecord), platform.audit, platform.outbox, platform.clock)
        self.auditor = RevocationAuditor(lambda event: platform.outbox.record(None, event), platform.clock)
        self.route_table.on_change(self._route_changed)
        self.service_table.on_change(self._service_changed)
        self.tokens = EmitTokens(self.service_table, platform.identities, platform.signer("emit token"), platform.clock)
        access.authenticator.emit_tokens = self.tokens
        self.quotas = Quotas(quota_table, self.registry, platform.audit, platform.clock)
        self.tokens_of_limits = TokenSource(
            platform.bucket(RATES_BUCKET),
            platform.clock,
            worker=hashlib.blake2b(platform.worker.encode(), digest_size=6).hexdigest(),
            deadline_seconds=chosen.commands_slow_seconds,
        )
        self.warm = WarmState()
        self.limiter = Limiter(
            self.tokens_of_limits,
            self.warm,
            WarmBanLog(
                platform.bucket(WARM_BANS_BUCKET),
                self.bans,
                platform.clock,
                count=chosen.commands_ban_count,
                minutes=chosen.commands_ban_minutes,
                ban_seconds=chosen.commands_ban_seconds,
            ),
            self.quotas.table.get,
            lambda event: platform.outbox.record(None, event),
            platform.clock,
            prefetch_workers=chosen.commands_prefetch_workers,
        )
        self.dispatcher = Dispatcher(
            self.cache,
            queues.publisher,
            OutcomeRecorder(
                platform.outbox,
                SenderNotices(self.services.polled_at_ms),
                CommandArchive(self.view, chosen.commands_bytes_max),
                needs_telemetry=chosen.commands_without_telemetry == "refuse",
            ),
            self.limiter,
            self.warm,
            self.bans.view,
            self.auditor,
            platform.tenant_settings,
            platform.clock,
            ShieldPolicy(chosen.commands_bytes_max, chosen.commands_window_seconds * 1000),
        )
        self.dispatcher.outcomes.flows = platform.flows
        self._tester = RouteTester(self.registry, queues.lifecycle, self.bans.view, self.tokens_of_limits, platform.clock)

        self.verdicts = Verdicts(
            platform.connection,
            self.service_table,
            self.route_table,
            self.bans,
            platform.outbox,
            platform.audit,
            platform.clock,
            VerdictPolicy(
                chosen.auditor,
                chosen.auditor_dominant_share,
                chosen.auditor_across_share,
                chosen.auditor_dispatches_min,
                chosen.auditor_ban_seconds_max,
            ),
        )

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (verdict_stream(settings.replica_count), object_store_stream(SNAPSHOTS_BUCKET, settings.replica_count))

    def _route_changed(self, key: str, record: RouteRecord | None) -> None:
        with contextlib.suppress(ValueError):  # a key of another client of the NATS server, which no command names
            tenant, service, command = (unescape(part) for part in key.split("."))
            self.view.forget_route(tenant, service, command)
            self.limiter.route_changed(key, None if record is None else limit_of(record.rate_limit))
            deleted_at_ms = self.route_table.deleted_at_ms
            if record is None and deleted_at_ms is not None:
                self.auditor.check_deleted(key, source_of(tenant, service), command, deleted_at_ms)
        if record is not None:
            self.auditor.check(record)

    def _service_changed(self, key: str, _record: ServiceRecord | None) -> None:
        with contextlib.suppress(ValueError):
            tenant, service = (unescape(part) for part in key.split("."))
            self.view.forget_sender(tenant, service)

    async def preload(self) -> None:
        if self._has_snapshots:
            await self.snapshot_loader.load()

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.service_table, self.route_table, self._poll_table, self.bans.table, self.quotas.table)

    def routes(self) -> Sequence[Route]:
        platform = self.platform
        return [
            *CommandRoutes(self.dispatcher).table(),
            *SearchRoutes(CommandSearch(platform.connection), platform.position_cipher("command search")).table(),
            *ServiceRoutes(self.services, self.tokens, platform.audit).table(),
            *RouteRoutes(
                self.registry,
                self._tester,
                self.tokens_of_limits,
                platform.audit,
                platform.position_cipher("registry change"),
            ).table(),
            *GrantRoutes(self.registry).table(),
            *BanRoutes(self.bans).table(),
            *QuotaRoutes(self.quotas).table(),
        ]

    def live_sections(self) -> Sequence[LiveSection]:
        queues = self.platform.use(QueuesCapability)
        return (LiveRoutes(self.route_table, queues.lifecycle, queues.stats_reader, self.platform.flows),)

    def background_jobs(self) -> Sequence[BackgroundJob]:
        writes = every(self._snapshot_seconds, self.snapshot_writer.run_once, "snapshots of the registry")
        return (
            *((BackgroundJob(writes, Role.CONTROL, leader_only=True),) if self._has_snapshots else ()),
            BackgroundJob(self.cache.run, Role.GATEWAY),
            BackgroundJob(every(_TOKENS_SECONDS, self.limiter.return_unused, "return of unused tokens"), Role.GATEWAY),
            BackgroundJob(self.verdicts.consume, Role.CONTROL, leader_only=True),
            BackgroundJob(
                every(
                    _LIMITS_SECONDS,
                    LimitSampler(self.route_table, self.platform.outbox, self.platform.clock).run_once,
                    "samples of limits",
                ),
                Role.CONTROL,
                leader_only=True,
            ),
            BackgroundJob(
                every(_SECRETS_SECONDS, self.services.maintain_secrets, "secrets of services"), Role.CONTROL, leader_only=True
            ),
        )

    async def flush(self) -> None:
        await self.limiter.drain()

    async def delete_tenant(self, tenant: str) -> None:
        await self.bans.delete_all(tenant)
        await self.quotas.delete_all(tenant)
        await self.registry.delete_all(tenant)
        await self.services.delete_all(tenant)


def cache_policy(chosen: CommandsSettings) -> CachePolicy:
    """Ages of the caches by the settings. A stale age below the fresh one counts as equal."""

    def ages(fresh: float, stale: float) -> Ages:
        return Ages(fresh, max(fresh, stale), max(fresh, stale))

    return CachePolicy(
        ages(chosen.commands_routes_fresh_seconds, chosen.commands_routes_stale_seconds),
        ages(chosen.commands_grants_fresh_seconds, chosen.commands_grants_stale_seconds),
        ages(chosen.commands_secrets_fresh_seconds, chosen.commands_secrets_stale_seconds),
        {
            "critical": ages_of(chosen.commands_critical_ages),
            "moderate": ages_of(chosen.commands_moderate_ages),
            "low": ages_of(chosen.commands_low_ages),
        },
    )


def _jitter() -> float:
    return random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  # not a secret


def _is_encrypted(platform: Platform) -> bool | None:
    """Known for the embedded server only."""
    settings = platform.settings
    if settings.encryption_key is not None:
        return True
    return None if settings.nats_url else False


CAPABILITY = CommandsCapability
