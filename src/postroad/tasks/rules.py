"""The stored record of a task, and its representation in the API. Pure."""

from typing import Any

import msgspec

from postroad.api.tasks import Progress, Task, TaskState
from postroad.kernel.clock import rfc3339


class TaskRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Stored under `<tenant>.<id>`. `position` and `bound` are the progress of the handler, in its own terms.

    `target_kind` is the kind of the resource `target`: keys that are restricted to other resources do not see the task. `part` is
    what the task works on within the target, such as a subscription of a topic.
    """

    v: int = 1
    id: str
    tenant: str
    kind: str
    target: str
    target_kind: str = "queue"
    part: str = ""
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


def task_of(record: TaskRecord) -> Task:
    return Task(
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
