"""Event types of commands. Those named `snavio.…` are stored in `COMMANDS`, in the tenant of the sender."""

from typing import ClassVar

import msgspec

from postroad.kernel.event import Event


class CommandEvent(Event, frozen=True, kw_only=True):
    """An event of a sender's commands. `source` is `<tenant>/<service>`."""

    stream: ClassVar[str] = "COMMANDS"

    source: str


class CommandDelivered(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.delivered"):
    """A command passed all checks and is in the queue of its target. `escalated` is the reason why it took the slow path."""

    version: int = 1
    command_id: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    message_id: str
    path: str
    escalated: str | None = None
    dispatch_latency_ms: float
    replay: bool = False


class CommandRefused(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.invalid"):
    """A command failed the checks of its structure, time or signature: `reason` says which. Fields that it lacked are null."""

    version: int = 1
    command_id: str | None = None
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    reason: str


class CommandFailed(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.failed"):
    """A valid command was not delivered: `reason` is `acl-deny`, `route-missing` or `delivery-failure`."""

    version: int = 1
    command_id: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    reason: str
    detail: str = ""
    escalated: str | None = None
    replay: bool = False


class ExecutedAfterAclRevoked(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.executed_after_acl_revoked"):
    """A command was delivered by a cached grant that had been revoked `stale_duration_seconds` before."""

    version: int = 1
    target: str
    command_name: str = msgspec.field(name="command.name")
    stale_duration_seconds: float
    acl_revocation_timestamp: str


class LegacyKeyUsed(CommandEvent, frozen=True, kw_only=True, tag="snavio.secret.legacy_key_used"):
    """The previous version of a secret was used. At most once a minute for each service and version."""

    version: int = 1
    version_id: str
    time_of_last_config_poll: str | None = None


class KeyExpiryImminent(CommandEvent, frozen=True, kw_only=True, tag="snavio.secret.key_expiry_imminent"):
    """A secret that expires within 48 hours is in use, and its service has not polled since the rotation. At most once a day."""

    version: int = 1
    version_id: str
    time_of_last_config_poll: str | None = None


class SkewNearLimit(CommandEvent, frozen=True, kw_only=True, tag="snavio.telemetry.skew_near_limit"):
    """The clock of the sender differs from that of the engine by 80 % of what is allowed, or more. Positive: it is behind."""

    version: int = 1
    command_id: str
    skew_seconds: float
    sent_at: str
    received_at: str


class SkewSample(CommandEvent, frozen=True, kw_only=True, tag="snavio.telemetry.skew_sample"):
    """The difference of the clocks, for one in a hundred commands."""

    version: int = 1
    skew_seconds: float
    sent_at: str
    received_at: str


class CacheRefreshed(Event, frozen=True, kw_only=True, tag="cache.refreshed"):
    """A worker loaded a cache of the registry (`cache_type`: `routing`, `ACL` or `HMAC`), or one that was stale is current again.
    The tenant is `_platform`."""

    version: int = 1
    worker: str
    cache_type: str
    age_seconds: float
    fresh_ttl: float
    stale_ttl: float


EVENTS: tuple[type[Event], ...] = (
    CommandDelivered,
    CommandRefused,
    CommandFailed,
    ExecutedAfterAclRevoked,
    LegacyKeyUsed,
    KeyExpiryImminent,
    SkewNearLimit,
    SkewSample,
    CacheRefreshed,
)
