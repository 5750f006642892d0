"""Tasks in the live state: those that run, and those that ended in the last ten minutes."""

import msgspec

from postroad.api.tasks import Task
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.identity import Caller
from postroad.tasks.rules import TaskRecord, may_see, task_of
from postroad.telemetry.live_sections import LiveSection, Rows

_ENDED_MS = 600_000
_ROWS_MAX = 200


class LiveTask(Task, frozen=True, rename="camel", kw_only=True):
    target_kind: str


class LiveTasks(LiveSection):
    name = "tasks"

    def __init__(self, table: ReplicatedTable[TaskRecord], clock: Clock) -> None:
        self._table, self._clock = table, clock

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        oldest = self._clock() - _ENDED_MS
        found = [record for key in self._table.keys_under(f"{tenant}.") if (record := self._table.get(key)) is not None]
        recent = [one for one in found if one.ended_at_ms is None or one.ended_at_ms >= oldest or one.id in names]
        return {one.id: _row(one) for one in sorted(recent, key=lambda one: one.id)[-_ROWS_MAX:]}

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return isinstance(row, LiveTask) and may_see(caller, row.target_kind, row.target)


def _row(record: TaskRecord) -> LiveTask:
    task = task_of(record)
    return LiveTask(**{name: getattr(task, name) for name in task.__struct_fields__}, target_kind=record.target_kind)
