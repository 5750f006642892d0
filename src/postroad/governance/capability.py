"""Wiring of the audit log and the tenant settings."""

from collections.abc import Sequence
from typing import Any

from postroad.governance.audit import audit_stream
from postroad.governance.routes import GovernanceRoutes
from postroad.governance.settings import GovernanceSettings
from postroad.governance.tenant_settings import SETTINGS_BUCKET
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import Capability
from postroad.settings import Settings


class GovernanceCapability(Capability):
    name = "governance"
    buckets = (SETTINGS_BUCKET,)

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (audit_stream(settings.replica_count, settings.section(GovernanceSettings).audit_keep_days),)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.platform.tenant_settings.table,)

    def routes(self) -> Sequence[Route]:
        return GovernanceRoutes(self.platform.tenant_settings, self.platform.audit).table()


CAPABILITY = GovernanceCapability
