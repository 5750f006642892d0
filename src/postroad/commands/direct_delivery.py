"""Delivery of a command that one write stores: its message, then its outcome event, in callbacks, without a task."""

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

from postroad.api.commands import CommandAccepted, DeliveryFailure, DeliveryFull
from postroad.api.queues import QueueNotFound
from postroad.commands.arrival import Arrival, CommandIds, Decision, ids_of, message_of
from postroad.commands.dedupe import first_event
from postroad.commands.limiter import Admission, Limiter
from postroad.commands.outcome_recorder import OutcomeRecorder
from postroad.commands.records import RouteRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import KnownRoute
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.shield import Accepted
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineFull, EngineRefused, EngineUnavailable, InvalidRequest
from postroad.kernel.identity import Caller, Scope
from postroad.queues.message_delivery import OnDelivered
from postroad.queues.message_writes import Delivered, SinglePublish
from postroad.queues.publishing import Publisher
from postroad.tracing.messaging import describe, ending, publishing

OnDispatched = Callable[[CommandAccepted | Exception], None]


class DirectCommand(NamedTuple):
    """A command that is to be delivered by a route, and its message."""

    arrival: Arrival
    command: Accepted
    decision: Decision
    route: KnownRoute
    message: SinglePublish
    ids: CommandIds


class DirectDelivery:
    def __init__(
        self,
        cache: RegistryCache,
        publisher: Publisher,
        outcomes: OutcomeRecorder,
        limiter: Limiter,
        auditor: RevocationAuditor,
        clock: Clock,
    ) -> None:
        self._cache, self._publisher, self._outcomes = cache, publisher, outcomes
        self._limiter, self._auditor, self._clock = limiter, auditor, clock
        self._failing: set[asyncio.Task[None]] = set()

    def prepare(self, arrival: Arrival, command: Accepted, decision: Decision, route: KnownRoute) -> DirectCommand | None:
        """None for a command that needs a marker, or a queue that needs more than one write. No effect."""
        record = route.record
        if record.dedupe_mode == "strict" or arrival.replay is not None:
            return None
        context, ids = delivery_context(arrival, record), ids_of(arrival, command)
        message = message_of(arrival, command, record, decision.path, ids, context.traceparent)
        if context.span is not None:
            describe(context.span, message.id, message.job, len(bytes(message.payload)))
        try:
            single = self._publisher.prepare_delivery(context, record.queue, message)
        except InvalidRequest:
            return None
        return None if single is None else DirectCommand(arrival, command, decision, route, single, ids)

    def start(self, direct: DirectCommand, admission: Admission, on_dispatched: OnDispatched) -> None:
        """Call `on_dispatched` once the outcome is durable, later; with the errors of `Dispatcher.dispatch`. Does not raise."""
        on_stored: OnDelivered = partial(self._on_stored, direct, admission, on_dispatched)
        span = direct.message.context.span
        if span is not None:
            on_stored = ending(span, on_stored)
        try:
            # Without telemetry an error of the outcome counts as delivered, so it must not be that of the message.
            is_synced = not self._outcomes.needs_telemetry
            self._publisher.store_delivery(direct.message, on_stored, is_synced=is_synced)
        except Exception as problem:  # not at once: callers expect the call later
            asyncio.get_running_loop().call_soon(on_stored, problem)

    def _on_stored(
        self, direct: DirectCommand, admission: Admission, on_dispatched: OnDispatched, outcome: Delivered | Exception
    ) -> None:
        if isinstance(outcome, Exception):
            self._fail(direct, admission, on_dispatched, outcome)
            return
        arrival, command, decision, route, _, ids = direct
        try:
            audit_grant(self._auditor, self._cache, arrival, command, route.record, self._clock())
            event = first_event(ids, decision, admission, elapsed_ms(arrival), None)
            on_recorded = partial(self._on_recorded, direct, outcome.message_id, on_dispatched)
            self._outcomes.delivered_callback(arrival, command, decision, route.record, outcome, event, ids.archived, on_recorded)
        except Exception as error:  # a bug: the caller must not wait for ever
            on_dispatched(error)

    def _on_recorded(
        self, direct: DirectCommand, message_id: str, on_dispatched: OnDispatched, problem: EngineUnavailable | None
    ) -> None:
        if problem is not None:
            on_dispatched(problem)
            return
        if direct.decision.is_stale:
            self._cache.poll_soon()
        path = direct.decision.path
        on_dispatched(CommandAccepted(command_id=direct.command.command_id, message_id=message_id, path=path))

    def _fail(self, direct: DirectCommand, admission: Admission, on_dispatched: OnDispatched, error: Exception) -> None:
        problem = delivery_problem(error)
        if problem is None:
            on_dispatched(error)
            return
        self._limiter.release(direct.route, direct.arrival.sender.source, admission)
        task = asyncio.get_running_loop().create_task(self._record_failure(direct, problem, on_dispatched))
        self._failing.add(task)
        task.add_done_callback(self._failing.discard)

    async def _record_failure(self, direct: DirectCommand, problem: DeliveryFailure, on_dispatched: OnDispatched) -> None:
        try:
            outcome: Exception = await self._outcomes.failed(direct.arrival, direct.command, direct.decision, problem)
        except Exception as error:
            outcome = error
        on_dispatched(outcome)


def delivery_context(arrival: Arrival, record: RouteRecord) -> RequestContext:
    """The context of the message: the tenant is that of the route, the span one of its own, which the caller must end."""
    parent = arrival.context.span
    context = RequestContext(_caller(record.tenant), arrival.context.request_id, traceparent=arrival.context.traceparent)
    return context if parent is None else publishing(context, parent, record.queue)[0]


@lru_cache(maxsize=1024)
def _caller(tenant: str) -> Caller:
    return Caller(tenant, "", frozenset({Scope.PUBLISH}), name="command")


def delivery_problem(error: Exception) -> DeliveryFailure | None:
    """The outcome of a command whose message was refused; None if it is not known whether it is stored, or it may be repeated."""
    if isinstance(error, QueueNotFound):
        problem = DeliveryFailure("the queue of the route does not exist")
    elif isinstance(error, EngineFull):
        problem = DeliveryFull("the queue of the route, or the storage of its tenant, is full", retry_after=5)
    elif isinstance(error, InvalidRequest | EngineRefused):
        problem = DeliveryFailure(f"the queue of the route refuses the command: {error.code}")
    else:
        return None
    problem.__cause__ = error
    return problem


def audit_grant(
    auditor: RevocationAuditor, cache: RegistryCache, arrival: Arrival, command: Accepted, used: RouteRecord, now_ms: int
) -> None:
    """Remember the dispatch, and compare it with a revocation that arrived meanwhile."""
    auditor.record(used, arrival.sender.source, now_ms)
    current = cache.view.route(command.target_tenant, command.target_service, command.name)
    if current is not None and current.record is not used:
        auditor.check(current.record, current)


def elapsed_ms(arrival: Arrival) -> float:
    return round((time.perf_counter() - arrival.started) * 1000, 3)
