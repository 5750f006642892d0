"""HTTP route of the search of commands."""

from collections.abc import Sequence

from postroad.api.command_search import CommandPage, CommandQuery
from postroad.commands.search import CommandSearch
from postroad.crypto.position_encryption import PositionCipher, PositionInvalid
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable, InvalidParameter
from postroad.kernel.identity import Scope

_COLUMNS = ("at", "outcome", "reason", "source", "target", "command", "command_id", "path", "replay_id")


class SearchRoutes:
    def __init__(self, search: CommandSearch, positions: PositionCipher) -> None:
        self._search, self._positions = search, positions

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/commands",
                self.find_commands,
                Scope.READ,
                "Find what happened to commands",
                "Commands",
                query=CommandQuery,
                response=CommandPage,
                errors=(InvalidParameter, EngineUnavailable),
                description="Outcomes of commands of the tenant's services in the last 14 days, oldest first. Earlier ones than "
                "`availableFrom` are not stored any more. A search compares a limited number of outcomes; continue with "
                "`nextCursor`. Payloads are returned with `bodyMax` only.",
                sdk="commands.find",
                sdk_page="commands.find_page",
                cli=Command("commands find", _COLUMNS),
                allows_admin=True,
            )
        ]

    async def find_commands(self, request: Request) -> Response:
        query: CommandQuery = request.query
        tenant = request.caller.tenant
        found = await self._search.find(request.caller, query, self._position(tenant, query.cursor))
        cursor = None if found.position is None else self._positions.encrypt(tenant, *found.position)
        since = found.available_from_ms
        page = CommandPage(
            items=found.items,
            next_cursor=cursor,
            scanned=found.scanned,
            matched=len(found.items),
            available_from=None if since is None else rfc3339(since),
        )
        return Response(page)

    def _position(self, tenant: str, cursor: str | None) -> tuple[int, int] | None:
        if cursor is None:
            return None
        try:
            sequence, line = self._positions.decrypt(tenant, cursor)
        except (PositionInvalid, ValueError) as exc:
            raise InvalidParameter("the cursor was not returned by this search; start without it") from exc
        return sequence, line
