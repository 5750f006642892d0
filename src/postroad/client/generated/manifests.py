"""Calls of `client.manifests`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from postroad.api.manifests import Manifest, ManifestSummary, ManifestSummaryPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class ManifestsCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[ManifestSummary]:
        """List manifests."""
        return Pages(call=Call(method="GET", path="/v1/manifests", query={"limit": page_size}, response=ManifestSummaryPage))

    @operation
    def get(self, manifest: Manifest | str) -> Call[Manifest]:
        """Show a manifest.

        Which resources `postroad apply` has created under this name. Raises ManifestNotFound, InvalidParameter.
        """
        return Call(method="GET", path=f"/v1/manifests/{segment(manifest)}", response=Manifest)

    @operation
    def put(self, manifest: Manifest | str, resources: Sequence[str], revision: int) -> Call[Manifest]:
        """Record the resources of a manifest.

        Used by `postroad apply`. It creates and deletes no resource. Raises ManifestChanged, InvalidParameter.
        """
        body = body_of({"resources": resources, "revision": revision})
        return Call(method="PUT", path=f"/v1/manifests/{segment(manifest)}", body=body, response=Manifest)

    @operation
    def delete(self, manifest: str) -> Call[None]:
        """Forget a manifest. Its resources stay, and no later apply deletes them. Raises ManifestNotFound, InvalidParameter."""
        return Call(method="DELETE", path=f"/v1/manifests/{segment(manifest)}")


class Manifests(ManifestsCalls, SyncNamespace):
    pass


class AsyncManifests(ManifestsCalls, AsyncNamespace):
    pass
