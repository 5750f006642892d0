"""Load tests in the live state: those that run, and those that ended in the last ten minutes."""

import msgspec

from postroad.kernel.clock import Clock
from postroad.kernel.identity import Caller
from postroad.loadtests.rules import LOAD_TEST
from postroad.loadtests.service import LoadTests
from postroad.tasks.rules import TaskRecord, may_see
from postroad.tasks.service import Tasks
from postroad.telemetry.live_sections import LiveSection, Rows

_ENDED_MS = 600_000
_ROWS_MAX = 20


class LiveLoadTests(LiveSection):
    name = "loadtests"

    def __init__(self, tasks: Tasks, tests: LoadTests, clock: Clock) -> None:
        self._tasks, self._tests, self._clock = tasks, tests, clock

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        table, oldest = self._tasks.table, self._clock() - _ENDED_MS
        found = [record for key in table.keys_under(f"{tenant}.") if (record := table.get(key)) is not None]
        recent = [one for one in found if one.kind == LOAD_TEST and (one.ended_at_ms is None or one.ended_at_ms >= oldest)]
        return {one.id: self._tests.summary(one) for one in sorted(recent, key=_id)[-_ROWS_MAX:]}

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        record = self._tasks.table.get(f"{caller.tenant}.{key}")
        return record is not None and may_see(caller, record.target_kind, record.target)


def _id(record: TaskRecord) -> str:
    return record.id
