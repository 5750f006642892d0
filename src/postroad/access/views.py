"""Tenants and credentials as the API shows them: no secret, no hash."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.access.records import InviteRecord, KeyRecord, SecretRecord, TenantRecord, TenantState
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.identity import Scope


class TenantView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    state: TenantState
    description: str
    created_at: Timestamp
    updated_at: Timestamp


class KeyView(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A key. Its text is shown once, by the call that made it."""

    id: str
    tenant: Annotated[str | None, Meta(description="null: a platform key.")]
    name: str
    scopes: tuple[Scope, ...]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_streams: tuple[str, ...]
    enabled: bool
    created_by: str | UnsetType = UNSET
    created_at: Timestamp
    updated_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Annotated[Timestamp | UnsetType | None, Meta(description="To about a minute; null: never.")] = UNSET
    rotated_until: Annotated[
        Timestamp | UnsetType, Meta(description="Until when the text before the latest rotation is good.")
    ] = UNSET


class SecretView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret that the tenant signs JWTs with. `id` may be a JWT's `kid`."""

    id: str
    name: str
    created_at: Timestamp
    expires_at: Timestamp | None


InviteState = Literal["open", "claimed", "expired"]


class InviteView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    state: InviteState
    tenant: Annotated[str | None, Meta(description="The only name it is good for, if there is one.")]
    note: str
    auto_create_queues: bool
    created_by: str
    created_at: Timestamp
    expires_at: Timestamp
    claimed_at: Timestamp | None
    claimed_tenant: str | None


def tenant_view(record: TenantRecord) -> TenantView:
    return TenantView(
        id=record.id,
        state=record.state,
        description=record.description,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def key_view(record: KeyRecord, last_used_ms: int | UnsetType | None = UNSET) -> KeyView:
    phased_out = [one.expires_at_ms for one in record.hashes if one.expires_at_ms is not None]
    return KeyView(
        id=record.id,
        tenant=record.tenant,
        name=record.name,
        scopes=record.scopes,
        allowed_queues=record.allowed_queues,
        allowed_topics=record.allowed_topics,
        allowed_streams=record.allowed_streams,
        enabled=record.is_enabled,
        created_by=record.created_by or UNSET,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        expires_at=_time(record.expires_at_ms),
        last_used_at=UNSET if last_used_ms is UNSET else _time(last_used_ms),
        rotated_until=rfc3339(max(phased_out)) if phased_out else UNSET,
    )


def secret_view(record: SecretRecord) -> SecretView:
    return SecretView(
        id=record.id, name=record.name, created_at=rfc3339(record.created_at_ms), expires_at=_time(record.expires_at_ms)
    )


def invite_view(record: InviteRecord, now_ms: int) -> InviteView:
    state: InviteState = (
        "claimed" if record.claimed_at_ms is not None else "expired" if record.expires_at_ms <= now_ms else "open"
    )
    return InviteView(
        id=record.id,
        state=state,
        tenant=record.tenant,
        note=record.note,
        auto_create_queues=record.auto_create_queues,
        created_by=record.created_by,
        created_at=rfc3339(record.created_at_ms),
        expires_at=rfc3339(record.expires_at_ms),
        claimed_at=_time(record.claimed_at_ms),
        claimed_tenant=record.claimed_tenant,
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
