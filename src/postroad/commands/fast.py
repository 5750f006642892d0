"""The fast stage: decides from memory whether a command can be dispatched at once, or needs the engine. Pure.

The ages are the seconds since each cache was last known to be current; reading a cache never renews it.
"""

from enum import StrEnum

import msgspec

from postroad.commands.limit_records import BanRecord
from postroad.commands.records import GrantRecord
from postroad.commands.registry_view import KnownRoute, RegistryView
from postroad.commands.rules import CachePolicy, Phase
from postroad.commands.seen_commands import FirstDelivery
from postroad.commands.shield import Accepted, Invalid, signature_fault
from postroad.commands.warm_state import WarmState


class Escalation(StrEnum):
    """Why a command needs the slow stage."""

    CACHE_MISS = "cache_miss"
    CACHE_EXPIRED = "cache_expired"
    ACL_SYNC = "acl_sync"
    COLD_ONLY = "cold_only"
    WARM_BANNED = "warm_banned"
    DEDUPE_REQUIRED = "dedupe_required"
    TOKEN_REQUIRED = "token_required"  # noqa: S105  # not a secret


class CacheAges(msgspec.Struct, frozen=True):
    """Ages in seconds, taken once per command. Routes and their grants are in one table."""

    routes: float
    secrets: float


class Phases(msgspec.Struct, frozen=True):
    """The phases in which the caches were used. None: not used."""

    routes: Phase
    secrets: Phase
    grants: Phase | None = None

    @property
    def is_stale(self) -> bool:
        return Phase.STALE in (self.routes, self.secrets, self.grants)


class Dispatch(msgspec.Struct, frozen=True):
    route: KnownRoute
    grant: GrantRecord
    phases: Phases


class Escalate(msgspec.Struct, frozen=True):
    """`route` is set if the caches suffice to decide by it, and the command needs the slow stage for another reason."""

    code: Escalation
    phases: Phases
    route: KnownRoute | None = None


class Repeat(msgspec.Struct, frozen=True):
    """This worker delivered a command of the same id before, on a route with strict deduplication."""

    route: KnownRoute
    first: FirstDelivery
    phases: Phases


def decide(
    command: Accepted,
    source: str,
    view: RegistryView,
    ages: CacheAges,
    now_ms: int,
    policy: CachePolicy,
    *,
    ban: BanRecord | None = None,
    is_cold_only: bool = False,
    warm: WarmState | None = None,
) -> Dispatch | Escalate | Repeat | Invalid:
    """`Invalid` if the route requires a signature that the command lacks. `ban` is that of the sender on the route, if any;
    `is_cold_only`: the tenant's commands always take the slow path. `warm` is what the worker knows about past commands; without
    it, a route with a limit or strict deduplication always needs the slow stage."""
    routes_phase, secrets_phase = policy.routes.phase(ages.routes), policy.secrets.phase(ages.secrets)
    phases = Phases(routes_phase, secrets_phase)
    if routes_phase is Phase.EXPIRED or secrets_phase is Phase.EXPIRED:
        return Escalate(Escalation.CACHE_EXPIRED, phases)
    route = view.route(command.target_tenant, command.target_service, command.name)
    if route is None or not route.is_active(now_ms):
        return Escalate(Escalation.CACHE_MISS, phases)
    fault = signature_fault(command, route)
    if fault is not None:
        return fault
    if route.record.acl_check == "sync":
        return Escalate(Escalation.ACL_SYNC, phases)
    grant = route.grant(source, now_ms)
    if grant is None:
        return Escalate(Escalation.CACHE_MISS, phases)
    grants_phase = policy.of_grant(route.record.sensitivity, grant.sensitivity).phase(ages.routes)
    phases = Phases(routes_phase, secrets_phase, grants_phase)
    if grants_phase is Phase.EXPIRED:
        return Escalate(Escalation.CACHE_EXPIRED, phases)
    is_strict = route.record.dedupe_mode == "strict"
    if is_strict and warm is not None:
        first = warm.seen.find(route.key, source, command.command_id, now_ms)
        if first is not None:
            return Repeat(route, first, phases)
    if is_cold_only or (ban is not None and ban.kind == "cold-only"):
        return Escalate(Escalation.COLD_ONLY, phases, route)
    if ban is not None:
        return Escalate(Escalation.WARM_BANNED, phases, route)
    if route.limit is not None and warm is not None and warm.fairness.is_banned(route.key, source, now_ms):
        return Escalate(Escalation.WARM_BANNED, phases, route)
    if is_strict:
        return Escalate(Escalation.DEDUPE_REQUIRED, phases, route)
    if route.limit is not None and (warm is None or not warm.tokens.has(route.key, now_ms)):
        return Escalate(Escalation.TOKEN_REQUIRED, phases, route)
    return Dispatch(route, grant, phases)
