"""Which sources dominate routes that others use. Pure: the auditor, and the evaluation of past days, share it.

A route is contested in a minute if at least two sources had commands delivered on it. A source is flagged if its share is above
`dominant` on a contested route (the route's own threshold, where set), or above `across` on each of two or more contested routes,
and if it had at least `dispatches_min` commands delivered on these routes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

DOMINANT, ACROSS, DISPATCHES_MIN = 0.8, 0.6, 60


class RouteName(NamedTuple):
    """`target` is `<tenant>/<service>`."""

    target: str
    command: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    dominant: float = DOMINANT
    across: float = ACROSS
    dispatches_min: int = DISPATCHES_MIN


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """What the owner of a route has set. `dominant` None: the default."""

    is_enabled: bool = True
    dominant: float | None = None


@dataclass(frozen=True, slots=True)
class RouteShare:
    """The share of a source on a route in one minute; `dispatched` are the commands of all sources."""

    route: RouteName
    own: int
    dispatched: int

    @property
    def share(self) -> float:
        return self.own / self.dispatched


Counts = Mapping[RouteName, Mapping[str, int]]  # commands delivered in one minute, by route and source


def flagged_sources(
    counts: Counts, thresholds: Thresholds, policy_of: Callable[[RouteName], RoutePolicy] = lambda _: RoutePolicy()
) -> dict[str, list[RouteShare]]:
    """The sources to ban, each with the routes that it dominates, in their order.

    `policy_of` is called only for contested routes of a source with enough commands.
    """
    shares = _contested_shares(counts)
    flagged: dict[str, list[RouteShare]] = {}
    for source in sorted(shares):
        if not _is_enough(shares[source], thresholds):
            continue
        enabled = [(one, policy) for one in shares[source] if (policy := policy_of(one.route)).is_enabled]
        wide = [one for one, _ in enabled if one.share > thresholds.across]
        dominated = [
            one
            for one, policy in enabled
            if one.share > (thresholds.dominant if policy.dominant is None else policy.dominant)
            or (len(wide) > 1 and one.share > thresholds.across)
        ]
        if _is_enough(dominated, thresholds):
            flagged[source] = dominated
    return flagged


def _contested_shares(counts: Counts) -> dict[str, list[RouteShare]]:
    """By source, its shares on the routes that others use, too."""
    found: dict[str, list[RouteShare]] = {}
    for route in sorted(counts):
        sources = {source: number for source, number in counts[route].items() if number > 0}
        total = sum(sources.values())
        if len(sources) > 1:
            for source, number in sources.items():
                found.setdefault(source, []).append(RouteShare(route, number, total))
    return found


def _is_enough(shares: list[RouteShare], thresholds: Thresholds) -> bool:
    return bool(shares) and sum(one.own for one in shares) >= thresholds.dispatches_min
