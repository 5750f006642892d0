"""Load tests: start, look up, list, stop."""

from postroad.api.loadtests import (
    LoadTest,
    LoadTestLimits,
    LoadTestNotFound,
    LoadTestRunning,
    LoadTestsDisabled,
    LoadTestSummary,
    NewLoadTest,
)
from postroad.api.tasks import TaskNotFound
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden
from postroad.kernel.identity import Caller, Credential
from postroad.loadtests.records import ResultsRecord, load_test_of, summary_of
from postroad.loadtests.rules import LOAD_TEST, check_wanted, rate_of
from postroad.queues.lifecycle import QueueLifecycle
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import Tasks

_OWN_QUEUE = "loadtest-"  # how the names of the tests' own queues begin


class LoadTests:
    """A test is a task; its results are a record that the task writes every second."""

    def __init__(
        self, tasks: Tasks, results: ReplicatedTable[ResultsRecord], lifecycle: QueueLifecycle, limits: LoadTestLimits
    ) -> None:
        self._tasks, self._results, self._lifecycle, self.limits = tasks, results, lifecycle, limits

    async def start(self, context: RequestContext, wanted: NewLoadTest) -> LoadTest:
        """Raises LoadTestsDisabled, LoadTestRunning, BodyInvalid, Forbidden, QueueNotFound, EngineUnavailable."""
        if not self.limits.enabled:
            raise LoadTestsDisabled("this installation does not allow load tests; its operator sets POSTROAD_LOADTESTS=on")
        caller = context.caller
        if caller.credential is not Credential.KEY:
            raise Forbidden("a load test acts for a key; send one")
        check_wanted(wanted, self.limits)
        if wanted.queue is not None:
            await self._lifecycle.find(context.tenant, wanted.queue)
        target = wanted.queue or _OWN_QUEUE
        if not caller.may_use("queue", target):
            raise Forbidden(f"the key may not use the queue {target!r}")
        if any(one.kind == LOAD_TEST and not one.state.is_final for one in self._all()):
            raise LoadTestRunning("another load test has not ended; the installation runs one at a time", retry_after=5)
        total = rate_of(wanted, self.limits) * wanted.seconds
        record = await self._tasks.start(context, LOAD_TEST, "queue", target, wanted, total)
        return load_test_of(record, None, self.limits)

    def _all(self) -> list[TaskRecord]:
        table = self._tasks.table
        return [record for key in table.keys_under() if (record := table.get(key)) is not None]

    def of(self, caller: Caller) -> list[TaskRecord]:
        """The tasks of the tenant's load tests that the caller may see, newest first."""
        return [one for one in self._tasks.of(caller) if one.kind == LOAD_TEST]

    def summary(self, record: TaskRecord) -> LoadTestSummary:
        return summary_of(record, self._results.get(record.key), self.limits)

    async def get(self, caller: Caller, test: str) -> LoadTest:
        """Raises LoadTestNotFound."""
        record = await self._find(caller, test)
        return load_test_of(record, await self._results.fetch(record.key), self.limits)

    async def stop(self, context: RequestContext, test: str) -> LoadTest:
        """Request the end of a test; one that has ended does not change. Raises LoadTestNotFound."""
        await self._find(context.caller, test)
        record = await self._tasks.cancel(context, test)
        return load_test_of(record, self._results.get(record.key), self.limits)

    async def _find(self, caller: Caller, test: str) -> TaskRecord:
        try:
            record = await self._tasks.find(caller, test)
        except TaskNotFound:
            record = None
        if record is None or record.kind != LOAD_TEST:
            raise LoadTestNotFound(f"there is no load test {test[:64]!r}")
        return record

    async def delete_all(self, tenant: str) -> None:
        for key in list(self._results.keys_under(f"{tenant}.")):
            await self._results.delete(key)
