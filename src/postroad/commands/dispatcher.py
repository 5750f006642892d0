"""Dispatch of commands: shield, fast stage, slow stage, delivery, outcome event.

The outcome event is durable before the response. The ids of the delivered message and of its event follow from the command, so an
attempt that is repeated after a lost response has the same ones, and the engine stores the message once for a minute.
"""

import difflib
import time
from dataclasses import dataclass

import msgspec

from postroad.api.commands import (
    ID_HEADER,
    NAME_HEADER,
    PATH_HEADER,
    SENT_AT_HEADER,
    SOURCE_HEADER,
    TARGET_HEADER,
    AclDenied,
    CommandAccepted,
    CommandInvalid,
    DeliveryFailure,
    DeliveryFull,
    DispatchPath,
    RouteMissing,
    SourceRefused,
)
from postroad.api.queues import QueueNotFound
from postroad.commands import fast, metrics, shield
from postroad.commands.events import CommandDelivered, CommandEvent, CommandFailed, CommandRefused
from postroad.commands.fast import CacheAges, Dispatch, Escalate, Escalation, Phases
from postroad.commands.records import RouteRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import KnownRoute, Sender
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.rules import Phase
from postroad.commands.sender_notices import SenderNotices
from postroad.commands.shield import Accepted, Invalid, ShieldPolicy
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import (
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    InvalidRequest,
    PostroadError,
    Unavailable,
)
from postroad.kernel.identity import Caller, Credential, Scope
from postroad.kernel.ids import derived_id
from postroad.queues.publishing import Publisher
from postroad.queues.records import StoredMessage
from postroad.telemetry.outbox import Outbox

_NAMES_MAX = 1000


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A command on its way: who sends it, when it arrived, and why it left the fast path."""

    context: RequestContext
    sender: Sender
    received_at_ms: int
    started: float
    escalated: Escalation | None


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the stages decided. `record` is the route to deliver by, else `problem` says why there is none."""

    path: DispatchPath
    escalated: Escalation | None
    record: RouteRecord | None = None
    problem: Invalid | AclDenied | RouteMissing | None = None
    is_stale: bool = False


class Dispatcher:
    def __init__(
        self,
        cache: RegistryCache,
        publisher: Publisher,
        outbox: Outbox,
        tenant_settings: TenantSettingsStore,
        notices: SenderNotices,
        auditor: RevocationAuditor,
        clock: Clock,
        policy: ShieldPolicy,
        *,
        needs_telemetry: bool,
    ) -> None:
        self._cache, self._publisher, self._outbox, self._tenant_settings = cache, publisher, outbox, tenant_settings
        self._notices, self._auditor, self._clock, self._policy = notices, auditor, clock, policy
        self._needs_telemetry = needs_telemetry

    async def dispatch(self, context: RequestContext, service: str, body: bytes) -> CommandAccepted:
        """Deliver a command of the service and return its ids, once its outcome event is durable.

        Raises SourceRefused; CommandInvalid, AclDenied, RouteMissing, DeliveryFailure, each with its event stored;
        EngineUnavailable and Overloaded without an event: then the command may be sent again with the same id.
        """
        try:
            return await self._dispatch(context, service, body)
        except (CommandInvalid, AclDenied, RouteMissing, DeliveryFailure):
            raise
        except SourceRefused:
            metrics.outcome("refused", "source-refused").inc()
            raise
        except Unavailable as problem:
            metrics.outcome("unavailable", problem.code).inc()
            raise

    async def _dispatch(self, context: RequestContext, service: str, body: bytes) -> CommandAccepted:
        started, now, ages = time.perf_counter(), self._clock(), self._cache.ages()
        if self._needs_telemetry and self._outbox.is_full:
            raise EngineUnavailable("too many events are waiting to be stored; the command was not delivered", retry_after=1)
        sender, escalated = await self._sender(context, service, ages)
        command = shield.inspect(body, sender, now, self._policy)
        if isinstance(command, Invalid) and command.reason == "version-unknown":  # perhaps rotated a moment ago
            fresh = await self._cache.sender(context.tenant, service, may_be_cached=True)
            if fresh is not None and fresh is not sender:
                sender, escalated = fresh, Escalation.CACHE_MISS
                command = shield.inspect(body, sender, now, self._policy)
        arrival = _Arrival(context, sender, now, started, escalated)
        if isinstance(command, Invalid):
            raise await self._refused(arrival, command)
        return await self._deliver_or_fail(arrival, command, await self._decide(arrival, command, ages))

    # Sender

    async def _sender(self, context: RequestContext, service: str, ages: CacheAges) -> tuple[Sender, Escalation | None]:
        """The sender, if it trusts the caller. Raises SourceRefused, EngineUnavailable."""
        phase = self._cache.policy.secrets.phase(ages.secrets)
        metrics.cache_use("secrets", phase.value).inc()
        sender = self._cache.view.sender(context.tenant, service)
        escalated: Escalation | None = None
        if phase is Phase.EXPIRED:
            escalated = Escalation.CACHE_EXPIRED
            sender = await self._cache.sender(context.tenant, service, may_be_cached=False)
        elif sender is None or context.caller.key_id not in sender.trusted_keys:  # perhaps registered a moment ago
            sender = await self._cache.sender(context.tenant, service, may_be_cached=True)
        self._check_trust(context.caller, service, sender)
        if sender is None:
            raise SourceRefused(f"the service {service[:64]!r} does not trust this key")
        return sender, escalated

    def _check_trust(self, caller: Caller, service: str, sender: Sender | None) -> None:
        """Raises SourceRefused; with the same detail whether the service exists or not."""
        if caller.credential is Credential.KEY and not self._tenant_settings.of(caller.tenant).commands_by_key:
            raise SourceRefused("the tenant's setting `commandsByKey` is off: send commands with an emit token")
        is_kind = caller.credential in (Credential.KEY, Credential.EMIT) and caller.service in (None, service)
        is_trusted = sender is not None and caller.key_id in sender.trusted_keys and caller.may_use("service", service)
        if not is_kind or not is_trusted:
            raise SourceRefused(f"the service {service[:64]!r} does not trust this key: add its id to `trustedKeys`")

    # Decision

    async def _decide(self, arrival: _Arrival, command: Accepted, ages: CacheAges) -> _Decision:
        cache = self._cache
        if arrival.escalated is Escalation.CACHE_EXPIRED:  # the secrets were just read
            ages = CacheAges(ages.routes, 0.0)
        found = fast.decide(command, arrival.sender.source, cache.view, ages, arrival.received_at_ms, cache.policy)
        if isinstance(found, Invalid):
            return _Decision("fast", arrival.escalated, problem=found)
        _count_uses(found.phases)
        if isinstance(found, Dispatch) and arrival.escalated is None:
            return _Decision("fast", None, record=found.route.record, is_stale=found.phases.is_stale)
        code = found.code if isinstance(found, Escalate) else arrival.escalated or Escalation.CACHE_MISS
        metrics.escalation(code.value).inc()
        if isinstance(found, Dispatch):
            return _Decision("slow", code, record=found.route.record, is_stale=found.phases.is_stale)
        route = await cache.route(
            command.target_tenant,
            command.target_service,
            command.name,
            may_be_cached=code is Escalation.CACHE_MISS,
        )
        return self._decide_slowly(arrival, command, route, code)

    def _decide_slowly(self, arrival: _Arrival, command: Accepted, route: KnownRoute | None, code: Escalation) -> _Decision:
        """Decide by a route that the engine has just returned."""
        now, source = self._clock(), arrival.sender.source
        if route is None or not route.is_active(now):
            if command.target_tenant != arrival.sender.tenant:  # no hint at what other tenants have
                return _Decision("slow", code, problem=_denied(source, command))
            return _Decision("slow", code, problem=self._missing(arrival.sender.tenant, command))
        fault = shield.signature_fault(command, route)
        if fault is not None:
            return _Decision("slow", code, problem=fault)
        if route.grant(source, now) is None:
            return _Decision("slow", code, problem=_denied(source, command))
        return _Decision("slow", code, record=route.record)

    def _missing(self, tenant: str, command: Accepted) -> RouteMissing:
        wanted = f"{command.target_service}/{command.name}"
        names = difflib.get_close_matches(wanted, self._cache.route_names(tenant, _NAMES_MAX), 3)
        hint = f"; similar: {', '.join(names)}" if names else ""
        return RouteMissing(f"{command.target_service} has no route for {command.name}{hint}")

    # Outcomes

    async def _deliver_or_fail(self, arrival: _Arrival, command: Accepted, decision: _Decision) -> CommandAccepted:
        if isinstance(decision.problem, Invalid):
            raise await self._refused(arrival, decision.problem)
        if decision.problem is not None or decision.record is None:
            problem = decision.problem or _denied(arrival.sender.source, command)
            raise await self._failed(arrival, command, decision, problem)
        record = decision.record
        message = _message(arrival, command, record, decision.path)
        try:
            await self._store(arrival, record, message)
        except DeliveryFailure as problem:
            raise await self._failed(arrival, command, decision, problem) from problem
        self._audit_grant(arrival.sender.source, command, record)
        seconds = time.perf_counter() - arrival.started
        event = CommandDelivered(
            event_id=_derived(arrival, command, "delivered"),
            source=arrival.sender.source,
            command_id=command.command_id,
            target=record.target,
            command_name=command.name,
            message_id=message.id,
            path=decision.path,
            escalated=None if decision.escalated is None else decision.escalated.value,
            dispatch_latency_ms=round(seconds * 1000, 3),
        )
        await self._commit(arrival, event, *self._notices.of_command(arrival.sender, command, arrival.received_at_ms))
        if decision.is_stale:
            self._cache.poll_soon()
        metrics.outcome("delivered").inc()
        metrics.dispatch_seconds(decision.path).observe(seconds)
        metrics.count_route(record.target, record.command)
        return CommandAccepted(command_id=command.command_id, message_id=message.id, path=decision.path)

    async def _store(self, arrival: _Arrival, record: RouteRecord, message: StoredMessage) -> None:
        """Raises DeliveryFailure; EngineUnavailable, Overloaded."""
        caller = Caller(record.tenant, "", frozenset({Scope.PUBLISH}), name="command")
        context = RequestContext(caller, arrival.context.request_id, traceparent=arrival.context.traceparent)
        try:
            await self._publisher.deliver(context, record.queue, message, awaits_event=False)
        except QueueNotFound as problem:
            raise DeliveryFailure("the queue of the route does not exist") from problem
        except EngineFull as problem:
            raise DeliveryFull("the queue of the route, or the storage of its tenant, is full", retry_after=5) from problem
        except (InvalidRequest, EngineRefused) as problem:
            raise DeliveryFailure(f"the queue of the route refuses the command: {problem.code}") from problem

    def _audit_grant(self, source: str, command: Accepted, used: RouteRecord) -> None:
        """Remember the dispatch, and compare it with a revocation that arrived meanwhile."""
        self._auditor.record(used, source, self._clock())
        current = self._cache.view.route(command.target_tenant, command.target_service, command.name)
        if current is not None and current.record is not used:
            self._auditor.check(current.record)

    async def _refused(self, arrival: _Arrival, fault: Invalid) -> PostroadError:
        event = CommandRefused(
            source=arrival.sender.source,
            command_id=fault.command_id,
            target=fault.target,
            command_name=fault.name,
            reason=fault.reason,
        )
        await self._commit(arrival, event)
        metrics.outcome("invalid", fault.reason).inc()
        return CommandInvalid(fault.detail, extra={"reason": fault.reason})

    async def _failed(
        self, arrival: _Arrival, command: Accepted, decision: _Decision, problem: AclDenied | RouteMissing | DeliveryFailure
    ) -> PostroadError:
        event = CommandFailed(
            source=arrival.sender.source,
            command_id=command.command_id,
            target=f"{command.target_tenant}/{command.target_service}",
            command_name=command.name,
            reason=problem.code,
            detail=problem.detail,
            escalated=None if decision.escalated is None else decision.escalated.value,
        )
        await self._commit(arrival, event, *self._notices.of_command(arrival.sender, command, arrival.received_at_ms))
        metrics.outcome("failed", problem.code).inc()
        problem.extra = {"reason": problem.code}
        return problem

    async def _commit(self, arrival: _Arrival, event: CommandEvent, *notices: CommandEvent) -> None:
        """Raises EngineUnavailable, unless the installation goes on without telemetry."""
        try:
            await self._outbox.commit(arrival.context, event, *notices)
        except EngineUnavailable:
            if self._needs_telemetry:
                raise


def _count_uses(phases: Phases) -> None:
    metrics.cache_use("routes", phases.routes.value).inc()
    if phases.grants is not None:
        metrics.cache_use("grants", phases.grants.value).inc()


def _denied(source: str, command: Accepted) -> AclDenied:
    return AclDenied(f"{command.target} has not granted {command.name} to {source}")


def _derived(arrival: _Arrival, command: Accepted, kind: str) -> str:
    """An id that the same command has in every attempt. The HMAC stands for payload, time and name."""
    return derived_id(
        command.sent_at_ms, arrival.sender.source, command.target, command.command_id, command.version_id, command.hmac, kind
    )


def _message(arrival: _Arrival, command: Accepted, record: RouteRecord, path: str) -> StoredMessage:
    return StoredMessage(
        v=1,
        id=_derived(arrival, command, "message"),
        job=_derived(arrival, command, "job"),
        at=arrival.received_at_ms,
        headers={
            ID_HEADER: command.command_id,
            SOURCE_HEADER: arrival.sender.source,
            TARGET_HEADER: record.target,
            NAME_HEADER: command.name,
            SENT_AT_HEADER: command.timestamp,
            PATH_HEADER: path,
        },
        trace=arrival.context.traceparent,
        payload=msgspec.Raw(command.payload),
    )
