"""Limits of governed commands: rate limits, fairness, bans, quotas, usage.

Fields are in snake_case, like those of routes and grants.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import InvalidRequest, NotFound, Unavailable
from postroad.kernel.names import COMMAND, SERVICE

BANS_PER_TENANT_MAX = 1000
BAN_SECONDS_MAX = 30 * 86_400
BAN_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}((\.[A-Za-z0-9_-]+){3})?$"
_SOURCE = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?({SERVICE.pattern}|\*)$"
_TARGET = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?{SERVICE.pattern}$"


class RateLimitExceeded(
    Unavailable, code="rate-limit-exceeded", status=429, retryable=True, title="Rate limit of the route exceeded"
):
    """The route, or the sender's quota on it, has no tokens left; `retry_after_ms` and `throttle_until` say when it will."""


class FairnessViolation(
    Unavailable, code="fairness-violation", status=429, retryable=True, title="The sender takes more than its share"
):
    """The sender is banned, or it dominates a route whose limit is exhausted; `retry_after_ms` says for how long."""


class CommandMismatch(InvalidRequest, code="command-mismatch", status=422, title="Command id used before"):
    """The sender sent another payload under the same command id to this route, which delivers each id once."""


class BanNotFound(NotFound, code="ban-not-found", status=404, title="Ban not found"):
    """There is no such ban, or it has ended."""


class QuotaNotFound(NotFound, code="quota-not-found", status=404, title="Quota not found"):
    """The route has no quota for this sender."""


# Bans

BanKind = Literal["warm", "cold-only", "hard"]
_SourceName = Annotated[
    str, Meta(pattern=_SOURCE, description="`<tenant>/<service>`, `<service>` of the own tenant, or `<tenant>/*`.")
]


class NewBan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: _SourceName
    kind: Annotated[
        BanKind,
        Meta(description="`warm`: the slow path, with the sender's quota; `cold-only`: the slow path; `hard`: refused."),
    ]
    target: (
        Annotated[str, Meta(pattern=_TARGET, description="Service of the route; null for all, which needs a platform key.")]
        | None
    ) = None
    command: Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="With `target`.")] | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="For people; the sender's tenant sees it.")]
    duration_seconds: Annotated[int, Meta(ge=1, le=BAN_SECONDS_MAX, description="Seconds until the ban ends.")] = 600


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """A ban of a sender, on one route or on all of them."""

    id: str
    source: str
    kind: BanKind
    target: Annotated[str | None, Meta(description="`<tenant>/<service>`; null: all routes.")]
    command: str | None
    reason: str
    creator: Annotated[str, Meta(description="`dispatcher`, `auditor`, `owner` of the route or `operator`.")]
    created_at: Timestamp
    expires_at: Timestamp


class BanQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: _SourceName | None = None
    kind: Annotated[BanKind, Meta(description="Only bans of this kind.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=BAN_PATTERN, max_length=500)] | None = None


class EndBanQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=200, description="Why the ban ends before its time, for the audit log.")] | None = None


BanPage = page_of(Ban, "bans")


# Rate limits

INTERVAL_SECONDS_MAX = 86_400
RATE_MAX = 10_000_000


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A limit on the commands of a route. Any w consecutive intervals admit at most w · `max` + `burst` of them."""

    max: Annotated[int, Meta(ge=1, le=RATE_MAX, description="Commands per interval.")]
    interval_seconds: Annotated[int, Meta(ge=1, le=INTERVAL_SECONDS_MAX, description="Length of an interval.")] = 1
    burst: Annotated[int, Meta(ge=0, le=RATE_MAX, description="Unused commands that later intervals may use.")] = 0
    cooldown_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="Refuse for this long, once the limit was exhausted and a command refused.")
    ] = 0
    mode: Annotated[Literal["enforce", "shadow"], Meta(description="`shadow`: decide and report, never refuse.")] = "enforce"
    overflow: Annotated[
        Literal["reject", "delay"], Meta(description="`delay`: deliver later what exceeds the limit, up to `max_delay_seconds`.")
    ] = "reject"
    max_delay_seconds: Annotated[int, Meta(ge=1, le=INTERVAL_SECONDS_MAX, description="Longest delay of a command.")] = 60
    prefetch_workers: (
        Annotated[int, Meta(ge=0, le=1000, description="Workers that may prefetch tokens per second; null: the installation's.")]
        | None
    ) = None


class Fairness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a sender loses the warm path of a route with a rate limit."""

    enabled: Annotated[bool, Meta(description="False turns the check off.")] = True
    dominant_share: Annotated[float, Meta(gt=0, le=1, description="Share above which a sender is dominant.")] = 0.8
    meaningful_share: Annotated[
        float, Meta(ge=0, le=1, description="Share of all others from which on they compete; or there are enough of them:")
    ] = 0.1
    competing_sources: Annotated[int, Meta(ge=1, le=1000, description="Number of other senders that compete.")] = 3
    dispatches_min: Annotated[
        int, Meta(ge=1, le=RATE_MAX, description="Commands of a sender in the window, from which on it may be dominant.")
    ] = 20
    window_seconds: Annotated[int, Meta(ge=1, le=3600, description="Window in which commands are counted.")] = 30
    ban_seconds: Annotated[int, Meta(ge=1, le=3600, description="How long the sender takes the slow path.")] = 30


class RouteUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a rate limit in the current interval."""

    interval_start: Timestamp
    interval_end: Timestamp
    allowed: Annotated[int, Meta(description="`max`, and what earlier intervals left.")]
    used: Annotated[int, Meta(description="Tokens that were taken, those that workers have prefetched included.")]
    available: int
    delayed: Annotated[int, Meta(description="Commands that are delivered in later intervals.")]
    exhausted_until: Annotated[Timestamp | None, Meta(description="Set during the cooldown.")]


# Quotas


class QuotaDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit on one sender's commands of a route, which applies while the sender is banned from the warm path."""

    max: Annotated[int, Meta(ge=1, le=RATE_MAX, description="Commands per interval.")]
    interval_seconds: Annotated[int, Meta(ge=1, le=INTERVAL_SECONDS_MAX, description="Length of an interval.")] = 1
    burst: Annotated[int, Meta(ge=0, le=RATE_MAX, description="Unused commands that later intervals may use.")] = 0


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    command: str
    max: int
    interval_seconds: int
    burst: int
    created_at: Timestamp
    updated_at: Timestamp


class QuotaQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: Annotated[str, Meta(pattern=f"^{SERVICE.pattern}$", description="Target service.")] | None = None
    command: Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="Only quotas on this command.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=400)] | None = None


QuotaPage = page_of(Quota, "quotas")
