"""HTTP routes of route health."""

from collections.abc import Iterator, Sequence

from postroad.api.route_health import HealthStatus, Misroutes, RouteHealthEntryPage, RouteHealthQuery
from postroad.commands.records import RouteRecord, route_key
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.names import escape
from postroad.queues.records import QueueRecord
from postroad.route_health.records import RouteHealthRecord, TenantMisroutes, health_of, misroutes_of
from postroad.route_health.rules import rank_of

_TAG = "Route health"
_STATUSES: tuple[HealthStatus, ...] = ("unhealthy", "unknown", "healthy")


class RouteHealthRoutes:
    def __init__(
        self,
        routes: ReplicatedTable[RouteRecord],
        queues: ReplicatedTable[QueueRecord],
        health: ReplicatedTable[RouteHealthRecord],
        misroutes: ReplicatedTable[TenantMisroutes],
    ) -> None:
        self._routes, self._queues, self._health, self._misroutes = routes, queues, health, misroutes

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/route-health",
                self.list_route_health,
                Scope.READ,
                "List the health of command routes",
                _TAG,
                query=RouteHealthQuery,
                response=RouteHealthEntryPage,
                description="Routes of the tenant's services, unhealthy ones first. A status is that of two samples in a row.",
                sdk="route_health.list",
                cli=Command(
                    "routes health",
                    ("service", "command", "queue", "status", "problems", "since", "ready", "oldest_age_ms"),
                ),
                allows_admin=True,
            ),
            Route(
                "GET",
                "/v1/route-health/misroutes",
                self.list_misroutes,
                Scope.READ,
                "List commands without a route",
                _TAG,
                response=Misroutes,
                description="Commands of the tenant's services that failed with `route-missing`, counted by target and command.",
                sdk="route_health.misroutes",
                cli=Command("routes misroutes"),
                allows_admin=True,
            ),
        ]

    async def list_route_health(self, request: Request) -> Response:
        query: RouteHealthQuery = request.query
        caller = request.caller
        rank, key = _position(caller.tenant, query.cursor)
        statuses = [one for one in _STATUSES if query.status in (None, one) and rank_of(one) >= rank]
        items: list[RouteRecord] = []
        for status in statuses:
            after = key if rank_of(status) == rank else ""
            for route in self._with_status(caller, status, query.service, after):
                if len(items) == query.limit:
                    return self._page(items, items[-1])
                items.append(route)
        return self._page(items, None)

    def _with_status(self, caller: Caller, status: HealthStatus, service: str | None, after: str) -> Iterator[RouteRecord]:
        prefix = f"{caller.tenant}." if service is None else f"{caller.tenant}.{escape(service)}."
        for key in self._routes.keys_under(prefix, after):
            route = self._routes.get(key)
            if route is not None and self._status(key) == status and caller.may_use("service", route.service):
                yield route

    def _status(self, key: str) -> HealthStatus:
        record = self._health.get(key)
        return "unknown" if record is None else record.status

    def _page(self, items: Sequence[RouteRecord], last: RouteRecord | None) -> Response:
        found = [health_of(one, self._health.get(one.key), self._drain_seconds(one)) for one in items]
        cursor = None if last is None else f"{rank_of(self._status(last.key))}/{last.service}/{last.command}"
        return Response(RouteHealthEntryPage(items=found, next_cursor=cursor))

    def _drain_seconds(self, route: RouteRecord) -> int | None:
        queue = self._queues.get(f"{route.tenant}.{escape(route.queue)}")
        return None if queue is None else queue.settings.expected_drain_seconds

    async def list_misroutes(self, request: Request) -> Response:
        caller = request.caller
        found = misroutes_of(self._misroutes.get(caller.tenant))
        if caller.allowed is None:
            return Response(found)
        seen = [one for one in found.misroutes if caller.may_use("service", one.last_source.partition("/")[2])]
        return Response(Misroutes(misroutes=seen))


def _position(tenant: str, cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, ""
    rank, service, command = cursor.split("/", 2)
    return int(rank), route_key(tenant, service, command)
