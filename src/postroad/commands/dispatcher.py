"""Dispatch of commands: shield, fast stage, slow stage, delivery, outcome event.

The outcome event is durable before the response. The ids of the delivered message and of its event follow from the command, so an
attempt that is repeated after a lost response has the same ones, and the engine stores the message once for a minute.
"""

import asyncio
import difflib
from functools import partial

import msgspec

from postroad.api.command_limits import CommandMismatch, FairnessViolation, RateLimitExceeded
from postroad.api.commands import (
    AclDenied,
    CommandAccepted,
    CommandInvalid,
    DeliveryFailure,
    RouteMissing,
    SourceRefused,
)
from postroad.api.queues import IdempotencyMismatch
from postroad.commands import metrics, shield
from postroad.commands.arrival import Arrival, Decision, ids_of, message_of
from postroad.commands.assessment import Assessed, Assessor, Beginning
from postroad.commands.ban_view import BanView
from postroad.commands.dedupe import body_hash, event_of, first_event, marker_of
from postroad.commands.direct_delivery import (
    DirectCommand,
    DirectDelivery,
    OnDispatched,
    audit_grant,
    delivery_context,
    delivery_problem,
    elapsed_ms,
)
from postroad.commands.fast import Dispatch, Escalate, Escalation, Repeat
from postroad.commands.limit_records import BanRecord
from postroad.commands.limiter import Admission, Limiter
from postroad.commands.outcome_recorder import OutcomeRecorder
from postroad.commands.records import RouteRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import KnownRoute
from postroad.commands.replay_mark import ReplayMark
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.rules import Phase
from postroad.commands.seen_commands import FirstDelivery
from postroad.commands.shield import Accepted, Invalid, ShieldPolicy
from postroad.commands.warm_state import WarmState
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable, PostroadError, Unavailable
from postroad.kernel.futures import resolve
from postroad.kernel.spans import NO_SPAN
from postroad.queues.message_writes import Delivered, DeliveryMarker
from postroad.queues.publishing import Publisher
from postroad.queues.records import StoredMessage

_WITH_EVENT = (
    CommandInvalid,
    CommandMismatch,
    AclDenied,
    RouteMissing,
    RateLimitExceeded,
    FairnessViolation,
    DeliveryFailure,
)
_NAMES_MAX = 1000


class Dispatcher:
    def __init__(
        self,
        cache: RegistryCache,
        publisher: Publisher,
        outcomes: OutcomeRecorder,
        limiter: Limiter,
        warm: WarmState,
        bans: BanView,
        auditor: RevocationAuditor,
        tenant_settings: TenantSettingsStore,
        clock: Clock,
        policy: ShieldPolicy,
    ) -> None:
        self._cache, self._publisher, self.outcomes, self._limiter = cache, publisher, outcomes, limiter
        self._warm, self._auditor, self._clock = warm, auditor, clock
        self._bans = bans
        self._assessor = Assessor(cache, warm, bans, tenant_settings, clock, policy)
        self._direct = DirectDelivery(cache, publisher, outcomes, limiter, auditor, clock)
        self._tasks: set[asyncio.Task[None]] = set()

    async def dispatch(
        self, context: RequestContext, service: str, body: bytes, replay: ReplayMark | None = None
    ) -> CommandAccepted:
        """Deliver a command of the service and return its ids, once its outcome event is durable.

        A replay delivers a command once, however often it is dispatched; its checks are those of any command.
        Raises SourceRefused; CommandInvalid, CommandMismatch, AclDenied, RouteMissing, RateLimitExceeded, FairnessViolation,
        DeliveryFailure, each with its event; EngineUnavailable and Overloaded without an event: then the command may be sent
        again with the same id.
        """
        try:
            if self.outcomes.is_full:
                raise EngineUnavailable("too many events are waiting to be stored; the command was not delivered", retry_after=1)
            begun = self._assessor.begin(context, body, replay)
            assessed = self._assessor.assess(begun, service) or await self._assess_slowly(begun, service)
            return await self._finish(assessed)
        except PostroadError as problem:
            _count_problem(problem)
            raise

    # Without a task

    def prepare(self, context: RequestContext, service: str, body: bytes) -> Assessed | None:
        """A command whose sender is in memory and may send; None for others, which `dispatch` must serve. No effect.

        Raises SourceRefused.
        """
        if self.outcomes.is_full:
            return None
        assessed = self._assessor.assess(self._assessor.begin(context, body), service)
        return None if assessed is None or isinstance(assessed.command, Invalid) else assessed

    def start(self, assessed: Assessed, on_dispatched: OnDispatched) -> None:
        """Like `dispatch`, for what `prepare` returned; calls `on_dispatched` later. A command that memory can decide and one
        write stores needs no task."""
        direct = self._prepare_direct(assessed)
        if direct is not None:
            arrival = assessed.arrival
            admission = self._limiter.admit_warm(direct.route, arrival.sender.source, arrival.received_at_ms)
            if admission is not None:
                _count_uses(assessed)
                self._direct.start(direct, admission, partial(_end, on_dispatched))
                return
        task = asyncio.get_running_loop().create_task(self._finish_in_task(assessed, on_dispatched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _prepare_direct(self, assessed: Assessed) -> DirectCommand | None:
        found, command = assessed.found, assessed.command
        if not isinstance(found, Dispatch) or isinstance(command, Invalid) or assessed.arrival.escalated is not None:
            return None
        decision = Decision("fast", None, route=found.route, is_stale=found.phases.is_stale)
        return self._direct.prepare(assessed.arrival, command, decision, found.route)

    async def _finish_in_task(self, assessed: Assessed, on_dispatched: OnDispatched) -> None:
        try:
            outcome: CommandAccepted | Exception = await self._finish(assessed)
        except Exception as error:
            outcome = error
        _end(on_dispatched, outcome)

    async def _finish(self, assessed: Assessed) -> CommandAccepted:
        _count_uses(assessed)
        if isinstance(assessed.command, Invalid) and assessed.command.reason == "version-unknown":
            assessed = await self._with_newer_secrets(assessed)
        if isinstance(assessed.command, Invalid):
            raise await self.outcomes.refused(assessed.arrival, assessed.command)
        decision = await self._decide(assessed, assessed.command)
        return await self._deliver_or_fail(assessed.arrival, assessed.command, decision)

    # Sender

    async def _assess_slowly(self, begun: Beginning, service: str) -> Assessed:
        """Assess with the sender as the engine has it. Raises SourceRefused, EngineUnavailable."""
        is_expired = begun.secrets_phase is Phase.EXPIRED
        context = begun.context
        sender = await self._cache.sender(context.tenant, service, may_be_cached=not is_expired)
        trusted = self._assessor.check_trust(context.caller, service, sender)
        return self._assessor.inspect(begun, trusted, Escalation.CACHE_EXPIRED if is_expired else None)

    async def _with_newer_secrets(self, assessed: Assessed) -> Assessed:
        """A secret may have been rotated a moment ago."""
        sender = assessed.arrival.sender
        newer = await self._cache.sender(sender.tenant, sender.service, may_be_cached=True)
        if newer is None or newer is sender:
            return assessed
        return self._assessor.inspect(assessed.begun, newer, Escalation.CACHE_MISS)

    # Decision

    async def _decide(self, assessed: Assessed, command: Accepted) -> Decision:
        arrival, found = assessed.arrival, assessed.found
        if found is None:
            problem = None if assessed.ban is None else _banned(assessed.ban, arrival.received_at_ms)
            return Decision("fast", arrival.escalated, problem=problem)
        if isinstance(found, Invalid):
            return Decision("fast", arrival.escalated, problem=found)
        if isinstance(found, Repeat):
            return Decision("fast", arrival.escalated, route=found.route, first=found.first, is_stale=found.phases.is_stale)
        if isinstance(found, Dispatch) and arrival.escalated is None:
            return Decision("fast", None, route=found.route, is_stale=found.phases.is_stale)
        code = found.code if isinstance(found, Escalate) else arrival.escalated or Escalation.CACHE_MISS
        metrics.escalation(code.value).inc()
        if isinstance(found, Dispatch):
            return Decision("slow", code, route=found.route, is_stale=found.phases.is_stale)
        route = found.route or await self._cache.route(
            command.target_tenant,
            command.target_service,
            command.name,
            may_be_cached=code is Escalation.CACHE_MISS,
        )
        return self._decide_slowly(arrival, command, route, code)

    def _decide_slowly(self, arrival: Arrival, command: Accepted, route: KnownRoute | None, code: Escalation) -> Decision:
        """Decide by a route that the engine has just returned."""
        now, source = self._clock(), arrival.sender.source
        if route is None or not route.is_active(now):
            if command.target_tenant != arrival.sender.tenant:  # no hint at what other tenants have
                return Decision("slow", code, problem=_denied(source, command))
            return Decision("slow", code, problem=self._missing(arrival.sender.tenant, command))
        fault = shield.signature_fault(command, route)
        if fault is not None:
            return Decision("slow", code, problem=fault)
        if route.grant(source, now) is None:
            return Decision("slow", code, problem=_denied(source, command))
        return Decision("slow", code, route=route)

    def _missing(self, tenant: str, command: Accepted) -> RouteMissing:
        wanted = f"{command.target_service}/{command.name}"
        names = difflib.get_close_matches(wanted, self._cache.route_names(tenant, _NAMES_MAX), 3)
        hint = f"; similar: {', '.join(names)}" if names else ""
        return RouteMissing(f"{command.target_service} has no route for {command.name}{hint}")

    # Delivery

    async def _deliver_or_fail(self, arrival: Arrival, command: Accepted, decision: Decision) -> CommandAccepted:
        if isinstance(decision.problem, Invalid):
            raise await self.outcomes.refused(arrival, decision.problem)
        if decision.problem is not None or decision.route is None:
            problem = decision.problem or _denied(arrival.sender.source, command)
            raise await self.outcomes.failed(arrival, command, decision, problem)
        route, source = decision.route, arrival.sender.source
        if route.record.dedupe_mode == "strict":
            metrics.strict_commands.inc()
        if decision.first is not None:
            if decision.first.body != body_hash(command):
                raise await self._mismatch(arrival, command)
            await self.outcomes.duplicate(arrival, command, decision, route.record, decision.first.message_id, None)
            return _duplicate(command, decision, decision.first.message_id)
        try:
            admission = await self._admit(route, source, decision, arrival.received_at_ms)
        except (RateLimitExceeded, FairnessViolation) as problem:
            raise await self.outcomes.failed(arrival, command, decision, problem) from problem
        return await self._deliver(arrival, command, decision, route, admission)

    async def _admit(self, route: KnownRoute, source: str, decision: Decision, now_ms: int) -> Admission:
        """Raises RateLimitExceeded, FairnessViolation, EngineUnavailable."""
        if decision.path == "fast":
            admission = self._limiter.admit_warm(route, source, now_ms)
            if admission is not None:
                return admission
        return await self._limiter.admit(
            route,
            source,
            is_banned=self._is_warm_banned(route, source, now_ms),
            is_cold=decision.escalated is Escalation.COLD_ONLY,
            may_prefetch=decision.escalated is Escalation.TOKEN_REQUIRED,
        )

    def _is_warm_banned(self, route: KnownRoute, source: str, now_ms: int) -> bool:
        """Whatever made the command take the slow path: a sender's tenant can choose that itself."""
        if self._bans.find(source, *route.name, now_ms, kind="warm") is not None:
            return True
        return self._warm.fairness.is_banned(route.key, source, now_ms)

    async def _deliver(
        self, arrival: Arrival, command: Accepted, decision: Decision, route: KnownRoute, admission: Admission
    ) -> CommandAccepted:
        direct = None if admission.deliver_at_ms else self._direct.prepare(arrival, command, decision, route)
        if direct is not None:
            future: asyncio.Future[CommandAccepted] = asyncio.get_running_loop().create_future()
            self._direct.start(direct, admission, partial(resolve, future))
            return await future
        record, source, started_ms = route.record, arrival.sender.source, self._clock()
        context, ids = delivery_context(arrival, record), ids_of(arrival, command)
        message = message_of(arrival, command, record, decision.path, ids, context.traceparent)
        is_strict = record.dedupe_mode == "strict"
        event = first_event(ids, decision, admission, elapsed_ms(arrival), started_ms if is_strict else None)
        marker = marker_of(route, source, command, event) if is_strict else None
        delay_ms = max(0, admission.deliver_at_ms - message.at) if admission.deliver_at_ms else 0
        try:
            with context.span or NO_SPAN:
                delivered = await self._store(context, arrival, command, record, message, marker, delay_ms)
        except DeliveryFailure as problem:
            self._limiter.release(route, source, admission)
            raise await self.outcomes.failed(arrival, command, decision, problem) from problem
        except IdempotencyMismatch as problem:
            self._limiter.release(route, source, admission)
            raise await self._mismatch(arrival, command) from problem
        if marker is not None and delivered.is_duplicate and delivered.owner == marker.owner:
            self._limiter.release(route, source, admission)
            first = event_of(delivered.note)
            await self.outcomes.duplicate(arrival, command, decision, record, delivered.message_id, first)
            return _duplicate(command, decision, delivered.message_id)
        latency_ms = elapsed_ms(arrival)
        audit_grant(self._auditor, self._cache, arrival, command, record, self._clock())
        if not is_strict:  # the event of a strict one is in its marker already
            event = msgspec.structs.replace(event, latency_ms=latency_ms)
        await self.outcomes.delivered(arrival, command, decision, record, delivered.message_id, event, ids.archived, latency_ms)
        if marker is not None and arrival.replay is None:  # an interrupted replay repeats it: its own marker must decide
            first_delivery = FirstDelivery(delivered.message_id, marker.body, started_ms + marker.ttl_ms)
            self._warm.seen.add(route.key, source, command.command_id, first_delivery)
        if decision.is_stale:
            self._cache.poll_soon()
        return CommandAccepted(
            command_id=command.command_id,
            message_id=delivered.message_id,
            path=decision.path,
            deliver_at=rfc3339(admission.deliver_at_ms) if admission.deliver_at_ms else None,
        )

    async def _mismatch(self, arrival: Arrival, command: Accepted) -> PostroadError:
        detail = "the command id was used for another payload; use a new id for a new command"
        await self.outcomes.refused(
            arrival, Invalid("command-mismatch", detail, command.command_id, command.target, command.name)
        )
        return CommandMismatch(detail, extra={"reason": "command-mismatch"})

    async def _store(
        self,
        context: RequestContext,
        arrival: Arrival,
        command: Accepted,
        record: RouteRecord,
        message: StoredMessage,
        marker: DeliveryMarker | None,
        delay_ms: int,
    ) -> Delivered:
        """Raises DeliveryFailure, IdempotencyMismatch; EngineUnavailable, Overloaded."""
        replay = arrival.replay
        first = None if replay is None else replay.marker(arrival.sender.source, command.command_id)
        try:
            return await self._publisher.deliver(
                context, record.queue, message, delay_ms=delay_ms, first=first, marker=marker, awaits_event=False
            )
        except IdempotencyMismatch:
            raise
        except PostroadError as error:
            problem = delivery_problem(error)
            if problem is None:
                raise
            raise problem from error


def _end(on_dispatched: OnDispatched, outcome: CommandAccepted | Exception) -> None:
    if isinstance(outcome, PostroadError):
        _count_problem(outcome)
    on_dispatched(outcome)


def _count_problem(problem: PostroadError) -> None:
    """Count the problems that have no outcome event."""
    if isinstance(problem, SourceRefused):
        metrics.outcome("refused", "source-refused").inc()
    elif isinstance(problem, Unavailable) and not isinstance(problem, _WITH_EVENT):
        metrics.outcome("unavailable", problem.code).inc()


def _count_uses(assessed: Assessed) -> None:
    found = assessed.found
    if found is None or isinstance(found, Invalid):
        metrics.count_cache_uses(assessed.begun.secrets_phase, None, None)
    else:
        metrics.count_cache_uses(assessed.begun.secrets_phase, found.phases.routes, found.phases.grants)


def _denied(source: str, command: Accepted) -> AclDenied:
    return AclDenied(f"{command.target} has not granted {command.name} to {source}")


def _banned(ban: BanRecord, now_ms: int) -> FairnessViolation:
    left_ms = ban.expires_at_ms - now_ms
    return FairnessViolation(
        f"the sender is banned: {ban.reason}",
        retry_after=left_ms / 1000,
        extra={"retry_after_ms": left_ms, "throttle_until": rfc3339(ban.expires_at_ms)},
    )


def _duplicate(command: Accepted, decision: Decision, message_id: str) -> CommandAccepted:
    return CommandAccepted(command_id=command.command_id, message_id=message_id, path=decision.path, is_duplicate=True)
