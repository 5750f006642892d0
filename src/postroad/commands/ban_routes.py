"""HTTP routes of bans: list, ban, end a ban."""

from collections.abc import Sequence

from postroad.api.command_limits import Ban, BanNotFound, BanPage, BanQuery, EndBanQuery, NewBan
from postroad.commands.bans import Bans
from postroad.commands.limit_records import ban_of
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope

_TAG = "Commands"


class BanRoutes:
    def __init__(self, bans: Bans) -> None:
        self._bans = bans

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/bans",
                self.list_bans,
                Scope.READ,
                "List bans of the tenant's senders and on its routes",
                _TAG,
                query=BanQuery,
                response=BanPage,
                description="With a platform key: those of all tenants.",
                sdk="bans.list",
                cli=Command("bans list", ("id", "source", "kind", "target", "command", "creator", "reason", "expires_at")),
                allows_admin=True,
            ),
            Route(
                "POST",
                "/v1/bans",
                self.create_ban,
                Scope.ADMIN,
                "Ban a sender",
                _TAG,
                body=NewBan,
                response=Ban,
                status=201,
                errors=(PreconditionFailed, EngineUnavailable),
                description="On a route of the tenant; with a platform key on any route, or on all of them. Every gateway "
                "follows within moments. A ban of the same kind of the same sender and route is replaced.",
                sdk="bans.create",
                cli=Command("bans create", options=(("duration_seconds", "seconds"),)),
            ),
            Route(
                "DELETE",
                "/v1/bans/{ban}",
                self.delete_ban,
                Scope.ADMIN,
                "End a ban",
                _TAG,
                query=EndBanQuery,
                status=204,
                errors=(BanNotFound, EngineUnavailable),
                description="By the owner of the route, or with a platform key.",
                sdk="bans.delete",
                cli=Command("bans delete", confirm="End the ban {ban}?", done="ended the ban {ban}"),
            ),
        ]

    async def list_bans(self, request: Request) -> Response:
        query: BanQuery = request.query
        page = self._bans.page(request.caller, query.limit, query.cursor, source=query.source, kind=query.kind)
        return Response(BanPage(items=[ban_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def create_ban(self, request: Request) -> Response:
        return Response(ban_of(await self._bans.create(request.context, request.body)), status=201)

    async def delete_ban(self, request: Request) -> Response:
        query: EndBanQuery = request.query
        await self._bans.delete(request.context, request.parameters["ban"], reason=query.reason)
        return Response(status=204)
