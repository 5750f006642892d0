"""`client.tasks`: long-running work on the server, such as a redrive."""

from collections.abc import Callable

from postroad.api.tasks import Task, TaskPage, TaskState
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, Watch, operation, pages, watch
from postroad.client.encoding import segment


class TaskCalls:
    @pages
    def list(self, *, state: TaskState | str | None = None, page_size: int = 100) -> Pages[Task]:
        """List the tenant's tasks, newest first. Tasks are kept for a week after they ended."""
        return Pages(call=Call(method="GET", path="/v1/tasks", query={"state": state, "limit": page_size}, response=TaskPage))

    @operation
    def get(self, task: Task | str) -> Call[Task]:
        """Show a task and its progress. Raises TaskNotFound."""
        return Call(method="GET", path=_path(task), response=Task)

    @operation
    def cancel(self, task: Task | str) -> Call[Task]:
        """Cancel a task. It stops soon; completed work is not undone. Raises TaskNotFound."""
        return Call(method="DELETE", path=_path(task), response=Task)

    @watch
    def wait(
        self, task: Task | str, timeout: float | None = None, *, on_progress: Callable[[Task], None] | None = None
    ) -> Watch[Task]:
        """Wait until the task has ended. `on_progress` is called with each state. Raises TimeoutError, TaskNotFound.

        Stopping to wait does not stop the task.
        """
        call: Call[Task] = Call(method="GET", path=_path(task), response=Task)
        return Watch(call=call, is_over=lambda one: one.has_ended, timeout=timeout, told=on_progress)


def _path(task: Task | str) -> str:
    return f"/v1/tasks/{segment(task if isinstance(task, str) else task.id)}"


class Tasks(TaskCalls, SyncNamespace):
    pass


class AsyncTasks(TaskCalls, AsyncNamespace):
    pass
