"""Tenant settings and the audit log."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page
from postroad.kernel.clock import AwareDatetime, Timestamp

# Tenant settings


class AuditMode(StrEnum):
    """Which events of jobs are recorded."""

    FULL = "full"
    JOBS_ONLY = "jobs_only"
    OFF = "off"


_Lease = Annotated[int, Meta(ge=0, le=43_200_000)]
_MaxLease = Annotated[int, Meta(ge=1000, le=43_200_000)]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Bytes = Annotated[int, Meta(ge=1, le=8 * 1024 * 1024 - 64 * 1024)]
MESSAGE_BYTES_MIN = 1024  # a lower limit would refuse ordinary messages
_ChosenBytes = Annotated[int, Meta(ge=MESSAGE_BYTES_MIN, le=8 * 1024 * 1024 - 64 * 1024)]
_StoredBytes = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Pull = Annotated[int, Meta(ge=1, le=1000)]
_Ttl = Annotated[int, Meta(ge=1000, le=30 * 86_400_000)]


EventPattern = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^!?[a-z*_.>-]+$")]


class TenantSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Values of all tenant settings."""

    audit_mode: AuditMode
    auto_create_queues: bool
    auto_create_topics: bool = False
    visibility_timeout_ms: _Lease
    receipt_ttl_max_ms: _MaxLease
    idempotency_ttl_ms: _Ttl
    pull_max: _Pull
    max_message_bytes: _Bytes
    max_queues: _Count
    max_topics: _Count = 0
    max_buckets: _Count = 0
    max_services: _Count = 0
    max_routes: _Count = 0
    commands_by_key: bool = True
    telemetry_events: tuple[EventPattern, ...] = ()
    contact: Annotated[str, Meta(max_length=254)] = ""
    snavio_dispatch_mode: Literal["adaptive", "cold-only"] = "adaptive"
    max_keys: _Count
    max_storage_bytes: _StoredBytes | None = None
    max_requests_per_second: _Count | None = None
    max_live_connections: _Count | None = None


class EffectiveSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`settings` are the values in effect. `chosen` has those that were set at this level; the others are defaults."""

    settings: TenantSettings
    chosen: dict[str, Any]


class TenantSettingsChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Settings to change. Omitted fields keep their value; null restores the default."""

    audit_mode: Annotated[
        AuditMode | UnsetType | None, Meta(description="Job events that are recorded: `full`, `jobs_only` or `off`.")
    ] = UNSET
    auto_create_queues: Annotated[
        bool | UnsetType | None, Meta(description="Publishing to a queue that does not exist creates it.")
    ] = UNSET
    auto_create_topics: Annotated[
        bool | UnsetType | None, Meta(description="Publishing to a topic that does not exist creates it.")
    ] = UNSET
    visibility_timeout_ms: Annotated[_Lease | UnsetType | None, Meta(description="Default of new queues.")] = UNSET
    receipt_ttl_max_ms: Annotated[
        _MaxLease | UnsetType | None, Meta(description="Longest lease that a pull may request. Platform keys only.")
    ] = UNSET
    idempotency_ttl_ms: Annotated[
        _Ttl | UnsetType | None, Meta(description="Retention of idempotency keys, unless the queue sets its own.")
    ] = UNSET
    pull_max: Annotated[_Pull | UnsetType | None, Meta(description="Messages in one pull. Platform keys only.")] = UNSET
    max_message_bytes: Annotated[_ChosenBytes | UnsetType | None, Meta(description="Largest payload. Platform keys only.")] = (
        UNSET
    )
    max_queues: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_topics: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_buckets: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_services: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_routes: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    commands_by_key: Annotated[
        bool | UnsetType | None,
        Meta(description="Keys that a service trusts may send its commands directly; otherwise emit tokens are needed."),
    ] = UNSET
    telemetry_events: Annotated[
        Annotated[tuple[EventPattern, ...], Meta(max_length=50)] | UnsetType | None,
        Meta(
            description="Event types that the queue `_telemetry` has besides `snavio.>`, as patterns; `!` removes types.",
        ),
    ] = UNSET
    contact: Annotated[
        Annotated[str, Meta(max_length=254, pattern=r"^[^\s@<>]+@[^\s@<>]+$")] | UnsetType | None,
        Meta(description="Email address for critical alerts that no channel is configured for. Platform keys only."),
    ] = UNSET
    snavio_dispatch_mode: Annotated[
        Literal["adaptive", "cold-only"] | UnsetType | None,
        Meta(description="`cold-only`: commands of the tenant's services always take the slow path."),
    ] = UNSET
    max_keys: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_storage_bytes: Annotated[
        _StoredBytes | UnsetType | None,
        Meta(description="Storage quota; 0 for none, null for the tenant's share of the store. Platform keys only."),
    ] = UNSET
    max_requests_per_second: Annotated[
        _Count | UnsetType | None,
        Meta(description="Per worker; 0 for no limit, null for the limit that protects other tenants. Platform keys only."),
    ] = UNSET
    max_live_connections: Annotated[
        _Count | UnsetType | None,
        Meta(description="Waiting long polls and streamed responses per worker; 0 for no limit. Platform keys only."),
    ] = UNSET


# Audit log


class AuditEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One change of the control plane. Stored in this form (format 1) on `audit.<tenant>`.

    `before` and `after` are the API representations of the resource with secrets masked. An entry with the outcome `failed`
    refers to the entry `of`, whose change was not made. The outcome `refused` (action `access.refused`): `target` was attempted
    with a valid key that does not permit it, `attempts` times.
    """

    v: int
    id: str
    at: Timestamp
    tenant: str
    action: str
    target: str
    outcome: str = "ok"
    of: str | None = None
    actor_key_id: str
    actor_is_platform: bool = False
    actor_subject: str | None = None
    request_id: str
    address: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class AuditQuery(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to", "request_id": "requestId"}
):
    since: Annotated[AwareDatetime | None, Meta(description="Not before this time.")] = None
    until: Annotated[AwareDatetime | None, Meta(description="Before this time.")] = None
    action: (
        Annotated[str, Meta(max_length=100, description="An action such as `key.create`, or a prefix such as `key.*`.")] | None
    ) = None
    actor: Annotated[str, Meta(max_length=100, description="Id of the key that made the change.")] | None = None
    target: Annotated[str, Meta(max_length=200)] | None = None
    request_id: Annotated[str, Meta(max_length=128)] | None = None
    tenant: (
        Annotated[
            str,
            Meta(
                max_length=32,
                pattern="^(_platform|[a-z0-9][a-z0-9-]*)$",
                description="Entries of one tenant or of `_platform`; of all if omitted. Platform keys only.",
            ),
        ]
        | None
    ) = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None


class AuditPage(Page[AuditEntry], frozen=True, rename="camel", kw_only=True):
    """Newest first. `scanned` is the number of entries read. A `nextCursor` means that older entries were not read yet."""

    items: list[AuditEntry] = msgspec.field(name="entries")
    scanned: int
    next_cursor: str | None


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Damage of the audit log. `at` is the time at which it was found."""

    kind: Annotated[
        Literal["recreated", "truncated", "removed", "altered", "reconfigured"],
        Meta(
            description=(
                "`recreated`: the stream was deleted; `truncated`: its end is missing; `removed`: entries are missing at its "
                "beginning that the retention keeps; `altered`: entries or checkpoints changed or are missing; `reconfigured`: "
                "the stream has a limit that removes entries."
            )
        ),
    ]
    at: Timestamp
    detail: str


class AuditCheckpoint(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The newest checkpoint. Its hash covers all entries up to `sequence`, by the chain of earlier ones: record it elsewhere."""

    number: int
    at: Timestamp
    sequence: int
    hash: str


class AuditVerification(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Result of comparing the audit log with its checkpoints. `findings` has also those of the last 30 days."""

    intact: Annotated[bool, Meta(description="False if there are findings.")]
    verified: Annotated[int, Meta(description="Entries whose hashes were compared.")]
    unverified: Annotated[int, Meta(description="Entries after the newest checkpoint, or in a segment that is partly removed.")]
    checkpoint: AuditCheckpoint | None
    findings: list[AuditFinding]
