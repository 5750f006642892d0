"""Settings and the audit log, as the client hands them back."""

from typing import Any

import msgspec


class Preferences(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The settings that change while Postroad runs. `audit_mode` is `full`, `jobs_only` or `off`."""

    audit_mode: str
    auto_create_queues: bool
    visibility_timeout_ms: int
    receipt_ttl_max_ms: int
    idempotency_ttl_ms: int
    pull_max: int
    max_message_bytes: int
    max_queues: int
    max_keys: int


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds, and what of it was chosen here, by its name in the API; the rest is the platform's default."""

    settings: Preferences
    chosen: dict[str, Any]


class AuditEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Who did what, to what, from where. An entry with the outcome `failed` says that the change `of` that id was not made."""

    id: str
    at: str
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


class AuditPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    entries: list[AuditEntry]
    scanned: int
    next_cursor: str | None
