"""Stored formats of route health and of misrouted commands, and their API representations. Pure."""

import msgspec

from postroad.api.route_health import HealthStatus, Misroute, Misroutes, Problem, RouteHealthEntry
from postroad.commands.records import RouteRecord
from postroad.kernel.clock import rfc3339

HEALTH_BUCKET = "postroad_route_health"
MISROUTES_BUCKET = "postroad_misroutes"
MISROUTES_MAX = 500  # per tenant


class RouteHealthRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1, under the key of the route. Written when the status or the problems change."""

    v: int = 1
    queue: str
    status: HealthStatus
    problems: tuple[Problem, ...] = ()
    since_ms: int
    ready: int = 0
    oldest_age_ms: int | None = None


class MisrouteRecord(msgspec.Struct, frozen=True, array_like=True):
    target: str
    command: str
    count: int
    first_at: str
    last_at: str
    last_source: str


class TenantMisroutes(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1, under `<tenant>`: the misroutes in the frames of `COMMANDS` up to the sequence `position`. Under `_platform` it
    has the position that all frames were read to."""

    v: int = 1
    position: int = 0
    routes: tuple[MisrouteRecord, ...] = ()
    others: int = 0


def health_of(route: RouteRecord, known: RouteHealthRecord | None, queue_drain_seconds: int | None) -> RouteHealthEntry:
    """`queue_drain_seconds` is the setting of the queue."""
    return RouteHealthEntry(
        service=route.service,
        command=route.command,
        target=route.target,
        queue=route.queue,
        status="unknown" if known is None else known.status,
        problems=[] if known is None else list(known.problems),
        expected_drain_seconds=route.drain_seconds(queue_drain_seconds),
        since=None if known is None else rfc3339(known.since_ms),
        ready=None if known is None else known.ready,
        oldest_age_ms=None if known is None else known.oldest_age_ms,
    )


def misroutes_of(record: TenantMisroutes | None) -> Misroutes:
    if record is None:
        return Misroutes(misroutes=[])
    ordered = sorted(record.routes, key=lambda one: (-one.count, one.target, one.command))
    found = [
        Misroute(
            target=one.target,
            command=one.command,
            count=one.count,
            first_at=one.first_at,
            last_at=one.last_at,
            last_source=one.last_source,
        )
        for one in ordered
    ]
    return Misroutes(misroutes=found, others=record.others)


def with_misroutes(record: TenantMisroutes, found: list[MisrouteRecord], position: int) -> TenantMisroutes:
    """The record with the misroutes of more frames. Beyond the limit, those that are seen no more are added up in `others`."""
    known = {(one.target, one.command): one for one in record.routes}
    for one in found:
        before = known.get((one.target, one.command))
        count, first_at = (0, one.first_at) if before is None else (before.count, before.first_at)
        known[one.target, one.command] = MisrouteRecord(
            one.target, one.command, count + one.count, first_at, one.last_at, one.last_source
        )
    newest = sorted(known.values(), key=lambda one: one.last_at, reverse=True)
    left_out = sum(one.count for one in newest[MISROUTES_MAX:])
    return TenantMisroutes(position=position, routes=tuple(newest[:MISROUTES_MAX]), others=record.others + left_out)
