"""Manifests: which resources `postroad apply` has created under a name, so that it deletes no others."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import ConflictError, NotFound

MANIFEST_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"
RESOURCES_MAX = 20_000
MANIFESTS_MAX = 100

ManagedResource = Annotated[str, Meta(min_length=1, max_length=450, description="`<kind>/<name>`, such as `queues/orders`.")]


class ManifestNotFound(NotFound, code="manifest-not-found", status=404, title="Manifest not found"):
    """The tenant has no manifest of this name: nothing was applied under it."""


class ManifestChanged(ConflictError, code="manifest-changed", status=409, title="Manifest changed"):
    """Another process has applied the same manifest since it was read. Plan again."""


class ManifestContent(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    resources: Annotated[
        tuple[ManagedResource, ...], Meta(max_length=RESOURCES_MAX, description="All resources that the manifest has created.")
    ]
    revision: Annotated[int, Meta(ge=0, description="Revision that was read; 0 for a new manifest.")]


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A manifest. `revision` is new with each change; a change must name the one that it replaces."""

    name: str
    resources: tuple[str, ...]
    revision: int
    created_at: Timestamp
    updated_at: Timestamp


class ManifestSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    resources: Annotated[int, Meta(description="Number of its resources.")]
    created_at: Timestamp
    updated_at: Timestamp


class ManifestQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


ManifestSummaryPage = page_of(ManifestSummary, "manifests")
