"""Runs load tests, one at a time, as tasks of the control role."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from postroad.access.identity_cache import IdentityCache
from postroad.access.key_service import KeyService, key_record
from postroad.access.keys import TENANT_PREFIX, new_key
from postroad.access.records import KeyRecord
from postroad.api.loadtests import LoadTestLimits, LoadTestPoint, NewLoadTest
from postroad.api.queues import QueueNotFound
from postroad.api.tasks import Progress
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, PostroadError, PreconditionFailed
from postroad.kernel.identity import Caller, Scope
from postroad.loadtests import metrics
from postroad.loadtests.events import LoadTestEnded, LoadTestStarted
from postroad.loadtests.http_load import HttpLoad, Target
from postroad.loadtests.records import KEEP_SECONDS, ResultsRecord, wanted_of
from postroad.loadtests.rules import LOAD_TEST, Measurement, queue_of, rate_of
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.stats import QueueStatsReader
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskCancelled, TaskContext, TaskPaused
from postroad.telemetry.outbox import Outbox

_DRAIN_SECONDS = 30  # that consumers may need after the last publish
_KEY_SECONDS = 60  # that the test's key is valid for longer than the test


@dataclass(frozen=True, slots=True)
class Address:
    """Where gateways are called, and what shares their machine."""

    base_url: str
    environment: str

    @staticmethod
    def of(base_url: str, *, workers: int, is_local: bool) -> "Address":
        processors = f"{os.cpu_count() or 1} processor{'s' if (os.cpu_count() or 1) > 1 else ''}"
        if not is_local:
            return Address(base_url, f"The load generator runs on a machine with {processors} and calls {base_url}.")
        gateways = f"{workers} gateway worker{'s' if workers > 1 else ''}"
        return Address(base_url, f"The load generator, {gateways} and the engine share a machine with {processors}.")


class LoadTestRunner:
    """Each test has a key of its own, which may publish to and consume from its queue, and expires soon after it."""

    def __init__(
        self,
        results: ReplicatedTable[ResultsRecord],
        tasks: ReplicatedTable[TaskRecord],
        keys: KeyService,
        identities: IdentityCache,
        lifecycle: QueueLifecycle,
        stats: QueueStatsReader,
        outbox: Outbox,
        clock: Clock,
        limits: LoadTestLimits,
        address: Callable[[], Address],
    ) -> None:
        self._results, self._tasks, self._keys, self._identities = results, tasks, keys, identities
        self._lifecycle, self._stats, self._outbox, self._clock = lifecycle, stats, outbox, clock
        self._limits, self.address = limits, address
        self._turn = asyncio.Lock()

    async def run(self, task: TaskContext) -> None:
        """Raises PreconditionFailed if the process that ran the test before has ended: a test cannot be continued."""
        record = task.record
        if record.position:
            await self.clean_up(record)
            raise PreconditionFailed("the test was interrupted: the process that ran it has ended")
        async with self._turn:
            task.check()
            await task.save(1, record.progress)
            measurement = Measurement()
            outcome = "failed"
            try:
                await self._run(task, wanted_of(record), measurement)
                outcome = "done"
            except (TaskCancelled, TaskPaused) as stop:
                outcome = "cancelled"
                raise TaskCancelled from stop  # a test cannot be paused
            finally:
                await self._end(record, measurement, outcome)

    async def _run(self, task: TaskContext, wanted: NewLoadTest, measurement: Measurement) -> None:
        record, address = task.record, self.address()
        queue, rate, context = queue_of(wanted, record.id), rate_of(wanted, self._limits), _context(record)
        if wanted.queue is None:
            await self._lifecycle.put(context, queue, None)
        text = await self._add_key(record, wanted, queue)
        self._outbox.record(context, LoadTestStarted(test=record.id, queue=queue, rate_per_second=rate, seconds=wanted.seconds))
        load = HttpLoad(Target.of(address.base_url, text), record.id, queue, wanted, rate, measurement)
        load.start()
        try:
            await self._measure(task, wanted, load, measurement, queue, address.environment)
        finally:
            await load.stop()

    async def _measure(
        self,
        task: TaskContext,
        wanted: NewLoadTest,
        load: HttpLoad,
        measurement: Measurement,
        queue: str,
        environment: str,
    ) -> None:
        """Store a point every second, until all is published and consumed."""
        loop, points = asyncio.get_running_loop(), list[LoadTestPoint]()
        started, second = loop.time(), 0
        while True:
            await asyncio.sleep(max(0.0, started + second + 1 - loop.time()))
            load.check()
            due = wanted.rate_per_second if second < wanted.seconds else 0
            points.append(measurement.end_second(second, due, await self._waiting(task.record.tenant, queue)))
            totals = measurement.totals(min(loop.time() - started, wanted.seconds))
            await self._store(task.record, ResultsRecord(environment=environment, points=tuple(points), totals=totals))
            progress = Progress(total=task.record.progress.total, moved=totals.published, failed=measurement.errors.total())
            await task.save(second + 2, progress)
            self._check_starter(task.record)
            second += 1
            is_drained = not wanted.consumers or measurement.consumed >= measurement.published
            if second >= wanted.seconds and not load.is_publishing and is_drained:
                return
            if second >= wanted.seconds + _DRAIN_SECONDS:
                return

    async def _waiting(self, tenant: str, queue: str) -> int | None:
        found = self._lifecycle.cached(tenant, queue)
        if found is None:
            return None
        try:
            stats = await self._stats.sample(found, has_dead_letters=False)
        except PostroadError:
            return None
        return stats.ready + stats.leased + stats.retrying

    async def _store(self, record: TaskRecord, results: ResultsRecord) -> None:
        if await self._results.change(record.key, lambda _: results, ttl_seconds=KEEP_SECONDS) is None:
            with contextlib.suppress(Conflict):
                await self._results.create(record.key, results, ttl_seconds=KEEP_SECONDS)

    async def _add_key(self, record: TaskRecord, wanted: NewLoadTest, queue: str) -> str:
        """The text of the test's key."""
        starter, now = self._starter(record), self._clock()
        text = new_key(TENANT_PREFIX)
        key = key_record(
            text,
            record.tenant,
            _key_name(record),
            (Scope.PUBLISH, Scope.CONSUME),
            now,
            allowed_queues=(queue,),
            allowed_topics=(),
            allowed_buckets=(),
            allowed_streams=(),
            allowed_services=(),
            expires_at_ms=now + (wanted.seconds + _DRAIN_SECONDS + _KEY_SECONDS) * 1000,
            created_by=record.created_by,
            max_requests_per_second=starter.max_requests_per_second,
        )
        await self._keys.add(key)
        return text

    def _starter(self, record: TaskRecord) -> KeyRecord:
        found = self._identities.keys.get(record.created_by)
        if found is None or not found.is_active(self._clock()):
            raise PreconditionFailed("the key that started the test is not valid any more")
        return found

    def _check_starter(self, record: TaskRecord) -> None:
        """Raises PreconditionFailed: what a key has started ends with it."""
        self._starter(record)

    async def _end(self, record: TaskRecord, measurement: Measurement, outcome: str) -> None:
        context, totals = _context(record), measurement.totals(1)
        ended = LoadTestEnded(
            test=record.id,
            queue=queue_of(wanted_of(record), record.id),
            outcome=outcome,
            published=totals.published,
            consumed=totals.consumed,
            errors=measurement.errors.total(),
            latency_ms=totals.p99_ms,
        )
        self._outbox.record(context, ended)
        metrics.ended.labels(outcome).inc()
        metrics.published.add(record.tenant, totals.published)
        await self.clean_up(record)

    async def clean_up(self, record: TaskRecord) -> None:
        """Delete the key of a test, and its queue if it is its own. May be repeated. Raises EngineUnavailable."""
        wanted = wanted_of(record)
        queue = queue_of(wanted, record.id)
        for key in list(self._identities.keys_of(record.tenant)):
            if key.name == _key_name(record) and key.created_by == record.created_by:
                await self._keys.remove(key.id)
        if wanted.queue is None and self._lifecycle.cached(record.tenant, queue) is not None:
            with contextlib.suppress(QueueNotFound, Conflict):
                await self._lifecycle.delete(_context(record), queue)

    async def clean_up_all(self) -> None:
        """Clean up after tests whose process was killed, once their tasks have ended."""
        for key in list(self._tasks.keys_under()):
            record = self._tasks.get(key)
            if record is not None and record.kind == LOAD_TEST and record.state.is_final:
                await self.clean_up(record)


def _key_name(record: TaskRecord) -> str:
    return f"load test {record.id[-12:]}"


def _context(record: TaskRecord) -> RequestContext:
    """The request that started the test."""
    return RequestContext(Caller(record.tenant, record.created_by, frozenset({Scope.ADMIN})), record.request_id)
