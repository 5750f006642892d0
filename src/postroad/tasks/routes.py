"""Tasks over HTTP: see them, and cancel them. They are started where the work is."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.http.messages import Request, Response
from postroad.http.routing import Route
from postroad.kernel.errors import EngineUnavailable, TaskNotFound
from postroad.kernel.identity import Scope
from postroad.tasks.rules import TaskState, TaskView, task_view
from postroad.tasks.service import Tasks


class TaskQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state: TaskState | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


class TaskList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    tasks: list[TaskView]
    next_cursor: str | None


class TaskRoutes:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def table(self) -> Sequence[Route]:
        one, errors = "/v1/tasks/{task}", (TaskNotFound, EngineUnavailable)
        return [
            Route("GET", "/v1/tasks", self.list_tasks, Scope.READ, "List tasks", "Tasks", query=TaskQuery, answer=TaskList),
            Route(
                "GET", one, self.get_task, Scope.READ, "Show a task and how far it is", "Tasks", answer=TaskView, errors=errors
            ),
            Route(
                "DELETE",
                one,
                self.cancel_task,
                Scope.WRITE,
                "Cancel a task",
                "Tasks",
                answer=TaskView,
                status=202,
                errors=errors,
                description="It stops soon; what it has done stays done. One that has ended stays as it is.",
            ),
        ]

    async def list_tasks(self, request: Request) -> Response:
        query: TaskQuery = request.query
        found = [
            one
            for one in self._tasks.of(request.caller)
            if (query.state is None or one.state is query.state) and (query.cursor is None or one.id < query.cursor)
        ]
        shown = found[: query.limit]
        cursor = shown[-1].id if len(found) > query.limit else None
        return Response(TaskList(tasks=[task_view(one) for one in shown], next_cursor=cursor))

    async def get_task(self, request: Request) -> Response:
        return Response(task_view(await self._tasks.find(request.caller, request.parameters["task"])))

    async def cancel_task(self, request: Request) -> Response:
        return Response(task_view(await self._tasks.cancel(request.context, request.parameters["task"])), status=202)
