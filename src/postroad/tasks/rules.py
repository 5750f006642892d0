"""What a task is. Pure: no I/O, no clock."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.kernel.clock import rfc3339


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)


class Progress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`total` is what there was to look at when the task began; it may change meanwhile."""

    total: int = 0
    scanned: int = 0
    matched: int = 0
    moved: int = 0
    failed: int = 0


class TaskRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is stored of a task, under `<tenant>.<id>`. `position` is how far it has come and `bound` how far it
    is to go, in its kind's own terms."""

    v: int = 1
    id: str
    tenant: str
    kind: str
    target: str
    wanted: dict[str, Any] = {}
    state: TaskState = TaskState.QUEUED
    is_cancel_wanted: bool = False
    position: int = 0
    bound: int = 0
    progress: Progress = Progress()
    error: str | None = None
    created_by: str
    request_id: str = ""
    created_at_ms: int
    started_at_ms: int | None = None
    updated_at_ms: int
    ended_at_ms: int | None = None

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.id}"


class TaskView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    kind: str
    target: Annotated[str, Meta(description="What it works on, such as a queue.")]
    wanted: dict[str, Any]
    state: TaskState
    is_cancel_wanted: bool
    progress: Progress
    error: str | None
    created_by: str
    created_at: str
    started_at: str | None
    updated_at: str
    ended_at: str | None


def task_view(record: TaskRecord) -> TaskView:
    return TaskView(
        id=record.id,
        kind=record.kind,
        target=record.target,
        wanted=record.wanted,
        state=record.state,
        is_cancel_wanted=record.is_cancel_wanted,
        progress=record.progress,
        error=record.error,
        created_by=record.created_by,
        created_at=rfc3339(record.created_at_ms),
        started_at=_time(record.started_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        ended_at=_time(record.ended_at_ms),
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
