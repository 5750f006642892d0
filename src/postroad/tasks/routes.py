"""HTTP routes of tasks. Tasks are started by the routes of the capability that they belong to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from postroad.api.tasks import Task, TaskNotFound, TaskPage, TaskQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.tasks.rules import TaskRecord, task_of
from postroad.tasks.service import Tasks

DiedAgain = Callable[[TaskRecord], Awaitable[int | None]]


class TaskRoutes:
    """`died_again` has, by kind of task, a function that counts the messages which failed again after it."""

    def __init__(self, tasks: Tasks, died_again: Mapping[str, DiedAgain]) -> None:
        self._tasks, self._died_again = tasks, died_again

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
            *(
                Route(
                    "POST",
                    f"{one}/{verb}",
                    handler,
                    Scope.WRITE,
                    summary,
                    "Tasks",
                    response=Task,
                    status=202,
                    errors=(*errors, PreconditionFailed),
                    description=description,
                    sdk=f"tasks.{verb}",
                    cli=Command(f"tasks {verb}"),
                    repeatable=True,
                    allows_admin=True,
                )
                for verb, handler, summary, description in (
                    ("pause", self.pause_task, "Pause a task", "The task stops soon and keeps its position."),
                    ("resume", self.resume_task, "Resume a task", "A paused task goes on from its position."),
                )
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
        record = await self._tasks.find(request.caller, request.parameters["task"])
        task, died_again = task_of(record), self._died_again.get(record.kind)
        if died_again is not None:
            count = await died_again(record)
            task = msgspec.structs.replace(task, progress=msgspec.structs.replace(task.progress, died_again=count))
        return Response(task)

    async def pause_task(self, request: Request) -> Response:
        return Response(task_of(await self._tasks.pause(request.context, request.parameters["task"])), status=202)

    async def resume_task(self, request: Request) -> Response:
        return Response(task_of(await self._tasks.resume(request.context, request.parameters["task"])), status=202)

    async def cancel_task(self, request: Request) -> Response:
        return Response(task_of(await self._tasks.cancel(request.context, request.parameters["task"])), status=202)
