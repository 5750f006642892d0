"""Wiring of manifests."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.api.manifests import MANIFEST_PATTERN, ManifestChanged, ManifestNotFound
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.manifests.records import ManifestRecord
from postroad.manifests.routes import ManifestRoutes
from postroad.manifests.service import MANIFESTS_BUCKET, Manifests
from postroad.platform import Capability, Platform


class ManifestsCapability(Capability):
    name = "manifests"
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "manifest": {"pattern": MANIFEST_PATTERN, "description": "Name of the manifest."}
    }
    errors = (ManifestNotFound, ManifestChanged)
    buckets = (MANIFESTS_BUCKET,)
    cli_groups: ClassVar[Mapping[str, str]] = {"manifests": "Which resources `postroad apply` has created."}

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self.table = platform.table(MANIFESTS_BUCKET, ManifestRecord)
        self._manifests = Manifests(self.table, platform.audit, platform.clock)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        return ManifestRoutes(self._manifests).table()

    async def delete_tenant(self, tenant: str) -> None:
        await self._manifests.delete_all(tenant)


CAPABILITY = ManifestsCapability
