"""`client.tasks`: long-running work on the server, such as a redrive."""

from collections.abc import Callable

from postroad.api.tasks import Task
from postroad.client.calls import AsyncNamespace, Call, Poll, SyncNamespace, poll
from postroad.client.encoding import segment
from postroad.client.generated.tasks import TasksCalls


class TaskCalls(TasksCalls):
    @poll
    def wait(
        self, task: Task | str, timeout: float | None = None, *, on_progress: Callable[[Task], None] | None = None
    ) -> Poll[Task]:
        """Wait until the task has ended. `on_progress` is called with each state. Raises TimeoutError, TaskNotFound.

        Stopping to wait does not stop the task.
        """
        call: Call[Task] = Call(method="GET", path=f"/v1/tasks/{segment(task)}", response=Task)
        return Poll(call=call, is_done=lambda one: one.has_ended, timeout=timeout, on_result=on_progress)


class Tasks(TaskCalls, SyncNamespace):
    pass


class AsyncTasks(TaskCalls, AsyncNamespace):
    pass
