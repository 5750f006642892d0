"""Wiring of the audit log and the tenant settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.api.health import Check
from postroad.governance.audit import audit_stream
from postroad.governance.routes import GovernanceRoutes
from postroad.governance.settings import GovernanceSettings
from postroad.governance.storage_monitor import StorageMonitor
from postroad.governance.tenant_settings import SETTINGS_BUCKET
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import Assembly, BackgroundJob, Capability, Platform
from postroad.settings import Settings


class GovernanceCapability(Capability):
    name = "governance"
    buckets = (SETTINGS_BUCKET,)

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

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (audit_stream(settings.replica_count, settings.section(GovernanceSettings).audit_keep_days),)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.platform.tenant_settings.table,)

    def routes(self) -> Sequence[Route]:
        platform = self.platform
        return GovernanceRoutes(platform.tenant_settings, platform.audit, platform.position_cipher("audit entry")).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.storage.run),)

    def assembled(self, assembly: Assembly) -> None:
        prefixes = (prefix for kind in assembly.resources for prefix in kind.stream_prefixes)
        self.platform.committers.storage.prefixes = frozenset(prefixes)

    async def readiness(self) -> Mapping[str, Check]:
        return {"storage": self.storage.check()}


CAPABILITY = GovernanceCapability
