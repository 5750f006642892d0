"""Tasks: long-running work on the server."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import NotFound


class TaskNotFound(NotFound, code="task-not-found", status=404, title="Task not found"):
    """The tenant has no task with this id, or it ended more than a week ago."""


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)


class Progress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Counts of a task. `total` is the number of items when the task began; it may change while the task runs."""

    total: int = 0
    scanned: int = 0
    matched: int = 0
    moved: int = 0
    failed: int = 0
    died_again: Annotated[
        int | None,
        Meta(description="Of a redrive: moved messages that are dead letters again. Only if one task is requested."),
    ] = None


class Task(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A long-running operation, such as a redrive."""

    id: str
    kind: str
    target: Annotated[str, Meta(description="Name of the resource, such as a queue.")]
    wanted: Annotated[dict[str, Any], Meta(description="The request that started the task.")]
    state: TaskState
    is_cancel_wanted: Annotated[bool, Meta(description="A cancellation was requested.")]
    is_pause_wanted: Annotated[bool, Meta(description="A pause was requested, or the task is paused.")] = False
    progress: Progress
    error: str | None
    created_by: Annotated[str, Meta(description="Id of the key that started the task.")]
    created_at: Timestamp
    started_at: Timestamp | None
    updated_at: Timestamp
    ended_at: Timestamp | None

    @property
    def has_ended(self) -> bool:
        return self.state.is_final


class TaskQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state: Annotated[TaskState | None, Meta(description="Only tasks in this state.")] = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


TaskPage = page_of(Task, "tasks")
