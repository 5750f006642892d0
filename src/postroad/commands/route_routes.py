"""HTTP routes of command routes: registration, dry run, and the change log of the registry."""

from collections.abc import Sequence
from datetime import datetime

from postroad.api.commands import (
    CommandRoute,
    CommandRouteNotFound,
    CommandRoutePage,
    CommandRouteQuery,
    PutRouteQuery,
    RegistryChange,
    RegistryChangePage,
    RegistryChangesQuery,
    RouteDefinition,
    RouteTest,
    RouteTestResult,
    ServiceNotFound,
)
from postroad.api.governance import AuditEntry
from postroad.api.queues import QueueNotFound
from postroad.commands.limit_records import limit_of, usage_of
from postroad.commands.records import route_of
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.route_test import RouteTester
from postroad.commands.token_source import TokenSource
from postroad.crypto.position_encryption import PositionCipher, PositionInvalid
from postroad.governance.audit import Audit, AuditFilter
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import LATEST_MS, rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Scope

_TAG = "Commands"
_ONE = "/v1/routes/{service}/{command}"


class RouteRoutes:
    def __init__(
        self, routes: RouteRegistry, tester: RouteTester, tokens: TokenSource, audit: Audit, positions: PositionCipher
    ) -> None:
        self._routes, self._tester, self._tokens = routes, tester, tokens
        self._audit, self._position_cipher = audit, positions

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/routes",
                self.list_routes,
                Scope.READ,
                "List command routes",
                _TAG,
                query=CommandRouteQuery,
                response=CommandRoutePage,
                sdk="routes.list",
                cli=Command(
                    "routes list",
                    ("service", "command", "queue", "sensitivity", "acl_check", "signature", "grants", "expires_at"),
                ),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_route,
                Scope.ADMIN,
                "Register a command route",
                _TAG,
                query=PutRouteQuery,
                body=RouteDefinition,
                response=CommandRoute,
                other_statuses=(201,),
                errors=(ServiceNotFound, QueueNotFound, PreconditionFailed, EngineUnavailable),
                description="Commands of this name for this service go to the queue, from senders that have a grant. Grants are "
                "kept when a route is replaced.",
                sdk="routes.put",
                cli=Command("routes put"),
            ),
            Route(
                "GET",
                _ONE,
                self.get_route,
                Scope.READ,
                "Show a command route",
                _TAG,
                response=CommandRoute,
                errors=(CommandRouteNotFound, EngineUnavailable),
                sdk="routes.get",
                cli=Command("routes show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_route,
                Scope.ADMIN,
                "Delete a command route with its grants and quotas",
                _TAG,
                status=204,
                errors=(CommandRouteNotFound, Conflict, EngineUnavailable),
                sdk="routes.delete",
                cli=Command(
                    "routes delete",
                    confirm="Delete the route {service}/{command} with its grants and quotas?",
                    done="deleted the route {service}/{command}",
                ),
            ),
            Route(
                "POST",
                f"{_ONE}/test",
                self.test_route,
                Scope.READ,
                "Test a command route for a sender",
                _TAG,
                body=RouteTest,
                response=RouteTestResult,
                errors=(CommandRouteNotFound, EngineUnavailable),
                description="A dry run: the outcome of each check. Nothing is delivered and no event recorded.",
                sdk="routes.test",
                cli=Command("routes test"),
                allows_admin=True,
                repeatable=True,
            ),
            Route(
                "GET",
                "/v1/registry/changes",
                self.list_changes,
                Scope.ADMIN,
                "List changes of services, routes and grants",
                _TAG,
                query=RegistryChangesQuery,
                response=RegistryChangePage,
                errors=(EngineUnavailable,),
                description="Newest first, from the audit log. `nextCursor` continues, also after a page without changes.",
                sdk="routes.changes",
                cli=Command("routes changes", ("at", "action", "target", "actor_key_id", "outcome")),
            ),
        ]

    async def list_routes(self, request: Request) -> Response:
        query: CommandRouteQuery = request.query
        page = self._routes.page(request.caller, query.limit, query.service, query.cursor)
        return Response(CommandRoutePage(items=[route_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def put_route(self, request: Request) -> Response:
        service, command = request.parameters["service"], request.parameters["command"]
        query: PutRouteQuery = request.query
        record, is_new = await self._routes.put(request.context, service, command, request.body, is_dry_run=query.dry_run)
        return Response(route_of(record), status=201 if is_new and not query.dry_run else 200)

    async def get_route(self, request: Request) -> Response:
        parameters = request.parameters
        record = await self._routes.find(request.caller.tenant, parameters["service"], parameters["command"])
        limit = limit_of(record.rate_limit)
        return Response(route_of(record, None if limit is None else usage_of(await self._tokens.usage(record.key, limit), limit)))

    async def delete_route(self, request: Request) -> Response:
        await self._routes.delete(request.context, request.parameters["service"], request.parameters["command"])
        return Response(status=204)

    async def test_route(self, request: Request) -> Response:
        wanted: RouteTest = request.body
        parameters = request.parameters
        record = await self._routes.find(request.caller.tenant, parameters["service"], parameters["command"])
        return Response(await self._tester.test(record, wanted))

    async def list_changes(self, request: Request) -> Response:
        query: RegistryChangesQuery = request.query
        tenant = request.caller.tenant
        wanted = AuditFilter(since=_utc(query.since), until=_utc(query.until), action="registry.*")
        found = await self._audit.page(tenant, wanted, limit=query.limit, before=self._position(tenant, query.cursor))
        cursor = None if found.before is None else self._position_cipher.encrypt(tenant, found.before)
        return Response(RegistryChangePage(items=[_change_of(one) for one in found.entries], next_cursor=cursor))

    def _position(self, tenant: str, cursor: str | None) -> int | None:
        if cursor is None:
            return None
        try:
            [position] = self._position_cipher.decrypt(tenant, cursor)
        except (PositionInvalid, ValueError) as exc:
            raise InvalidParameter("the cursor was not returned by this list") from exc
        return position


def _change_of(entry: AuditEntry) -> RegistryChange:
    return RegistryChange(
        id=entry.id,
        at=entry.at,
        action=entry.action.removeprefix("registry."),
        target=entry.target,
        actor_key_id=entry.actor_key_id,
        outcome=entry.outcome,
        before=entry.before,
        after=entry.after,
    )


def _utc(when: datetime | None) -> str | None:
    return None if when is None else rfc3339(min(max(0, int(when.timestamp() * 1000)), LATEST_MS))
