"""Wiring of the audit log and the tenant settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.api.governance import AuditFinding
from postroad.api.health import Check
from postroad.governance.audit import audit_stream
from postroad.governance.audit_verifier import AUDIT_BUCKET, AuditVerifier
from postroad.governance.events import EVENTS, AuditDamaged
from postroad.governance.rate_limiter import RateLimiter
from postroad.governance.routes import GovernanceRoutes
from postroad.governance.settings import GovernanceSettings
from postroad.governance.storage_monitor import StorageMonitor
from postroad.governance.tenant_settings import SETTINGS_BUCKET
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.event import PLATFORM, event_name
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role, every
from postroad.settings import Settings


class GovernanceCapability(Capability):
    name = "governance"
    buckets = (SETTINGS_BUCKET, AUDIT_BUCKET)
    events = EVENTS

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        settings = platform.settings
        self.storage = StorageMonitor(
            platform.connection,
            platform.committers,
            platform.tenant_settings,
            store_bytes_max=settings.store_bytes_max,
            reserve_bytes=settings.store_reserve_bytes,
            directory=settings.store_dir,
            tenant_percent=settings.section(GovernanceSettings).storage_percent_per_tenant_max,
            replicas=settings.replica_count,
        )
        self.verifier = AuditVerifier(
            platform.connection,
            platform.audit,
            platform.bucket(AUDIT_BUCKET),
            platform.signer("audit checkpoint"),
            platform.clock,
            settings.section(GovernanceSettings).audit_keep_days,
            self._report,
        )
        chosen = settings.section(GovernanceSettings)
        self.rate_limiter = RateLimiter(
            platform.tenant_settings,
            shared_rate=chosen.requests_per_second_per_tenant_max,
            key_rate=chosen.requests_per_second_per_key_max,
        )

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (audit_stream(settings.replica_count, settings.section(GovernanceSettings).audit_keep_days),)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.platform.tenant_settings.table,)

    def routes(self) -> Sequence[Route]:
        platform = self.platform
        positions = platform.position_cipher("audit entry")
        return GovernanceRoutes(platform.tenant_settings, platform.audit, self.verifier, positions).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        seconds = self.platform.settings.section(GovernanceSettings).audit_checkpoint_seconds
        checks = every(seconds, self.verifier.extend, "check the audit log")
        return (
            BackgroundJob(self.storage.run),
            BackgroundJob(self.platform.audit.refused_attempts.run),
            BackgroundJob(self.platform.audit.issued_tokens.run),
            BackgroundJob(checks, Role.CONTROL, leader_only=True),
        )

    def assembled(self, assembly: Assembly) -> None:
        prefixes = (prefix for kind in assembly.resources for prefix in kind.stream_prefixes)
        self.platform.committers.storage.prefixes = frozenset(prefixes)
        types = [event_name(one) for one in assembly.events if one.stream == "COMMANDS" and not one.is_attached]
        self.platform.tenant_settings.telemetry_types = types

    def _report(self, finding: AuditFinding) -> None:
        self.platform.outbox.record(None, AuditDamaged(tenant=PLATFORM, kind=finding.kind, detail=finding.detail))

    async def flush(self) -> None:
        await self.platform.audit.refused_attempts.flush()
        await self.platform.audit.issued_tokens.flush()

    async def readiness(self) -> Mapping[str, Check]:
        return {"storage": self.storage.check()}


CAPABILITY = GovernanceCapability
