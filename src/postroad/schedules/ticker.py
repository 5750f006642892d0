"""The ticker publishes the message of every tick, exactly once. It runs in the leader of the control role.

A tick is first claimed: the record's position moves to it, by compare-and-set. Then its message is published with the tick as
its number in the schedule's sequence (`Publisher.publish_numbered`), which stores it at most once, for ever. So a claim may be
published again by any process at any time: a new leader does that with every claim that it has not published itself.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Callable

import msgspec
import structlog

from postroad.api.schedules import ScheduleError
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.backoff import Backoff
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.event import Event
from postroad.kernel.identity import Caller, Scope
from postroad.queues.publishing import Publisher
from postroad.schedules import metrics
from postroad.schedules.events import ScheduleFailed, ScheduleFired, ScheduleMissed
from postroad.schedules.records import ScheduleRecord, without_claim
from postroad.schedules.rules import CatchUpLimits, due_tick, is_superseded, message_of
from postroad.telemetry.outbox import Outbox

_CONCURRENCY = 64
_POLL_SECONDS = 1.0  # the engine's clock may be corrected while the ticker waits for a tick
_CONFLICT_MS = 50
_NOT_SERVED_MS = 5_000
_RETRIES = Backoff(0.5, 30.0)

log = structlog.get_logger("postroad.schedules")


class Ticker:
    def __init__(
        self,
        table: ReplicatedTable[ScheduleRecord],
        publisher: Publisher,
        outbox: Outbox,
        clock: Clock,
        limits: CatchUpLimits,
        *,
        is_served: Callable[[str], bool],
    ) -> None:
        self._table, self._publisher, self._outbox, self._clock, self._limits = table, publisher, outbox, clock, limits
        self._is_served = is_served
        self._published: dict[str, tuple[str, int]] = {}  # incarnation and tick that this process knows to be published
        self._failures: dict[str, int] = {}
        self._agenda: list[tuple[int, str]] = []  # a heap; an entry that `_due_ms` does not confirm is outdated
        self._due_ms: dict[str, int] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._is_leading = False
        table.on_change(self._on_change)

    async def run(self) -> None:
        """Publish ticks until cancelled."""
        self._is_leading = True
        for key in self._table.keys_under():
            self._plan(key)
        try:
            while True:
                self._changed.clear()
                self._start_due()
                await self._wait()
        finally:
            self._is_leading = False
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            for state in (self._published, self._failures, self._agenda, self._due_ms, self._running):
                state.clear()

    def _on_change(self, key: str, record: ScheduleRecord | None) -> None:
        if record is None:
            self._published.pop(key, None)
            self._failures.pop(key, None)
        if self._is_leading and key not in self._running:
            self._plan(key)
            self._changed.set()

    def _plan(self, key: str, *, delay_ms: int = 0) -> None:
        """Enter the time of the schedule's next step into the agenda."""
        record = self._table.get(key)
        earliest = self._clock() + delay_ms
        due = None if record is None else earliest if self._has_open_claim(record) else record.next_tick_ms
        if due is None:
            self._due_ms.pop(key, None)
        elif self._due_ms.get(key) != due:
            self._due_ms[key] = max(due, earliest) if delay_ms else due
            heapq.heappush(self._agenda, (self._due_ms[key], key))

    def _has_open_claim(self, record: ScheduleRecord) -> bool:
        return record.claimed_ms is not None and self._published.get(record.key) != (record.incarnation, record.claimed_ms)

    async def _wait(self) -> None:
        """Until the next tick, a change, or the end of a step."""
        seconds = _POLL_SECONDS
        if self._agenda and len(self._running) < _CONCURRENCY:
            seconds = min(seconds, max(0.0, (self._agenda[0][0] - self._clock()) / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _start_due(self) -> None:
        now = self._clock()
        while self._agenda and self._agenda[0][0] <= now and len(self._running) < _CONCURRENCY:
            due, key = heapq.heappop(self._agenda)
            if self._due_ms.get(key) == due and key not in self._running:
                del self._due_ms[key]
                self._running[key] = asyncio.create_task(self._step(key))

    async def _step(self, key: str) -> None:
        delay_ms = 0
        try:
            if not self._is_served(key.partition(".")[0]):  # disabled tenants
                delay_ms = _NOT_SERVED_MS
                return
            await self.fire(key)
            self._failures.pop(key, None)
        except Conflict:  # the record was changed at the same time, and the table will have the change in a moment
            delay_ms = _CONFLICT_MS
        except PostroadError as problem:
            self._failures[key] = self._failures.get(key, 0) + 1
            delay_ms = int(_RETRIES.delay(self._failures[key]) * 1000)
            log.warning("schedule_failed", schedule=key, code=problem.code, detail=problem.detail)
        except Exception as exc:  # a bug must not end the ticks of the other schedules
            delay_ms = int(_RETRIES.max_seconds * 1000)
            log.error("schedule_crashed", schedule=key, error=repr(exc))
        finally:
            self._running.pop(key, None)
            if self._is_leading:
                self._plan(key, delay_ms=delay_ms)
                self._changed.set()

    async def fire(self, key: str) -> None:
        """Publish the claimed tick of a schedule or, if it has none, claim the next one that is due and publish it.

        Raises Conflict if the record was changed at the same time, and like `Publisher.publish_numbered`.
        """
        record, revision = self._table.get(key), self._table.revision(key)
        if record is None:
            return
        now, policy = self._clock(), record.settings.catch_up
        if record.claimed_ms is not None and self._has_open_claim(record):
            if not is_superseded(record.timing, record.claimed_ms, now, policy, self._limits):
                await self._publish(record, record.claimed_ms)
                return
            await self._table.update(key, without_claim(record), revision)
            self._report_missed(record, 1, record.claimed_ms)
            return
        if record.is_paused:
            return
        due = due_tick(record.timing, record.position_ms, now, policy, self._limits)
        if due.position_ms == record.position_ms:
            return
        claimed = msgspec.structs.replace(
            record,
            position_ms=due.position_ms,
            claimed_ms=due.tick_ms,
            missed_count=record.missed_count + due.missed,
            error=None,
        )
        if due.tick_ms is not None:
            claimed = msgspec.structs.replace(
                claimed,
                fired_count=record.fired_count + 1,
                last_run_ms=due.tick_ms,
                previous_run_ms=record.last_run_ms,
            )
        await self._table.update(key, claimed, revision)
        self._report_missed(record, due.missed, due.position_ms)
        if due.tick_ms is not None:
            await self._publish(claimed, due.tick_ms)

    async def _publish(self, record: ScheduleRecord, tick_ms: int) -> None:
        settings = record.settings
        context = RequestContext(Caller(record.tenant, "", frozenset({Scope.PUBLISH}), name="schedule"))
        message = message_of(settings, record.name, tick_ms)
        try:
            is_new = await self._publisher.publish_numbered(context, settings.queue, message, record.incarnation, tick_ms)
        except PostroadError as problem:
            metrics.failures.labels(problem.code).inc()
            await self._store_error(record, tick_ms, problem)
            raise
        self._published[record.key] = (record.incarnation, tick_ms)
        if is_new:
            lag_ms = max(0, self._clock() - tick_ms)
            metrics.fired.add(record.tenant)
            metrics.lag.observe(lag_ms / 1000)
            self._report(
                record, ScheduleFired(schedule=record.name, queue=settings.queue, scheduled_at=rfc3339(tick_ms), lag_ms=lag_ms)
            )
        if record.error is not None:
            await self._change_claim(record, error=None)

    async def _store_error(self, record: ScheduleRecord, tick_ms: int, problem: PostroadError) -> None:
        """Show the error in the schedule, once for all attempts with the same one. An unavailable engine shows nothing."""
        if record.error is not None and record.error.code == problem.code:
            return
        error = ScheduleError(code=problem.code, detail=problem.detail or problem.title, since=rfc3339(self._clock()))
        with contextlib.suppress(PostroadError):
            await self._change_claim(record, error=error)
        event = ScheduleFailed(
            schedule=record.name, queue=record.settings.queue, scheduled_at=rfc3339(tick_ms), code=problem.code
        )
        self._report(record, event)

    async def _change_claim(self, record: ScheduleRecord, *, error: ScheduleError | None) -> None:
        """Set the error, unless the schedule has gone on."""
        now, revision = self._table.get(record.key), self._table.revision(record.key)
        if now is not None and (now.incarnation, now.claimed_ms) == (record.incarnation, record.claimed_ms):
            with contextlib.suppress(Conflict):
                await self._table.update(record.key, msgspec.structs.replace(now, error=error), revision)

    def _report_missed(self, record: ScheduleRecord, count: int, until_ms: int) -> None:
        if count:
            metrics.missed.add(record.tenant, count)
            self._report(
                record, ScheduleMissed(schedule=record.name, queue=record.settings.queue, count=count, until=rfc3339(until_ms))
            )

    def _report(self, record: ScheduleRecord, event: Event) -> None:
        self._outbox.record(RequestContext(Caller(record.tenant, "", frozenset())), event)
