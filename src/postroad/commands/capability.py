"""Wiring of commands."""

import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.capability import AccessCapability
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
from postroad.commands.command_routes import CommandRoutes
from postroad.commands.dispatcher import Dispatcher
from postroad.commands.emit_tokens import EmitTokens
from postroad.commands.events import EVENTS
from postroad.commands.grant_routes import GrantRoutes
from postroad.commands.records import POLLS_BUCKET, ROUTES_BUCKET, SERVICES_BUCKET, PollRecord, RouteRecord, ServiceRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import RegistryView
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.route_routes import RouteRoutes
from postroad.commands.route_test import RouteTester
from postroad.commands.rules import JITTER, Ages, CachePolicy, ages_of
from postroad.commands.sender_notices import SenderNotices
from postroad.commands.service_registry import ServiceRegistry
from postroad.commands.service_routes import ServiceRoutes
from postroad.commands.settings import CommandsSettings
from postroad.commands.shield import ShieldPolicy
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import COMMAND, SERVICE, service_name, unescape
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability

_SECRETS_SECONDS = 60.0


class CommandsCapability(Capability):
    name = "commands"
    resources = (
        ResourceKind("service", {"pattern": f"^{SERVICE.pattern}$", "description": "Name of the service."}, check=service_name),
    )
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "command": {"pattern": f"^{COMMAND.pattern}$", "description": "Name of the command."},
        "source": {"pattern": SOURCE_PATTERN, "description": "`<service>`, `<tenant>/<service>` or `<tenant>/*`."},
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
    )
    events = EVENTS
    buckets = (SERVICES_BUCKET, ROUTES_BUCKET, POLLS_BUCKET)
    cli_groups: ClassVar[Mapping[str, str]] = {
        "services": "Services that send and receive commands.",
        "routes": "Routes of commands to queues, and the change log of the registry.",
        "grants": "Which service may send which command.",
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen, queues, access = (
            platform.settings.section(CommandsSettings),
            platform.use(QueuesCapability),
            platform.use(AccessCapability),
        )
        self.service_table = platform.table(SERVICES_BUCKET, ServiceRecord)
        self.route_table = platform.table(ROUTES_BUCKET, RouteRecord)
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
        self.registry = RouteRegistry(
            self.route_table,
            self.services,
            queues.lifecycle,
            platform.tenant_settings,
            platform.audit,
            platform.clock,
            is_encrypted=_is_encrypted(platform),
            requires_encryption=chosen.commands_require_encryption,
        )
        self.view = RegistryView(self.route_table.get, self.service_table.get, self.services.decrypt)
        self.cache = RegistryCache(
            self.route_table,
            self.service_table,
            self.view,
            cache_policy(chosen).with_jitter(_jitter(), _jitter(), _jitter()),
            platform.outbox,
            worker=platform.worker,
            slow_seconds=chosen.commands_slow_seconds,
        )
        self.auditor = RevocationAuditor(lambda event: platform.outbox.record(None, event), platform.clock)
        self.route_table.on_change(self._route_changed)
        self.service_table.on_change(self._service_changed)
        self.tokens = EmitTokens(self.service_table, platform.identities, platform.signer("emit token"), platform.clock)
        access.authenticator.emit_tokens = self.tokens.authenticate
        self.dispatcher = Dispatcher(
            self.cache,
            queues.publisher,
            platform.outbox,
            platform.tenant_settings,
            SenderNotices(self.services.polled_at_ms),
            self.auditor,
            platform.clock,
            ShieldPolicy(chosen.commands_bytes_max, chosen.commands_window_seconds * 1000),
            needs_telemetry=chosen.commands_without_telemetry == "refuse",
        )
        self._tester = RouteTester(self.registry, queues.lifecycle, platform.clock)

    def _route_changed(self, key: str, record: RouteRecord | None) -> None:
        with contextlib.suppress(ValueError):  # a key of another client of the NATS server, which no command names
            tenant, service, command = (unescape(part) for part in key.split("."))
            self.view.forget_route(tenant, service, command)
        if record is not None:
            self.auditor.check(record)

    def _service_changed(self, key: str, _record: ServiceRecord | None) -> None:
        with contextlib.suppress(ValueError):
            tenant, service = (unescape(part) for part in key.split("."))
            self.view.forget_sender(tenant, service)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.service_table, self.route_table, self._poll_table)

    def routes(self) -> Sequence[Route]:
        platform = self.platform
        return [
            *CommandRoutes(self.dispatcher).table(),
            *ServiceRoutes(self.services, self.tokens, platform.audit).table(),
            *RouteRoutes(self.registry, self._tester, platform.audit, platform.position_cipher("registry change")).table(),
            *GrantRoutes(self.registry).table(),
        ]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.cache.run, Role.GATEWAY),
            BackgroundJob(
                every(_SECRETS_SECONDS, self.services.maintain_secrets, "secrets of services"), Role.CONTROL, leader_only=True
            ),
        )

    async def delete_tenant(self, tenant: str) -> None:
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
