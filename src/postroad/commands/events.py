"""Event types of commands. Those of senders are stored in `COMMANDS`, in the tenant of the sender."""

from typing import ClassVar

import msgspec

from postroad.kernel.event import Event


class CommandEvent(Event, frozen=True, kw_only=True):
    """An event of a sender's commands. `source` is `<tenant>/<service>`."""

    stream: ClassVar[str] = "COMMANDS"
    table: ClassVar[str] = "command_events"

    source: str


class CommandDelivered(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.delivered"):
    """A command passed all checks and is in the queue of its target. `escalated` is the reason why it took the slow path,
    `deliver_at` the time until which a rate limit delays it, `shadow` why a limit in shadow mode would have refused it.
    `dispatch_latency_ms` of a command with strict deduplication ends before its write, so that a repeated event is identical."""

    version: int = 1
    command_id: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    message_id: str
    path: str
    escalated: str | None = None
    dispatch_latency_ms: float
    deliver_at: str | None = None
    shadow: str | None = None
    replay: bool = False
    replay_reason: str | None = None
    replay_id: str | None = None


class CommandRefused(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.invalid"):
    """A command failed the checks of its structure, time or signature: `reason` says which. Fields that it lacked are null."""

    version: int = 1
    command_id: str | None = None
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    reason: str
    replay: bool = False
    replay_reason: str | None = None
    replay_id: str | None = None


class CommandFailed(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.failed"):
    """A valid command was not delivered: `reason` is `acl-deny`, `route-missing`, `delivery-failure`, `rate-limit-exceeded` or
    `fairness-violation`. The last two have the time from which on it may be sent again, and if known the shares of the route."""

    version: int = 1
    command_id: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    reason: str
    detail: str = ""
    escalated: str | None = None
    replay: bool = False
    replay_reason: str | None = None
    replay_id: str | None = None
    retry_after_ms: int | None = None
    throttle_until: str | None = None
    source_share: float | None = None
    competing_share: float | None = None
    dispatch_volume: int | None = None


class CommandArchived(CommandEvent, frozen=True, kw_only=True, tag="command.archived"):
    """A command as it was received, and what became of it: the line after its outcome event, in the same frame.

    `timestamp` is when it was received, `sent_at` the text of its own timestamp. `target` is `<tenant>/<service>` if it could be
    read, else as it was sent. `payload` is its text as it was sent; null if its HMAC is not valid or it is too large, then only
    `payload_hash` (hex of SHA-256) is stored. `outcome` is `delivered`, `failed`, `invalid` or `duplicate`.
    """

    table: ClassVar[str] = "commands"
    is_attached: ClassVar[bool] = True

    version: int = 1
    command_id: str | None = None
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    sent_at: str | None = None
    payload: str | None = None
    payload_hash: str | None = None
    payload_bytes: int = 0
    outcome: str
    reason: str | None = None
    message_id: str | None = None
    replay: bool = False
    replay_reason: str | None = None
    replay_id: str | None = None


class CommandDuplicate(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.duplicate"):
    """A command of a route with strict deduplication was delivered before under the same id, and not again."""

    version: int = 1
    command_id: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    dedupe_mode: str = "strict"
    message_id: str
    path: str
    replay: bool = False
    replay_reason: str | None = None
    replay_id: str | None = None


class WarmPathBan(CommandEvent, frozen=True, kw_only=True, tag="snavio.fairness.warm-path-ban"):
    """A worker sends the commands of a dominant sender by the slow path for a while. Once per window, route and sender."""

    version: int = 1
    target: str
    command_name: str = msgspec.field(name="command.name")
    source_share: float
    competing_share: float
    retry_after_ms: int
    throttle_until: str


class BanCreated(CommandEvent, frozen=True, kw_only=True, tag="ban.created"):
    """A sender was banned: `kind` is `warm`, `cold-only` or `hard`. Without a target the ban is for all routes."""

    version: int = 1
    kind: str
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    reason: str
    creator: str
    expires_at: str


class BanEnded(CommandEvent, frozen=True, kw_only=True, tag="ban.ended"):
    """A ban was ended before its time."""

    version: int = 1
    kind: str
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)


class ExecutedAfterAclRevoked(CommandEvent, frozen=True, kw_only=True, tag="snavio.command.executed_after_acl_revoked"):
    """A command was delivered by a cached grant that had been revoked `stale_duration_seconds` before."""

    version: int = 1
    target: str
    command_name: str = msgspec.field(name="command.name")
    stale_duration_seconds: float
    acl_revocation_timestamp: str


class AbuseDetected(CommandEvent, frozen=True, kw_only=True, tag="snavio.fairness.abuse_detected"):
    """The auditor found that a source dominates routes that others use, and it was banned. Once for each ban.

    `affected_targets` are `<tenant>/<service>`. `total_violations` counts the dominated minutes and the `warm-path-ban`s of the
    ten minutes before.
    """

    version: int = 1
    affected_targets: list[str]
    total_violations: int
    ban_applied_until: str


class SourceFlagged(CommandEvent, frozen=True, kw_only=True, tag="fairness.flagged"):
    """The service accepted a verdict of the auditor: in this minute a source dominated routes that others use.

    `share` is its largest share, `result` is `banned`, or `shadow` if POSTROAD_AUDITOR lets it report only.
    """

    version: int = 1
    minute: str
    affected_targets: list[str]
    share: float
    violations: int
    result: str


class LimitSampled(Event, frozen=True, kw_only=True, tag="limit.sampled"):
    """The rate limit of a route, when it is new or has changed, and every five minutes: `max` commands per `interval_seconds`.
    The tenant is the target's."""

    table: ClassVar[str] = "command_events"

    version: int = 1
    target: str
    command_name: str = msgspec.field(name="command.name")
    max: int
    interval_seconds: int
    mode: str


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


class SnapshotTooLarge(Event, frozen=True, kw_only=True, tag="snavio.snapshot.too_large"):
    """The snapshot of the registry exceeds POSTROAD_SNAPSHOT_BYTES_MAX and was not published. The tenant is `_platform`."""

    version: int = 1
    size_bytes: int
    max_bytes: int
    version_id: str


class SnapshotFailed(Event, frozen=True, kw_only=True, tag="snapshot.failed"):
    """A snapshot of the registry could not be validated or published; the previous one stays. The tenant is `_platform`."""

    version: int = 1
    version_id: str
    detail: str


EVENTS: tuple[type[Event], ...] = (
    CommandDelivered,
    CommandRefused,
    CommandFailed,
    CommandArchived,
    CommandDuplicate,
    ExecutedAfterAclRevoked,
    AbuseDetected,
    SourceFlagged,
    LimitSampled,
    LegacyKeyUsed,
    KeyExpiryImminent,
    SkewNearLimit,
    SkewSample,
    WarmPathBan,
    BanCreated,
    BanEnded,
    CacheRefreshed,
    SnapshotTooLarge,
    SnapshotFailed,
)
