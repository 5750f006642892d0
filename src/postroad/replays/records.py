"""The stored record of a replay, and its representation in the API. Pure."""

from typing import Any

import msgspec

from postroad.api.replays import Origin, RefusedCommand, Replay, ReplayCounts, ReplayState
from postroad.api.tasks import TaskState
from postroad.commands.replay_mark import REPLAY_DAYS, ReplayMark
from postroad.kernel.clock import rfc3339
from postroad.tasks.rules import TaskRecord

REPLAYS_BUCKET = "postroad_replays"
KEEP_SECONDS = REPLAY_DAYS * 86_400


class ReplayRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of a replay, under `<tenant>.<id>`.

    `position` is the sequence of the last message or dead letter that is settled, `index` that of the next selected command.
    `bound` is the last dead letter of the selection. `wanted` is the selection as it was requested. `is_run_wanted`: the commands
    are to be sent once they are selected.
    """

    v: int = 1
    id: str
    tenant: str
    origin: Origin
    reason: str
    wanted: dict[str, Any]
    queue: str | None = None
    limit: int | None = None
    rate_per_second: int = 100
    is_dry_run: bool = False
    is_run_wanted: bool = True
    keeps_ids: bool = True
    state: ReplayState
    position: int = 0
    index: int = 0
    bound: int = 0
    counts: ReplayCounts = ReplayCounts()
    refused_sample: tuple[RefusedCommand, ...] = ()
    throttled_until_ms: int | None = None
    note: str | None = None
    error: str | None = None
    task_id: str | None = None
    created_by: str
    request_id: str = ""
    is_platform: bool = False
    created_at_ms: int
    updated_at_ms: int
    ended_at_ms: int | None = None

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.id}"

    @property
    def mark(self) -> ReplayMark:
        return ReplayMark(id=self.id, reason=self.reason, at_ms=self.created_at_ms)


def state_of(record: ReplayRecord, task: TaskRecord | None) -> ReplayState:
    """The state as users see it: a replay whose task is paused, or is asked to pause, is paused."""
    if record.state is not ReplayState.RUNNING or task is None or task.state.is_final:
        return record.state
    return ReplayState.PAUSED if task.state is TaskState.PAUSED or task.is_pause_wanted else ReplayState.RUNNING


def replay_of(record: ReplayRecord, task: TaskRecord | None) -> Replay:
    return Replay(
        id=record.id,
        origin=record.origin,
        state=state_of(record, task),
        reason=record.reason,
        selection=record.wanted,
        queue=record.queue,
        dry_run=record.is_dry_run,
        keep_ids=record.keeps_ids,
        rate_per_second=record.rate_per_second,
        counts=record.counts,
        refused_sample=list(record.refused_sample),
        throttled_until=_time(record.throttled_until_ms),
        note=record.note,
        error=record.error,
        task_id=record.task_id,
        created_by=record.created_by,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        ended_at=_time(record.ended_at_ms),
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
