"""HTTP routes of grants: list, grant, revoke."""

from collections.abc import Sequence

from postroad.api.commands import (
    CommandRouteNotFound,
    Grant,
    GrantDefinition,
    GrantNotFound,
    GrantPage,
    GrantQuery,
)
from postroad.commands.records import grant_of
from postroad.commands.route_registry import RouteRegistry
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope

_TAG = "Commands"
_ONE = "/v1/grants/{service}/{command}/{source}"


class GrantRoutes:
    def __init__(self, routes: RouteRegistry) -> None:
        self._routes = routes

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/grants",
                self.list_grants,
                Scope.READ,
                "List grants of the tenant's routes",
                _TAG,
                query=GrantQuery,
                response=GrantPage,
                sdk="grants.list",
                cli=Command("grants list", ("source", "target", "command", "sensitivity", "expires_at", "created_at")),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_grant,
                Scope.ADMIN,
                "Grant a command to a sender",
                _TAG,
                body=GrantDefinition,
                empty_body=GrantDefinition(),
                response=Grant,
                other_statuses=(201,),
                errors=(CommandRouteNotFound, PreconditionFailed, EngineUnavailable),
                description="The sender is `<service>` of the own tenant, `<tenant>/<service>`, or `<tenant>/*`.",
                matches_rest=True,
                sdk="grants.put",
                cli=Command("grants put"),
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_grant,
                Scope.ADMIN,
                "Revoke a grant",
                _TAG,
                status=204,
                errors=(CommandRouteNotFound, GrantNotFound, EngineUnavailable),
                description="Every gateway refuses the sender's commands within moments.",
                matches_rest=True,
                sdk="grants.delete",
                cli=Command(
                    "grants delete",
                    confirm="Revoke {service}/{command} from {source}?",
                    done="revoked {service}/{command} from {source}",
                ),
            ),
        ]

    async def list_grants(self, request: Request) -> Response:
        query: GrantQuery = request.query
        page = self._routes.grants(
            request.caller, query.limit, query.cursor, service=query.service, command=query.command, source=query.source
        )
        return Response(GrantPage(items=[grant_of(*one) for one in page.items], next_cursor=page.next_cursor))

    async def put_grant(self, request: Request) -> Response:
        parameters = request.parameters
        record, grant, is_new = await self._routes.put_grant(
            request.context, parameters["service"], parameters["command"], parameters["source"], request.body
        )
        return Response(grant_of(record, grant), status=201 if is_new else 200)

    async def delete_grant(self, request: Request) -> Response:
        parameters = request.parameters
        await self._routes.delete_grant(request.context, parameters["service"], parameters["command"], parameters["source"])
        return Response(status=204)
