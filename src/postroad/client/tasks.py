"""`client.tasks`: work that the server does by itself, such as putting dead letters back."""

from collections.abc import Callable

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, Watch, operation, pages, watch
from postroad.client.encoding import segment
from postroad.client.shapes.tasks import Task, TaskPage


class TaskCalls:
    @pages
    def list(self, *, state: str | None = None, page_size: int = 100) -> Pages[Task]:
        """The tenant's tasks, newest first, kept for a week after they ended."""
        query = {"state": state, "limit": page_size}
        call: Call[TaskPage] = Call(method="GET", path="/v1/tasks", query=query, answer=TaskPage)
        return Pages(call=call, items=lambda page: page.tasks, cursor=lambda page: page.next_cursor)

    @operation
    def get(self, task: Task | str) -> Call[Task]:
        """Raises TaskNotFound."""
        return Call(method="GET", path=_path(task), answer=Task)

    @operation
    def cancel(self, task: Task | str) -> Call[Task]:
        """It stops soon; what it has done stays done, and one that has ended stays as it is. Raises TaskNotFound."""
        return Call(method="DELETE", path=_path(task), answer=Task)

    @watch
    def wait(
        self, task: Task | str, timeout: float | None = None, *, on_progress: Callable[[Task], None] | None = None
    ) -> Watch[Task]:
        """The task once it has ended, however it did; `on_progress` hears how far it is. Raises TimeoutError, TaskNotFound.

        The task knows nothing of who waits: to stop waiting is not to stop it.
        """
        call: Call[Task] = Call(method="GET", path=_path(task), answer=Task)
        return Watch(call=call, is_over=lambda one: one.has_ended, timeout=timeout, told=on_progress)


def _path(task: Task | str) -> str:
    return f"/v1/tasks/{segment(task if isinstance(task, str) else task.id)}"


class Tasks(TaskCalls, SyncNamespace):
    pass


class AsyncTasks(TaskCalls, AsyncNamespace):
    pass
