"""The fast stage: decides from memory whether a command can be dispatched at once, or needs the engine. Pure.

The ages are the seconds since each cache was last known to be current; reading a cache never renews it.
"""

from enum import StrEnum

import msgspec

from postroad.commands.records import GrantRecord
from postroad.commands.registry_view import KnownRoute, RegistryView
from postroad.commands.rules import CachePolicy, Phase
from postroad.commands.shield import Accepted, Invalid, signature_fault


class Escalation(StrEnum):
    """Why a command needs the slow stage."""

    CACHE_MISS = "cache_miss"
    CACHE_EXPIRED = "cache_expired"
    ACL_SYNC = "acl_sync"


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
    code: Escalation
    phases: Phases


def decide(
    command: Accepted, source: str, view: RegistryView, ages: CacheAges, now_ms: int, policy: CachePolicy
) -> Dispatch | Escalate | Invalid:
    """`Invalid` if the route requires a signature that the command lacks."""
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
    return Dispatch(route, grant, phases)
