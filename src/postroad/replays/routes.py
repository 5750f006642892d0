"""HTTP routes of replays."""

from collections.abc import Sequence

from postroad.api.queues import QueueNotFound
from postroad.api.replays import NewReplay, Replay, ReplayNotFound, ReplayPage, ReplayQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.replays.records import ReplayRecord, replay_of, state_of
from postroad.replays.service import Replays

_TAG = "Replays"
_ONE = "/v1/replays/{replay}"
_COLUMNS = ("id", "origin", "state", "counts.selected", "counts.delivered", "counts.remaining", "reason", "created_at")


class ReplayRoutes:
    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    def table(self) -> Sequence[Route]:
        errors = (ReplayNotFound, EngineUnavailable)
        return [
            Route(
                "POST",
                "/v1/replays",
                self.create_replay,
                Scope.ADMIN,
                "Send archived commands or dead letters again",
                _TAG,
                body=NewReplay,
                response=Replay,
                status=202,
                errors=(QueueNotFound, PreconditionFailed, EngineUnavailable),
                description="Each command is signed again and passes all checks, at most once for this replay. Commands of the "
                "archive are selected by the pipeline, and belong to the tenant's services; dead letters are those of the "
                "tenant's queue.",
                covers_tenant=True,
                sdk="replays.create",
            ),
            Route(
                "GET",
                "/v1/replays",
                self.list_replays,
                Scope.ADMIN,
                "List replays",
                _TAG,
                query=ReplayQuery,
                response=ReplayPage,
                description="Newest first. Replays are kept for 30 days.",
                covers_tenant=True,
                sdk="replays.list",
                cli=Command("replay list", _COLUMNS),
            ),
            Route(
                "GET",
                _ONE,
                self.get_replay,
                Scope.ADMIN,
                "Show a replay and its counts",
                _TAG,
                response=Replay,
                errors=errors,
                covers_tenant=True,
                sdk="replays.get",
                cli=Command("replay show"),
            ),
            Route(
                "DELETE",
                _ONE,
                self.cancel_replay,
                Scope.ADMIN,
                "Cancel a replay",
                _TAG,
                response=Replay,
                status=202,
                errors=errors,
                description="It stops soon; what is delivered stays delivered. A replay that has ended does not change.",
                covers_tenant=True,
                sdk="replays.cancel",
                cli=Command("replay cancel"),
            ),
            *(
                Route(
                    "POST",
                    f"{_ONE}/{verb}",
                    handler,
                    Scope.ADMIN,
                    summary,
                    _TAG,
                    response=Replay,
                    status=202,
                    errors=(*errors, PreconditionFailed),
                    description=description,
                    covers_tenant=True,
                    sdk=f"replays.{verb}",
                    cli=Command(f"replay {verb}"),
                    repeatable=True,
                )
                for verb, handler, summary, description in (
                    ("pause", self.pause_replay, "Pause a replay", "It stops soon and keeps its position."),
                    ("resume", self.resume_replay, "Resume a replay", "Also sends the commands that a dry run has selected."),
                )
            ),
        ]

    async def create_replay(self, request: Request) -> Response:
        return self._response(await self._replays.create(request.context, request.body), 202)

    async def list_replays(self, request: Request) -> Response:
        query: ReplayQuery = request.query
        found = [
            one
            for one in self._replays.of(request.caller.tenant)
            if (query.state is None or state_of(one, self._replays.task_of(one)) is query.state)
            and (query.cursor is None or one.id < query.cursor)
        ]
        shown = found[: query.limit]
        cursor = shown[-1].id if len(found) > query.limit else None
        items = [replay_of(one, self._replays.task_of(one)) for one in shown]
        return Response(ReplayPage(items=items, next_cursor=cursor))

    async def get_replay(self, request: Request) -> Response:
        return self._response(await self._replays.find(request.caller.tenant, request.parameters["replay"]), 200)

    async def cancel_replay(self, request: Request) -> Response:
        return self._response(await self._replays.cancel(request.context, request.parameters["replay"]), 202)

    async def pause_replay(self, request: Request) -> Response:
        return self._response(await self._replays.pause(request.context, request.parameters["replay"]), 202)

    async def resume_replay(self, request: Request) -> Response:
        return self._response(await self._replays.resume(request.context, request.parameters["replay"]), 202)

    def _response(self, record: ReplayRecord, status: int) -> Response:
        return Response(replay_of(record, self._replays.task_of(record)), status=status)
