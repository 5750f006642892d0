"""Stored formats of bans and quotas, and their API representations. Pure."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.command_limits import INTERVAL_SECONDS_MAX, RATE_MAX, Ban, BanKind, Quota, RateLimit, RouteUsage
from postroad.commands.rate_rules import Limit, RateRecord, allowed, available, end_ms, start_ms
from postroad.commands.records import route_key
from postroad.kernel.clock import EpochMs, rfc3339
from postroad.kernel.names import escape

BANS_BUCKET = "postroad_bans"
QUOTAS_BUCKET = "postroad_quotas"

RouteName = tuple[str, str, str]  # tenant, service and command


class BanRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of a ban, under `<tenant>.<service>.<kind>`, on one route followed by `.<tenant>.<service>.<command>`.

    `source` is `<tenant>/<service>` or `<tenant>/*`; `route` is None for all routes. It ends at `expires_at_ms`, also where the
    notification of its expiry is missed.
    """

    v: int = 1
    source: str
    kind: BanKind
    route: RouteName | None = None
    reason: str
    creator: str
    key_id: str = ""
    created_at_ms: EpochMs
    expires_at_ms: EpochMs

    @property
    def key(self) -> str:
        return ban_key(self.source, self.kind, self.route)

    @property
    def target(self) -> str | None:
        return None if self.route is None else f"{self.route[0]}/{self.route[1]}"

    def is_active(self, at_ms: int) -> bool:
        return at_ms < self.expires_at_ms


def ban_key(source: str, kind: str, route: RouteName | None) -> str:
    tenant, _, service = source.partition("/")
    head = f"{tenant}.{escape(service)}.{kind}"
    return head if route is None else f"{head}.{route_key(*route)}"


def ban_of(record: BanRecord) -> Ban:
    return Ban(
        id=record.key,
        source=record.source,
        kind=record.kind,
        target=record.target,
        command=None if record.route is None else record.route[2],
        reason=record.reason,
        creator=record.creator,
        created_at=rfc3339(record.created_at_ms),
        expires_at=rfc3339(record.expires_at_ms),
    )


class QuotaRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of a sender's quota on a route, under `<tenant>.<service>.<command>.<tenant>.<service>`: route, then sender."""

    v: int = 1
    route: RouteName
    source: str
    max: Annotated[int, Meta(ge=1, le=RATE_MAX)]
    interval_seconds: Annotated[int, Meta(ge=1, le=INTERVAL_SECONDS_MAX)]
    burst: Annotated[int, Meta(ge=0, le=RATE_MAX)]
    created_at_ms: EpochMs
    updated_at_ms: EpochMs

    @property
    def key(self) -> str:
        return quota_key(self.route, self.source)

    @property
    def limit(self) -> Limit:
        return Limit(self.max, self.interval_seconds * 1000, self.burst)


def quota_key(route: RouteName, source: str) -> str:
    tenant, _, service = source.partition("/")
    return f"{route_key(*route)}.{tenant}.{escape(service)}"


def quota_of(record: QuotaRecord) -> Quota:
    return Quota(
        source=record.source,
        target=f"{record.route[0]}/{record.route[1]}",
        command=record.route[2],
        max=record.max,
        interval_seconds=record.interval_seconds,
        burst=record.burst,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def limit_of(rate: RateLimit | None) -> Limit | None:
    """A route's limit in the units of the rules."""
    if rate is None:
        return None
    delay = rate.max_delay_seconds // rate.interval_seconds if rate.overflow == "delay" else 0
    return Limit(rate.max, rate.interval_seconds * 1000, rate.burst, rate.cooldown_seconds * 1000, delay)


def usage_of(record: RateRecord, limit: Limit) -> RouteUsage:
    cooldown = record.cooldown_until_ms
    return RouteUsage(
        interval_start=rfc3339(start_ms(record)),
        interval_end=rfc3339(end_ms(record)),
        allowed=allowed(record, limit),
        used=record.used,
        available=available(record, limit),
        delayed=record.debt,
        exhausted_until=rfc3339(cooldown) if cooldown > start_ms(record) else None,
    )
