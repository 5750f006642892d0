"""The fairness auditor: after each closed minute, verdicts about sources that dominate routes which others use.

It reads rollups only. The last minutes are audited each time, because their events may arrive late, such as after an outage of
the engine. Verdicts are published again after a restart; their ids, and the service, which checks each one against its own state,
make that harmless.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.commands.records import ROUTES_BUCKET, RouteRecord, route_key
from postroad.contracts.verdicts import FAIRNESS_VERDICTS, ROUTES_MAX, DominatedRoute, FairnessVerdict
from postroad.kernel.clock import rfc3339
from postroad.pipeline.command_keys import with_names
from postroad.pipeline.fairness_rules import DEFAULT_THRESHOLDS, RouteName, RoutePolicy, RouteShare, Thresholds, flagged_sources
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Lake
from postroad.pipeline.messages import OutgoingMessage, contract_message

GRACE = timedelta(seconds=3)  # for events that are on their way when their minute ends
VIOLATION_MINUTES = 10
REPEATED_MINUTES = 4  # the service refuses verdicts that are older than five minutes
_MINUTE = timedelta(minutes=1)

_decode_route = msgspec.json.Decoder(RouteRecord).decode
MinuteCounts = dict[datetime, dict[RouteName, dict[str, int]]]


@dataclass(frozen=True, slots=True)
class AuditorConfig:
    is_enabled: bool = True
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    ban_seconds: int = 600


DEFAULT_AUDITOR = AuditorConfig()


class FairnessAuditor:
    def __init__(self, lake: Lake, engine: Engine, config: AuditorConfig) -> None:
        self._lake, self._engine, self._config = lake, engine, config
        self._audited: datetime | None = None  # the last minute
        self._published: set[str] = set()  # ids of the verdicts of the last minutes

    def audit(self, now: datetime) -> int:
        """Once a minute, publish the verdicts of the last minutes that were not published before. All events that were stored up
        to `now` must be in the lake. Returns the number of verdicts. Raises JetStreamError."""
        last = closed_minute(now)
        if not self._config.is_enabled or self._audited == last:
            return 0
        since = last - REPEATED_MINUTES * _MINUTE
        rollups = self._recent(last - (REPEATED_MINUTES + VIOLATION_MINUTES) * _MINUTE)
        verdicts = self._verdicts(rollups, since, last)
        new = [one for one in verdicts if one.message_id not in self._published]
        self._engine.publish(new)
        self._audited, self._published = last, {one.message_id for one in verdicts}
        return len(new)

    def _recent(self, since: datetime) -> Any:
        since_ms = int(since.timestamp() * 1000)
        return self._lake.read_rollups(file for file in self._lake.files("rollups") if file.last >= since_ms)

    def _verdicts(self, rollups: Any, since: datetime, last: datetime) -> list[OutgoingMessage]:
        minutes, bans = dispatches_by_minute(rollups), warm_bans(rollups)
        policies = _RoutePolicies(self._engine)
        flagged = {
            minute: flagged_sources(counts, self._config.thresholds, policies.policy_of)
            for minute, counts in minutes.items()
            if minute <= last
        }
        return [
            self._message(source, minute, shares, violations(source, minute, flagged, bans))
            for minute in sorted(flagged)
            if minute >= since
            for source, shares in flagged[minute].items()
        ]

    def _message(self, source: str, minute: datetime, shares: Iterable[RouteShare], count: int) -> OutgoingMessage:
        tenant = source.partition("/")[0]
        largest = sorted(shares, key=lambda one: -one.own)[:ROUTES_MAX]
        body = FairnessVerdict(
            v=1,
            tenant=tenant,
            source=source,
            minute=minute,
            routes=tuple(
                DominatedRoute(target=one.route.target, command=one.route.command, share=one.share, dispatched=one.dispatched)
                for one in largest
            ),
            violations=count,
            ban_until=minute + _MINUTE + timedelta(seconds=self._config.ban_seconds),
        )
        return contract_message(FAIRNESS_VERDICTS, body, tenant=tenant, source=source, minute=minute_text(minute))


def closed_minute(now: datetime) -> datetime:
    """The last minute whose events are complete."""
    return (now - GRACE).replace(second=0, microsecond=0) - _MINUTE


def minute_text(minute: datetime) -> str:
    return rfc3339(int(minute.timestamp() * 1000))


def violations(
    source: str,
    minute: datetime,
    flagged: dict[datetime, dict[str, list[RouteShare]]],
    bans: Collection[tuple[datetime, str, int]],
) -> int:
    """Dominated minutes and warm-path bans of the source in the ten minutes up to the end of this one."""
    since = minute - (VIOLATION_MINUTES - 1) * _MINUTE
    dominated = sum(since <= one <= minute and source in sources for one, sources in flagged.items())
    return dominated + sum(count for at, banned, count in bans if since <= at <= minute and banned == source)


def dispatches_by_minute(rollups: Any) -> MinuteCounts:
    """Commands delivered by minute, route and source, from rollups (`MEASURES`), which may be unmerged."""
    found: MinuteCounts = {}
    for row in _route_rows(rollups, ("warm", "cold")):
        route = RouteName(f"{row['tenant']}/{row['service']}", row["command"])
        sources = found.setdefault(row["minute"], {}).setdefault(route, {})
        sources[row["peer"]] = sources.get(row["peer"], 0) + row["n"]
    return found


def warm_bans(rollups: Any) -> list[tuple[datetime, str, int]]:
    """Minute, source and number of the bans that dispatchers imposed on routes."""
    return [(row["minute"], row["peer"], row["n"]) for row in _route_rows(rollups, ("bans",)) if row["command"]]


def _route_rows(rollups: Any, labels: Iterable[str]) -> list[dict[str, Any]]:
    is_wanted = pc.and_(
        pc.equal(rollups.column("report"), "fairness"), pc.is_in(rollups.column("label"), pa.array(list(labels), pa.string()))
    )
    rows = rollups.filter(is_wanted).select(["tenant", "minute", "name", "n"])
    split: list[dict[str, Any]] = with_names(rows, "role", "service", "peer", "command").to_pylist()
    return [row for row in split if row["role"] == "target"]


class _RoutePolicies:
    """The policies of routes as the registry has them now, each read once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[RouteName, RoutePolicy] = {}

    def policy_of(self, route: RouteName) -> RoutePolicy:
        if route not in self._known:
            self._known[route] = self._read(route)
        return self._known[route]

    def _read(self, route: RouteName) -> RoutePolicy:
        tenant, _, service = route.target.partition("/")
        key = route_key(tenant, service, route.command)
        value = self._engine.read_keys(ROUTES_BUCKET, [key]).get(key)
        if not value:
            return RoutePolicy(is_enabled=False)  # deleted
        try:
            return route_policy(_decode_route(value))
        except (msgspec.DecodeError, RecursionError):
            return RoutePolicy(is_enabled=False)


def route_policy(record: RouteRecord) -> RoutePolicy:
    return RoutePolicy() if record.fairness is None else RoutePolicy(record.fairness.enabled, record.fairness.dominant_share)
