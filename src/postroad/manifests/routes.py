"""HTTP routes of manifests."""

from collections.abc import Sequence

from postroad.api.manifests import (
    Manifest,
    ManifestChanged,
    ManifestContent,
    ManifestNotFound,
    ManifestQuery,
    ManifestSummaryPage,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, InvalidParameter
from postroad.kernel.identity import Scope
from postroad.manifests.records import summary_of
from postroad.manifests.service import Manifests

_TAG = "Manifests"
_ONE = "/v1/manifests/{manifest}"


class ManifestRoutes:
    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests

    def table(self) -> Sequence[Route]:
        errors = (ManifestNotFound, InvalidParameter, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/manifests",
                self.list_manifests,
                Scope.ADMIN,
                "List manifests",
                _TAG,
                query=ManifestQuery,
                response=ManifestSummaryPage,
                sdk="manifests.list",
                cli=Command("manifests list", ("name", "resources", "created_at", "updated_at")),
            ),
            Route(
                "GET",
                _ONE,
                self.get_manifest,
                Scope.ADMIN,
                "Show a manifest",
                _TAG,
                response=Manifest,
                errors=errors,
                description="Which resources `postroad apply` has created under this name.",
                sdk="manifests.get",
                cli=Command("manifests get"),
            ),
            Route(
                "PUT",
                _ONE,
                self.put_manifest,
                Scope.ADMIN,
                "Record the resources of a manifest",
                _TAG,
                body=ManifestContent,
                response=Manifest,
                errors=(ManifestChanged, InvalidParameter, EngineUnavailable),
                description="Used by `postroad apply`. It creates and deletes no resource.",
                sdk="manifests.put",
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_manifest,
                Scope.ADMIN,
                "Forget a manifest",
                _TAG,
                status=204,
                errors=errors,
                description="Its resources stay, and no later apply deletes them.",
                sdk="manifests.delete",
                cli=Command("manifests delete", confirm="Forget what {manifest} has created?", done="deleted {manifest}"),
            ),
        ]

    async def list_manifests(self, request: Request) -> Response:
        query: ManifestQuery = request.query
        page = self._manifests.page(request.caller, query.limit, query.cursor)
        return Response(ManifestSummaryPage(items=[summary_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def get_manifest(self, request: Request) -> Response:
        return Response(await self._manifests.find(request.caller, request.parameters["manifest"]))

    async def put_manifest(self, request: Request) -> Response:
        return Response(await self._manifests.put(request.context, request.parameters["manifest"], request.body))

    async def delete_manifest(self, request: Request) -> Response:
        await self._manifests.delete(request.context, request.parameters["manifest"])
        return Response(status=204)
