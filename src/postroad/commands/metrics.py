"""Metrics of commands. The series of a label are looked up once: the library takes longer for that than for counting."""

from functools import cache

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram

_commands = Counter(
    "postroad_commands_total",
    "Commands by outcome (delivered, invalid, failed, refused, unavailable) and reason.",
    ["outcome", "reason"],
)
_dispatch_seconds = Histogram(
    "postroad_commands_dispatch_seconds",
    "Time from the arrival of a delivered command to its storage, by path.",
    ["path"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
_escalations = Counter("postroad_commands_escalations_total", "Commands that took the slow path, by the reason.", ["code"])
_cache_uses = Counter(
    "postroad_commands_cache_uses_total", "Uses of the caches of routes, grants and secrets, by phase.", ["cache", "phase"]
)
cache_refresh_seconds = Histogram(
    "postroad_commands_cache_refresh_seconds", "Duration of reads that refreshed a cache for a command.", ["cache"]
)
cache_age_seconds = Gauge(
    "postroad_commands_cache_age_seconds",
    "Seconds since a cache was last known to be current.",
    ["cache"],
    multiprocess_mode="livemax",
)
_by_route = Counter("postroad_commands_by_route_total", "Commands delivered, by target and command.", ["target", "command"])


@cache
def outcome(name: str, reason: str = "") -> Counter:
    return _commands.labels(name, reason)


@cache
def dispatch_seconds(path: str) -> Histogram:
    return _dispatch_seconds.labels(path)


@cache
def escalation(code: str) -> Counter:
    return _escalations.labels(code)


@cache
def cache_use(cache_name: str, phase: str) -> Counter:
    return _cache_uses.labels(cache_name, phase)


_ROUTES_MAX = 200
_children: dict[tuple[str, str], Counter] = {}


def count_route(target: str, command: str) -> None:
    """Routes after the first ones share the label `other`, which bounds the number of series."""
    child = _children.get((target, command))
    if child is None:
        is_named = len(_children) < _ROUTES_MAX
        child = _by_route.labels(*((target, command) if is_named else ("other", "other")))
        if is_named:
            _children[target, command] = child
    child.inc()
