"""Metrics of commands. The series of a label are looked up once: the library takes longer for that than for counting."""

from functools import cache

from postroad.kernel.buffered_metrics import Add, Counter, Gauge, Histogram, adder

_commands = Counter(
    "postroad_commands_total",
    "Commands by outcome (delivered, invalid, failed, refused, unavailable) and reason.",
    ["outcome", "reason"],
)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_dispatch_seconds = Histogram(
    "postroad_commands_dispatch_seconds",
    "Time from the arrival of a delivered command to its storage, by path.",
    ["path"],
    buckets=_SECONDS,
)
strict_seconds = Histogram(
    "postroad_commands_strict_seconds",
    "The same of commands of routes with strict deduplication, which all take the slow path.",
    buckets=_SECONDS,
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
tokens = Counter("postroad_commands_tokens_total", "Tokens of rate limits: acquired, returned, expired.", ["what"])
token_writes = Counter("postroad_commands_token_writes_total", "Writes that acquired or returned tokens.")
token_conflicts = Counter("postroad_commands_token_conflicts_total", "Writes of tokens that another worker preceded.")
shadow_refusals = Counter("postroad_commands_shadow_refusals_total", "Commands that a limit in shadow mode would have refused.")
strict_commands = Counter("postroad_commands_strict_total", "Commands of routes with strict deduplication.")
duplicates = Counter("postroad_commands_duplicates_total", "Repeated commands that were not delivered again, by path.", ["path"])
bans = Counter("postroad_commands_bans_total", "Bans of senders, by kind and creator.", ["kind", "creator"])
snapshots = Counter(
    "postroad_commands_snapshots_total",
    "Snapshots of the registry by result: published, too-large, failed, or superseded by another writer's.",
    ["result"],
)
snapshot_bytes = Gauge(
    "postroad_commands_snapshot_bytes",
    "Size of the newest snapshot: of its JSON, and compressed.",
    ["what"],
    multiprocess_mode="livemax",
)
snapshot_write_seconds = Histogram(
    "postroad_commands_snapshot_write_seconds", "Duration of a published snapshot, validation included."
)
snapshot_load_seconds = Histogram("postroad_commands_snapshot_load_seconds", "Duration of the load of a snapshot at a start.")
snapshot_failures = Counter(
    "postroad_commands_snapshot_failures_total",
    "Starts that read the whole registry instead of a snapshot, by the reason: missing, unavailable, expired, malformed, "
    "unsealed, older, version, registry, too-large.",
    ["why"],
)
_verdicts = Counter(
    "postroad_commands_verdicts_total",
    "Verdicts of the fairness auditor, by result: banned, shadow, in-force, off, or why it was dropped.",
    ["result"],
)
_by_route = Counter("postroad_commands_by_route_total", "Commands delivered, by target and command.", ["target", "command"])


@cache
def outcome(name: str, reason: str = "") -> Counter:
    return _commands.labels(name, reason)


@cache
def verdict(result: str) -> Counter:
    return _verdicts.labels(result)


@cache
def dispatch_seconds(path: str) -> Histogram:
    return _dispatch_seconds.labels(path)


@cache
def escalation(code: str) -> Counter:
    return _escalations.labels(code)


@cache
def cache_use(cache_name: str, phase: str) -> Counter:
    return _cache_uses.labels(cache_name, phase)


# Commands that are delivered


def count_cache_uses(secrets: str, routes: str | None, grants: str | None) -> None:
    """Count the phases in which the caches were used. None: not used."""
    for add in _cache_adders(secrets, routes, grants):
        add(1)


@cache
def _cache_adders(secrets: str, routes: str | None, grants: str | None) -> tuple[Add, ...]:
    used = {"secrets": secrets, "routes": routes, "grants": grants}
    return tuple(adder(cache_use(name, str(phase))) for name, phase in used.items() if phase is not None)


def count_delivered(path: str, seconds: float, target: str, command: str) -> None:
    _add_delivered(1)
    dispatch_seconds(path).observe(seconds)
    _route_adder(target, command)(1)


_ROUTES_MAX = 200
_add_delivered = adder(outcome("delivered"))
_route_adders: dict[tuple[str, str], Add] = {}


def _route_adder(target: str, command: str) -> Add:
    """Routes after the first ones share the label `other`, which bounds the number of series."""
    add = _route_adders.get((target, command))
    if add is None:
        is_named = len(_route_adders) < _ROUTES_MAX
        add = adder(_by_route.labels(*((target, command) if is_named else ("other", "other"))))
        if is_named:
            _route_adders[target, command] = add
    return add
