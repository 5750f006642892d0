"""Whether a verdict of the fairness auditor may lead to a ban. Pure.

The auditor computes shares from events; the registry, the clock and the settings of the service decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.commands.records import RouteRecord
from postroad.contracts.verdicts import FairnessVerdict
from postroad.kernel.names import COMMAND, SERVICE, TENANT

AGE_MAX_MS = 5 * 60_000
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class VerdictPolicy:
    """`mode` is `enforce`, `shadow` or `off`. The thresholds are those of the auditor.

    A source is flagged above `dominant` of one route, or above `across` of several, with at least `dispatches_min` commands.
    """

    mode: str = "enforce"
    dominant: float = 0.8
    across: float = 0.6
    dispatches_min: int = 60
    ban_seconds_max: int = 3600


def verdict_id(verdict: FairnessVerdict, minute_text: str) -> str:
    return f"fairness:{verdict.source}:{minute_text}"


def names_of(full: str) -> tuple[str, str] | None:
    """Tenant and service of `<tenant>/<service>`; None for other texts."""
    tenant, slash, service = full.partition("/")
    is_name = slash and TENANT.fullmatch(tenant) and SERVICE.fullmatch(service)
    return (tenant, service) if is_name else None


def is_readable(verdict: FairnessVerdict) -> bool:
    """True if its names can be names of a source and of routes, and the source is the subject's tenant's."""
    source = names_of(verdict.source)
    if source is None or source[0] != verdict.tenant:
        return False
    return all(names_of(one.target) is not None and COMMAND.fullmatch(one.command) for one in verdict.routes)


def refusal(
    verdict: FairnessVerdict,
    *,
    has_source: bool,
    routes: Sequence[RouteRecord | None],
    now_ms: int,
    policy: VerdictPolicy,
) -> str | None:
    """Why the verdict is dropped; None if it may be applied. `routes` are those of the verdict, in its order."""
    minute_ms, until_ms = (round(at.timestamp() * 1000) for at in (verdict.minute, verdict.ban_until))
    ended_ms = minute_ms + _MINUTE_MS
    if minute_ms % _MINUTE_MS or ended_ms > now_ms:
        return "absurd"
    if now_ms - ended_ms > AGE_MAX_MS:
        return "stale"
    if not now_ms < until_ms <= now_ms + policy.ban_seconds_max * 1000:
        return "absurd"
    if not has_source:
        return "unknown-source"
    if any(route is None for route in routes):
        return "unknown-route"
    if not all(route is not None and is_fairness_enabled(route) for route in routes):
        return "fairness-off"
    return None if _is_flagged(verdict, routes, policy) else "absurd"


def _is_flagged(verdict: FairnessVerdict, routes: Sequence[RouteRecord | None], policy: VerdictPolicy) -> bool:
    """True if the auditor flags a source with these shares. A source that has a route for itself takes nothing from others."""
    is_wide = sum(one.share > policy.across for one in verdict.routes) > 1
    for one, route in zip(verdict.routes, routes, strict=True):
        own = None if route is None else dominant_share(route)
        threshold = policy.dominant if own is None else own
        if one.share == 1 or not (one.share > threshold or (is_wide and one.share > policy.across)):
            return False
    return sum(round(one.share * one.dispatched) for one in verdict.routes) >= policy.dispatches_min


def is_fairness_enabled(route: RouteRecord) -> bool:
    return route.fairness is None or route.fairness.enabled


def dominant_share(route: RouteRecord) -> float | None:
    """The route's own threshold; None if it has none."""
    return None if route.fairness is None else route.fairness.dominant_share
