"""Stored format of manifests, under `<tenant>.<name>`, and its representation in the API. Pure."""

import msgspec

from postroad.api.manifests import Manifest, ManifestSummary
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import escape


class ManifestRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    v: int = 1
    tenant: str
    name: str
    resources: tuple[str, ...]
    created_at_ms: int
    updated_at_ms: int

    @property
    def key(self) -> str:
        return record_key(self.tenant, self.name)


def record_key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"


def manifest_of(record: ManifestRecord, revision: int) -> Manifest:
    return Manifest(
        name=record.name,
        resources=record.resources,
        revision=revision,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def summary_of(record: ManifestRecord) -> ManifestSummary:
    return ManifestSummary(
        name=record.name,
        resources=len(record.resources),
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )
