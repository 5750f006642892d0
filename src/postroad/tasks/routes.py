"""HTTP routes of tasks. Tasks are started by the routes of the capability that they belong to."""

from collections.abc import Sequence

from postroad.api.tasks import Task, TaskNotFound, TaskPage, TaskQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Scope
from postroad.tasks.rules import task_of
from postroad.tasks.service import Tasks


class TaskRoutes:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def table(self) -> Sequence[Route]:
        one, errors = "/v1/tasks/{task}", (TaskNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/tasks",
                self.list_tasks,
                Scope.READ,
                "List tasks",
                "Tasks",
                query=TaskQuery,
                response=TaskPage,
                description="Newest first. Tasks are kept for a week after they ended.",
                sdk="tasks.list",
                cli=Command(
                    "tasks list", ("id", "kind", "target", "state", "progress.moved", "progress.total", "error", "created_at")
                ),
                allows_admin=True,
            ),
            Route(
                "GET",
                one,
                self.get_task,
                Scope.READ,
                "Show a task and its progress",
                "Tasks",
                response=Task,
                errors=errors,
                sdk="tasks.get",
                cli=Command("tasks show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                one,
                self.cancel_task,
                Scope.WRITE,
                "Cancel a task",
                "Tasks",
                response=Task,
                status=202,
                errors=errors,
                description="The task stops soon; completed work is not undone. A task that has ended does not change.",
                sdk="tasks.cancel",
                cli=Command("tasks cancel"),
                allows_admin=True,
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
        return Response(TaskPage(items=[task_of(one) for one in shown], next_cursor=cursor))

    async def get_task(self, request: Request) -> Response:
        return Response(task_of(await self._tasks.find(request.caller, request.parameters["task"])))

    async def cancel_task(self, request: Request) -> Response:
        return Response(task_of(await self._tasks.cancel(request.context, request.parameters["task"])), status=202)
