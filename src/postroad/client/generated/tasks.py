"""Calls of `client.tasks`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.tasks import Task, TaskPage, TaskState
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import segment


class TasksCalls:
    @pages
    def list(self, *, state: TaskState | str | None = None, page_size: int = 100) -> Pages[Task]:
        """List tasks. Newest first. Tasks are kept for a week after they ended."""
        return Pages(call=Call(method="GET", path="/v1/tasks", query={"state": state, "limit": page_size}, response=TaskPage))

    @operation
    def get(self, task: Task | str) -> Call[Task]:
        """Show a task and its progress. Raises TaskNotFound."""
        return Call(method="GET", path=f"/v1/tasks/{segment(task)}", response=Task)

    @operation
    def cancel(self, task: Task | str) -> Call[Task]:
        """Cancel a task.

        The task stops soon; completed work is not undone. A task that has ended does not change. Raises TaskNotFound.
        """
        return Call(method="DELETE", path=f"/v1/tasks/{segment(task)}", response=Task)

    @operation
    def pause(self, task: Task | str) -> Call[Task]:
        """Pause a task. The task stops soon and keeps its position. Raises TaskNotFound, PreconditionFailed."""
        return Call(method="POST", path=f"/v1/tasks/{segment(task)}/pause", response=Task)

    @operation
    def resume(self, task: Task | str) -> Call[Task]:
        """Resume a task. A paused task goes on from its position. Raises TaskNotFound, PreconditionFailed."""
        return Call(method="POST", path=f"/v1/tasks/{segment(task)}/resume", response=Task)


class Tasks(TasksCalls, SyncNamespace):
    pass


class AsyncTasks(TasksCalls, AsyncNamespace):
    pass
