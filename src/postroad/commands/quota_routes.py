"""HTTP routes of quotas: list, set, delete."""

from collections.abc import Sequence

from postroad.api.command_limits import Quota, QuotaDefinition, QuotaNotFound, QuotaPage, QuotaQuery
from postroad.api.commands import CommandRouteNotFound
from postroad.commands.limit_records import quota_of
from postroad.commands.quotas import Quotas
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope

_TAG = "Commands"
_ONE = "/v1/quotas/{service}/{command}/{source}"


class QuotaRoutes:
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/quotas",
                self.list_quotas,
                Scope.READ,
                "List quotas of senders on the tenant's routes",
                _TAG,
                query=QuotaQuery,
                response=QuotaPage,
                sdk="quotas.list",
                cli=Command("quotas list", ("source", "target", "command", "max", "interval_seconds", "burst", "updated_at")),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_quota,
                Scope.ADMIN,
                "Set the quota of a sender",
                _TAG,
                body=QuotaDefinition,
                response=Quota,
                other_statuses=(201,),
                errors=(CommandRouteNotFound, PreconditionFailed, EngineUnavailable),
                description="It applies while the sender is banned from the warm path. The sender is `<service>` of the own "
                "tenant, or `<tenant>/<service>`.",
                matches_rest=True,
                sdk="quotas.put",
                cli=Command("quotas put"),
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_quota,
                Scope.ADMIN,
                "Delete the quota of a sender",
                _TAG,
                status=204,
                errors=(QuotaNotFound, EngineUnavailable),
                matches_rest=True,
                sdk="quotas.delete",
                cli=Command(
                    "quotas delete",
                    confirm="Delete the quota of {source} on {service}/{command}?",
                    done="deleted the quota of {source} on {service}/{command}",
                ),
            ),
        ]

    async def list_quotas(self, request: Request) -> Response:
        query: QuotaQuery = request.query
        page = self._quotas.page(request.caller, query.limit, query.cursor, service=query.service, command=query.command)
        return Response(QuotaPage(items=[quota_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def put_quota(self, request: Request) -> Response:
        parameters = request.parameters
        record, is_new = await self._quotas.put(
            request.context, parameters["service"], parameters["command"], parameters["source"], request.body
        )
        return Response(quota_of(record), status=201 if is_new else 200)

    async def delete_quota(self, request: Request) -> Response:
        parameters = request.parameters
        await self._quotas.delete(request.context, parameters["service"], parameters["command"], parameters["source"])
        return Response(status=204)
