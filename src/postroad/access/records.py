"""What the registry stores of tenants and of their credentials. Versioned; secrets are hashed or locked, never plain."""

from enum import StrEnum

import msgspec

from postroad.access.keys import is_same_hash
from postroad.kernel.identity import ALL_RESOURCES, Scope, resource_restrictions

TENANTS_BUCKET = "postroad_tenants"
KEYS_BUCKET = "postroad_keys"
SECRETS_BUCKET = "postroad_jwt_secrets"
INVITES_BUCKET = "postroad_invites"
KEY_USES_BUCKET = "postroad_key_uses"
TOKEN_USES_BUCKET = "postroad_token_uses"  # noqa: S105  # a bucket's name


class TenantState(StrEnum):
    """A deleted tenant leaves its id behind: a new one of that name would find the old one's audit log and events."""

    READY = "ready"
    DISABLED = "disabled"
    DELETING = "deleting"
    DELETED = "deleted"


class TenantRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`invite` is the one that the tenant was claimed with."""

    v: int = 1
    id: str
    state: TenantState = TenantState.READY
    description: str = ""
    invite: str | None = None
    created_at_ms: int
    updated_at_ms: int


class KeyHash(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One text that the key may be given as. A rotation adds one and lets the ones before it expire."""

    sha256: str
    created_at_ms: int
    expires_at_ms: int | None = None


class KeyRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key, under its id. One without a tenant is a platform key."""

    v: int = 2
    id: str
    tenant: str | None
    name: str
    scopes: tuple[Scope, ...]
    allowed_queues: tuple[str, ...] = ALL_RESOURCES
    allowed_topics: tuple[str, ...] = ALL_RESOURCES
    allowed_streams: tuple[str, ...] = ALL_RESOURCES
    is_enabled: bool = True
    hashes: tuple[KeyHash, ...]
    created_by: str = ""
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int | None = None

    @property
    def allowed(self) -> dict[str, tuple[str, ...]] | None:
        return resource_restrictions(queue=self.allowed_queues, topic=self.allowed_topics, stream=self.allowed_streams)

    def is_good(self, at_ms: int) -> bool:
        return self.is_enabled and (self.expires_at_ms is None or at_ms < self.expires_at_ms)

    def takes(self, sha256: str, at_ms: int) -> bool:
        """Whether this is the hash of one of its texts. Compares with all of them, in the same time wherever they differ."""
        found = [
            is_same_hash(one.sha256, sha256) and (one.expires_at_ms is None or at_ms < one.expires_at_ms) for one in self.hashes
        ]
        return any(found)


class SecretRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret that a tenant signs JWTs with, under `<tenant>.<id>`; `locked` is encrypted (`vault.py`)."""

    v: int = 1
    id: str
    tenant: str
    name: str
    locked: str
    created_at_ms: int
    expires_at_ms: int | None = None


class InviteRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Good for one tenant, once. With `tenant` it is good for that name only."""

    v: int = 1
    id: str
    sha256: str
    tenant: str | None
    note: str = ""
    auto_create_queues: bool = False
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    claimed_at_ms: int | None = None
    claimed_tenant: str | None = None
