"""Watches the queues behind command routes, in the leader of the control role. The sampler of queues feeds it.

A change of a route's health is an event of its owner, then a record that every gateway follows. A process that is killed in
between repeats the event.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from postroad.commands.records import RouteRecord
from postroad.commands.rules import source_of
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict
from postroad.kernel.names import escape, unescape
from postroad.queues.events import QueueSampled
from postroad.queues.records import QueueRecord
from postroad.route_health.events import RouteHealthEvent, RouteRecovered, RouteUnhealthy
from postroad.route_health.records import RouteHealthRecord
from postroad.route_health.rules import (
    TREND_SAMPLES,
    Assessment,
    HealthSample,
    QueueCondition,
    RouteState,
    assess,
    next_state,
)
from postroad.telemetry.outbox import Outbox

_MAX_AGE_MS = 660_000  # an idle queue is sampled every five minutes
_SLICE = 500  # routes that are assessed without a pause
_CONDITION_PROBLEMS = frozenset({"missing-queue", "paused", "not-dead-lettering", "full"})

log = structlog.get_logger("postroad.route_health")


class _QueueHistory:
    """The last samples of a queue, and how many messages it has in all."""

    __slots__ = ("messages", "round", "samples")

    def __init__(self) -> None:
        self.samples: deque[HealthSample] = deque(maxlen=TREND_SAMPLES + 1)
        self.messages = 0
        self.round = 0


class _Found(NamedTuple):
    assessment: Assessment
    drain_seconds: int
    latest: HealthSample | None
    is_new: bool


class RouteHealthMonitor:
    """`has_storage` returns whether a tenant may store more messages."""

    def __init__(
        self,
        routes: ReplicatedTable[RouteRecord],
        queues: ReplicatedTable[QueueRecord],
        health: ReplicatedTable[RouteHealthRecord],
        outbox: Outbox,
        clock: Clock,
        has_storage: Callable[[str], bool] = lambda _tenant: True,
    ) -> None:
        self._routes, self._queues, self._health = routes, queues, health
        self._outbox, self._clock, self._has_storage = outbox, clock, has_storage
        self._histories: dict[tuple[str, str], _QueueHistory] = {}
        self._states: dict[str, RouteState] = {}
        self._round = 0

    def reset(self) -> None:
        """Forget the samples, when a process begins to lead: the records have the states."""
        self._histories.clear()
        self._states.clear()

    async def observe(self, samples: Iterable[QueueSampled]) -> int:
        """Add the samples of one round and assess all routes; return how many changed. Raises EngineUnavailable."""
        self._round += 1
        now = self._clock()
        for one in samples:
            history = self._histories.setdefault((one.tenant, one.queue), _QueueHistory())
            history.samples.append(health_sample(one, now))
            history.messages = one.ready + one.leased + one.retrying + one.delayed
            history.round = self._round
        changed, monitored = 0, set[tuple[str, str]]()
        for count, key in enumerate(list(self._routes.keys_under()), 1):
            route = self._routes.get(key)
            if route is not None:
                monitored.add((route.tenant, route.queue))
                changed += await self._assess(key, route, now)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        await self._forget_missing(monitored)
        return changed

    async def _assess(self, key: str, route: RouteRecord, now: int) -> bool:
        record = self._health.get(key)
        state = self._states.get(key) or _state_of(record)
        found = self._find(route, now)
        if not found.is_new and not _is_by_condition(state, found):
            return False
        after = next_state(state, found.assessment, now)
        if (after.status, after.problems) != (state.status, state.problems):
            await self._write(key, route, record, state, after, found)
            self._states[key] = after
            return True
        self._states[key] = after
        return False

    def _find(self, route: RouteRecord, now: int) -> _Found:
        queue = self._queues.get(f"{route.tenant}.{escape(route.queue)}")
        history = self._histories.get((route.tenant, route.queue))
        samples: Sequence[HealthSample] = list(history.samples) if history is not None else []
        latest = samples[-1] if samples else None
        condition = self._condition(queue, 0 if history is None else history.messages)
        drain_seconds = route.drain_seconds(None if queue is None else queue.settings.expected_drain_seconds)
        found = assess(samples, latest, drain_seconds, condition, now_ms=now, max_age_ms=_MAX_AGE_MS)
        return _Found(found, drain_seconds, latest, history is not None and history.round == self._round)

    def _condition(self, queue: QueueRecord | None, messages: int) -> QueueCondition:
        if queue is None or queue.state is not RecordState.READY:
            return QueueCondition(exists=queue is not None and queue.state is not RecordState.DELETING)
        limit = queue.settings.max_messages
        is_full = bool(limit and messages >= limit) or not self._has_storage(queue.tenant)
        return QueueCondition(True, queue.is_paused, queue.settings.max_attempts > 0, is_full)

    async def _write(
        self,
        key: str,
        route: RouteRecord,
        record: RouteHealthRecord | None,
        before: RouteState,
        after: RouteState,
        found: _Found,
    ) -> None:
        event = _event(route, before, after, found)
        if event is not None:
            await self._outbox.commit(None, event)
            log.info("route_health_changed", target=route.target, command=route.command, status=after.status)
        changed = RouteHealthRecord(
            queue=route.queue,
            status=after.status,
            problems=after.problems,
            since_ms=after.since_ms,
            ready=0 if found.latest is None else int(found.latest.ready),
            oldest_age_ms=None if found.latest is None else found.latest.oldest_age_ms,
        )
        try:
            if record is None:
                await self._health.create(key, changed)
            else:
                await self._health.update(key, changed, self._health.revision(key))
        except Conflict:  # another leader: its record counts, and the next round compares with it
            self._health.forget(key)
            await self._health.fetch(key)

    async def _forget_missing(self, monitored: set[tuple[str, str]]) -> None:
        self._histories = {key: one for key, one in self._histories.items() if key in monitored}
        for key in [key for key in self._health.keys_under() if self._routes.get(key) is None]:
            record = self._health.get(key)
            if record is not None and record.status == "unhealthy":
                await self._outbox.commit(None, _deleted_event(key, record, self._clock()))
            self._states.pop(key, None)
            await self._health.delete(key)


def _state_of(record: RouteHealthRecord | None) -> RouteState:
    return RouteState() if record is None else RouteState(record.status, record.problems, record.since_ms)


def _is_by_condition(state: RouteState, found: _Found) -> bool:
    """The assessment does not depend on a new sample: each round counts."""
    problems = (*state.problems, *found.assessment.problems)
    return found.assessment.status == "unknown" or any(one in _CONDITION_PROBLEMS for one in problems)


def health_sample(one: QueueSampled, now_ms: int) -> HealthSample:
    return HealthSample(
        at_ms=now_ms,
        ready=one.ready,
        leased=one.leased,
        retrying=one.retrying,
        waiting=one.waiting,
        settled=one.out_per_second * one.seconds,
        oldest_age_ms=one.oldest_age_ms,
    )


def _deleted_event(key: str, record: RouteHealthRecord, now_ms: int) -> RouteRecovered:
    tenant, service, command = (unescape(part) for part in key.split("."))
    return RouteRecovered(
        tenant=tenant,
        service=service,
        target=source_of(tenant, service),
        command_name=command,
        queue=record.queue,
        unhealthy_seconds=round((now_ms - record.since_ms) / 1000, 3),
        deleted=True,
    )


def _event(route: RouteRecord, before: RouteState, after: RouteState, found: _Found) -> RouteHealthEvent | None:
    """None for a change that is no news to the owner: a new route, or other problems of an unhealthy one."""
    latest = found.latest
    names: dict[str, Any] = {
        "tenant": route.tenant,
        "service": route.service,
        "target": route.target,
        "command_name": route.command,
        "queue": route.queue,
    }
    if after.status == "unhealthy" and before.status != "unhealthy":
        return RouteUnhealthy(
            **names,
            problems=list(after.problems),
            ready=0 if latest is None else int(latest.ready),
            oldest_age_ms=None if latest is None else latest.oldest_age_ms,
            expected_drain_seconds=found.drain_seconds,
        )
    if before.status == "unhealthy" and after.status == "healthy":
        return RouteRecovered(**names, unhealthy_seconds=round((after.since_ms - before.since_ms) / 1000, 3))
    return None
