"""Calls of `client.route_health`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.route_health import Misroutes, RouteHealthEntry, RouteHealthEntryPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages


class RouteHealthCalls:
    @pages
    def list(
        self,
        *,
        status: Literal["healthy", "unhealthy", "unknown"] | None = None,
        service: str | None = None,
        page_size: int = 100,
    ) -> Pages[RouteHealthEntry]:
        """List the health of command routes.

        Routes of the tenant's services, unhealthy ones first. A status is that of two samples in a row.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/route-health",
                query={"status": status, "service": service, "limit": page_size},
                response=RouteHealthEntryPage,
            )
        )

    @operation
    def misroutes(self) -> Call[Misroutes]:
        """List commands without a route.

        Commands of the tenant's services that failed with `route-missing`, counted by target and command.
        """
        return Call(method="GET", path="/v1/route-health/misroutes", response=Misroutes)


class RouteHealth(RouteHealthCalls, SyncNamespace):
    pass


class AsyncRouteHealth(RouteHealthCalls, AsyncNamespace):
    pass
