"""The stored record of a task, and its representation in the API. Pure."""

from typing import Any

import msgspec

from postroad.api.tasks import Progress, Task, TaskState
from postroad.kernel.clock import rfc3339
from postroad.kernel.identity import Caller

_RESTRICTABLE = ("queue", "topic")  # targets that a key can be restricted to


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
    is_pause_wanted: bool = False
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

    @property
    def is_runnable(self) -> bool:
        """True if a runner has something to do: also to end a paused task that was cancelled."""
        return not self.state.is_final and (self.state is not TaskState.PAUSED or self.is_cancel_wanted)


def may_see(caller: Caller, target_kind: str, target: str) -> bool:
    """Whether the caller may see and control a task. No key can be restricted to certain replays: they are about the tenant."""
    return caller.may_use(target_kind, target) and (target_kind in _RESTRICTABLE or not caller.is_partial)


def with_pause(record: TaskRecord, now_ms: int) -> TaskRecord:
    """Request a pause. A task that has not begun is paused at once."""
    if record.state.is_final or record.is_cancel_wanted:
        return record
    state = TaskState.PAUSED if record.state is TaskState.QUEUED else record.state
    return msgspec.structs.replace(record, is_pause_wanted=True, state=state, updated_at_ms=now_ms)


def without_pause(record: TaskRecord, now_ms: int) -> TaskRecord:
    """Withdraw a request to pause, or let a paused task go on."""
    if record.state.is_final or not record.is_pause_wanted:
        return record
    begun = TaskState.QUEUED if record.started_at_ms is None else TaskState.RUNNING
    state = begun if record.state is TaskState.PAUSED else record.state
    return msgspec.structs.replace(record, is_pause_wanted=False, state=state, updated_at_ms=now_ms)


def paused(record: TaskRecord, now_ms: int) -> TaskRecord:
    """The task has stopped for a pause, unless it was resumed meanwhile."""
    if record.state.is_final or not record.is_pause_wanted:
        return record
    return msgspec.structs.replace(record, state=TaskState.PAUSED, updated_at_ms=now_ms)


def task_of(record: TaskRecord) -> Task:
    return Task(
        id=record.id,
        kind=record.kind,
        target=record.target,
        wanted=record.wanted,
        state=record.state,
        is_cancel_wanted=record.is_cancel_wanted,
        is_pause_wanted=record.is_pause_wanted,
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
