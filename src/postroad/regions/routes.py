"""HTTP routes of regions."""

from collections.abc import Sequence

from postroad.api.placement import RegionOverview, RegionsQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Scope
from postroad.regions.overview import RegionsOverview


class RegionRoutes:
    def __init__(self, overview: RegionsOverview) -> None:
        self._overview = overview

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/regions",
                self.get_regions,
                Scope.READ,
                "Show the regions, their servers, and where your queues, topics and buckets are",
                "Regions",
                query=RegionsQuery,
                response=RegionOverview,
                errors=(EngineUnavailable,),
                description="Up to some seconds old. Servers without the tag of a region are in a region without a name.",
                sdk="regions.get",
                allows_admin=True,
            )
        ]

    async def get_regions(self, request: Request) -> Response:
        query: RegionsQuery = request.query
        return Response(await self._overview.of(request.caller, with_empty=query.empty))
