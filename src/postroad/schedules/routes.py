"""HTTP routes of schedules."""

import itertools
from collections.abc import Sequence

from postroad.api.queues import Published, QueueNotFound, SchemaMismatch, SchemaTooSlow
from postroad.api.schedules import (
    NextRuns,
    NextRunsQuery,
    Schedule,
    ScheduleNotFound,
    SchedulePage,
    ScheduleQuery,
    ScheduleSettings,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineFull, EngineUnavailable, InvalidParameter, TooLarge
from postroad.kernel.identity import Scope
from postroad.schedules.records import schedule_of
from postroad.schedules.service import Schedules

_TAG = "Schedules"
_ONE = "/v1/schedules/{schedule}"
_COLUMNS = ("name", "queue", "cron", "every_ms", "time_zone", "state", "next_run_at", "last_run_at")


class ScheduleRoutes:
    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def table(self) -> Sequence[Route]:
        errors = (ScheduleNotFound, InvalidParameter, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/schedules",
                self.list_schedules,
                Scope.READ,
                "List schedules",
                _TAG,
                query=ScheduleQuery,
                response=SchedulePage,
                sdk="schedules.list",
                cli=Command("schedules list", _COLUMNS),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_schedule,
                Scope.ADMIN,
                "Create a schedule or replace its settings",
                _TAG,
                body=ScheduleSettings,
                response=Schedule,
                other_statuses=(201,),
                errors=(QueueNotFound, TooLarge, InvalidParameter, EngineUnavailable),
                description="Settings that are left out get their defaults. The status is 201 if the schedule is new. Equal "
                "settings change nothing. A change of the queue or of the times applies from now on.",
                sdk="schedules.put",
                cli=Command("schedules put"),
            ),
            Route(
                "GET",
                _ONE,
                self.get_schedule,
                Scope.READ,
                "Show a schedule",
                _TAG,
                response=Schedule,
                errors=errors,
                sdk="schedules.get",
                cli=Command("schedules get"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_schedule,
                Scope.ADMIN,
                "Delete a schedule",
                _TAG,
                status=204,
                errors=errors,
                description="Messages that it has published stay in the queue.",
                sdk="schedules.delete",
                cli=Command("schedules delete", confirm="Delete the schedule {schedule}?", done="deleted {schedule}"),
            ),
            Route(
                "POST",
                f"{_ONE}/pause",
                self.pause_schedule,
                Scope.WRITE,
                "Pause a schedule",
                _TAG,
                response=Schedule,
                errors=errors,
                description="Ticks until it is resumed are skipped, whatever its catch-up policy is.",
                sdk="schedules.pause",
                cli=Command("schedules pause", done="paused {schedule}"),
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/resume",
                self.resume_schedule,
                Scope.WRITE,
                "Resume a schedule",
                _TAG,
                response=Schedule,
                errors=errors,
                sdk="schedules.resume",
                cli=Command("schedules resume", done="resumed {schedule}"),
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/run",
                self.run_schedule,
                Scope.PUBLISH,
                "Publish a message of a schedule now",
                _TAG,
                response=Published,
                status=201,
                errors=(*errors, QueueNotFound, SchemaMismatch, SchemaTooSlow, TooLarge, EngineFull),
                description="One message besides those of its ticks. Works for a paused schedule, too.",
                sdk="schedules.run",
                cli=Command("schedules run"),
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{_ONE}/next",
                self.get_next_runs,
                Scope.READ,
                "Show the next runs of a schedule",
                _TAG,
                query=NextRunsQuery,
                response=NextRuns,
                errors=errors,
                sdk="schedules.next",
                cli=Command("schedules next"),
                allows_admin=True,
            ),
        ]

    async def list_schedules(self, request: Request) -> Response:
        query: ScheduleQuery = request.query
        page = self._schedules.page(request.caller, query.queue, query.limit, query.cursor)
        return Response(SchedulePage(items=[schedule_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def put_schedule(self, request: Request) -> Response:
        record, is_new = await self._schedules.put(request.context, request.parameters["schedule"], request.body)
        return Response(schedule_of(record), status=201 if is_new else 200)

    async def get_schedule(self, request: Request) -> Response:
        return Response(schedule_of(await self._schedules.find(request.caller, request.parameters["schedule"])))

    async def delete_schedule(self, request: Request) -> Response:
        await self._schedules.delete(request.context, request.parameters["schedule"])
        return Response(status=204)

    async def pause_schedule(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=True)

    async def resume_schedule(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=False)

    async def _set_paused(self, request: Request, *, is_paused: bool) -> Response:
        record = await self._schedules.set_paused(request.context, request.parameters["schedule"], is_paused=is_paused)
        return Response(schedule_of(record))

    async def run_schedule(self, request: Request) -> Response:
        return Response(await self._schedules.run_now(request.context, request.parameters["schedule"]), status=201)

    async def get_next_runs(self, request: Request) -> Response:
        query: NextRunsQuery = request.query
        record = await self._schedules.find(request.caller, request.parameters["schedule"])
        ticks = () if record.is_paused else itertools.islice(record.timing.ticks(record.position_ms), query.count)
        return Response(NextRuns(runs=[rfc3339(tick) for tick in ticks]))
