"""Calls of `client.regions`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.placement import RegionOverview
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class RegionsCalls:
    @operation
    def get(self, *, empty: bool | None = None) -> Call[RegionOverview]:
        """Show the regions, their servers, and where your queues, topics and buckets are.

        Up to some seconds old. Servers without the tag of a region are in a region without a name.
        """
        return Call(method="GET", path="/v1/regions", query={"empty": empty}, response=RegionOverview)


class Regions(RegionsCalls, SyncNamespace):
    pass


class AsyncRegions(RegionsCalls, AsyncNamespace):
    pass
