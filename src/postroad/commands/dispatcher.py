"""Dispatch of commands: shield, fast stage, slow stage, delivery, outcome event.

The outcome event is durable before the response. The ids of the delivered message and of its event follow from the command, so an
attempt that is repeated after a lost response has the same ones, and the engine stores the message once for a minute.
"""

import difflib
import time

import msgspec

from postroad.api.command_limits import CommandMismatch, FairnessViolation, RateLimitExceeded
from postroad.api.commands import (
    AclDenied,
    CommandAccepted,
    CommandInvalid,
    DeliveryFailure,
    DeliveryFull,
    RouteMissing,
    SourceRefused,
)
from postroad.api.queues import IdempotencyMismatch, QueueNotFound
from postroad.commands import fast, metrics, shield
from postroad.commands.arrival import Arrival, Decision, message_of
from postroad.commands.ban_view import BanView
from postroad.commands.dedupe import body_hash, event_of, first_event, marker_of
from postroad.commands.fast import CacheAges, Dispatch, Escalate, Escalation, Phases, Repeat
from postroad.commands.limit_records import BanRecord
from postroad.commands.limiter import Admission, Limiter
from postroad.commands.outcome_recorder import OutcomeRecorder
from postroad.commands.records import RouteRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import KnownRoute, Sender
from postroad.commands.replay_mark import ReplayMark
from postroad.commands.revocations import RevocationAuditor
from postroad.commands.rules import Phase
from postroad.commands.seen_commands import FirstDelivery
from postroad.commands.shield import Accepted, Invalid, ShieldPolicy
from postroad.commands.warm_state import WarmState
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.kernel.clock import Clock, rfc3339
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
_CREDENTIALS = (Credential.KEY, Credential.EMIT, Credential.REPLAY)


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
        self._warm, self._bans, self._auditor = warm, bans, auditor
        self._tenant_settings, self._clock, self._policy = tenant_settings, clock, policy

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
            return await self._dispatch(context, service, body, replay)
        except _WITH_EVENT:
            raise
        except SourceRefused:
            metrics.outcome("refused", "source-refused").inc()
            raise
        except Unavailable as problem:
            metrics.outcome("unavailable", problem.code).inc()
            raise

    async def _dispatch(self, context: RequestContext, service: str, body: bytes, replay: ReplayMark | None) -> CommandAccepted:
        started, now, ages = time.perf_counter(), self._clock(), self._cache.ages()
        if self.outcomes.is_full:
            raise EngineUnavailable("too many events are waiting to be stored; the command was not delivered", retry_after=1)
        sender, escalated = await self._sender(context, service, ages)
        command = shield.inspect(body, sender, now, self._policy)
        if isinstance(command, Invalid) and command.reason == "version-unknown":  # perhaps rotated a moment ago
            fresh = await self._cache.sender(context.tenant, service, may_be_cached=True)
            if fresh is not None and fresh is not sender:
                sender, escalated = fresh, Escalation.CACHE_MISS
                command = shield.inspect(body, sender, now, self._policy)
        arrival = Arrival(context, sender, now, started, escalated, body, replay)
        if isinstance(command, Invalid):
            raise await self.outcomes.refused(arrival, command)
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
        elif sender is None or not _is_trusted(sender, context.caller):  # perhaps registered a moment ago
            sender = await self._cache.sender(context.tenant, service, may_be_cached=True)
        self._check_trust(context.caller, service, sender)
        if sender is None:
            raise SourceRefused(f"the service {service[:64]!r} does not trust this key")
        return sender, escalated

    def _check_trust(self, caller: Caller, service: str, sender: Sender | None) -> None:
        """Raises SourceRefused; with the same detail whether the service exists or not."""
        if caller.credential is Credential.KEY and not self._tenant_settings.of(caller.tenant).commands_by_key:
            raise SourceRefused("the tenant's setting `commandsByKey` is off: send commands with an emit token")
        is_kind = caller.credential in _CREDENTIALS and caller.service in (None, service)
        is_trusted = sender is not None and _is_trusted(sender, caller) and caller.may_use("service", service)
        if not is_kind or not is_trusted:
            raise SourceRefused(f"the service {service[:64]!r} does not trust this key: add its id to `trustedKeys`")

    # Decision

    async def _decide(self, arrival: Arrival, command: Accepted, ages: CacheAges) -> Decision:
        cache, now, source = self._cache, arrival.received_at_ms, arrival.sender.source
        ban = self._bans.find(source, command.target_tenant, command.target_service, command.name, now)
        if ban is not None and ban.kind == "hard":
            return Decision("fast", arrival.escalated, problem=_banned(ban, now))
        if arrival.escalated is Escalation.CACHE_EXPIRED:  # the secrets were just read
            ages = CacheAges(ages.routes, 0.0)
        is_cold_only = self._tenant_settings.of(arrival.sender.tenant).snavio_dispatch_mode == "cold-only"
        found = fast.decide(
            command, source, cache.view, ages, now, cache.policy, ban=ban, is_cold_only=is_cold_only, warm=self._warm
        )
        if isinstance(found, Invalid):
            return Decision("fast", arrival.escalated, problem=found)
        _count_uses(found.phases)
        if isinstance(found, Repeat):
            return Decision("fast", arrival.escalated, route=found.route, first=found.first, is_stale=found.phases.is_stale)
        if isinstance(found, Dispatch) and arrival.escalated is None:
            return Decision("fast", None, route=found.route, is_stale=found.phases.is_stale)
        code = found.code if isinstance(found, Escalate) else arrival.escalated or Escalation.CACHE_MISS
        metrics.escalation(code.value).inc()
        if isinstance(found, Dispatch):
            return Decision("slow", code, route=found.route, is_stale=found.phases.is_stale)
        route = found.route or await cache.route(
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
            is_banned=decision.escalated is Escalation.WARM_BANNED,
            may_prefetch=decision.escalated is Escalation.TOKEN_REQUIRED,
        )

    async def _deliver(
        self, arrival: Arrival, command: Accepted, decision: Decision, route: KnownRoute, admission: Admission
    ) -> CommandAccepted:
        record, source, started_ms = route.record, arrival.sender.source, self._clock()
        message = message_of(arrival, command, record, decision.path)
        is_strict = record.dedupe_mode == "strict"
        event = first_event(arrival, command, decision, _elapsed_ms(arrival), started_ms if is_strict else None)
        marker = marker_of(route, source, command, event) if is_strict else None
        delay_ms = max(0, admission.deliver_at_ms - message.at) if admission.deliver_at_ms else 0
        try:
            delivered = await self._store(arrival, command, record, message, marker, delay_ms)
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
        self._audit_grant(source, command, record)
        if not is_strict:
            event = msgspec.structs.replace(event, latency_ms=_elapsed_ms(arrival))
        await self.outcomes.delivered(arrival, command, decision, record, delivered.message_id, admission, event)
        if marker is not None:
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
        arrival: Arrival,
        command: Accepted,
        record: RouteRecord,
        message: StoredMessage,
        marker: DeliveryMarker | None,
        delay_ms: int,
    ) -> Delivered:
        """Raises DeliveryFailure, IdempotencyMismatch; EngineUnavailable, Overloaded."""
        caller = Caller(record.tenant, "", frozenset({Scope.PUBLISH}), name="command")
        context = RequestContext(caller, arrival.context.request_id, traceparent=arrival.context.traceparent)
        replay = arrival.replay
        first = None if replay is None else replay.marker(arrival.sender.source, command.command_id)
        try:
            return await self._publisher.deliver(
                context, record.queue, message, delay_ms=delay_ms, first=first, marker=marker, awaits_event=False
            )
        except QueueNotFound as problem:
            raise DeliveryFailure("the queue of the route does not exist") from problem
        except EngineFull as problem:
            raise DeliveryFull("the queue of the route, or the storage of its tenant, is full", retry_after=5) from problem
        except IdempotencyMismatch:
            raise
        except (InvalidRequest, EngineRefused) as problem:
            raise DeliveryFailure(f"the queue of the route refuses the command: {problem.code}") from problem

    def _audit_grant(self, source: str, command: Accepted, used: RouteRecord) -> None:
        """Remember the dispatch, and compare it with a revocation that arrived meanwhile."""
        self._auditor.record(used, source, self._clock())
        current = self._cache.view.route(command.target_tenant, command.target_service, command.name)
        if current is not None and current.record is not used:
            self._auditor.check(current.record, current)


def _is_trusted(sender: Sender, caller: Caller) -> bool:
    return caller.key_id in sender.trusted_keys or caller.credential is Credential.REPLAY


def _count_uses(phases: Phases) -> None:
    metrics.cache_use("routes", phases.routes.value).inc()
    if phases.grants is not None:
        metrics.cache_use("grants", phases.grants.value).inc()


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


def _elapsed_ms(arrival: Arrival) -> float:
    return round((time.perf_counter() - arrival.started) * 1000, 3)
