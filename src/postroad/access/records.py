"""Stored records of tenants and credentials, and their API representations. Secrets are stored hashed or encrypted."""

import msgspec

from postroad.access.keys import is_same_hash
from postroad.api.access import Invite, InviteState, JwtSecret, Key, KeyProperties, Tenant, TenantState
from postroad.kernel.clock import rfc3339
from postroad.kernel.identity import ALL_RESOURCES, Scope, resource_restrictions

TENANTS_BUCKET = "postroad_tenants"
KEYS_BUCKET = "postroad_keys"
SECRETS_BUCKET = "postroad_jwt_secrets"
INVITES_BUCKET = "postroad_invites"
KEY_USES_BUCKET = "postroad_key_uses"
TOKEN_USES_BUCKET = "postroad_token_uses"  # noqa: S105  # a bucket's name
ENDED_SESSIONS_BUCKET = "postroad_ended_web_sessions"
ACCOUNTS_BUCKET = "postroad_aws_accounts"
AWS_PREFIX = "PRAK"  # of AWS access key ids; the id of the key follows
JWT_SCOPES = (Scope.READ, Scope.WRITE)


class TenantRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tenant, stored under its id. `invite` is the id of the invite that created it."""

    v: int = 1
    id: str
    state: TenantState = TenantState.READY
    description: str = ""
    invite: str | None = None
    created_at_ms: int
    updated_at_ms: int


class KeyHash(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Hash of a text of a key. A rotation adds one; the previous ones expire."""

    sha256: str
    created_at_ms: int
    expires_at_ms: int | None = None

    @property
    def text_id(self) -> str:
        """Identifies the text among those of its key. Too short to find the hash by it."""
        return self.sha256[:16]


class AwsSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The secret of a key's AWS access key, encrypted. A rotation adds one; the previous one expires."""

    id: str
    locked: str
    created_at_ms: int
    expires_at_ms: int | None = None


class KeyRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key, stored under its id. A platform key has no tenant."""

    v: int = 2
    id: str
    tenant: str | None
    name: str
    scopes: tuple[Scope, ...]
    allowed_queues: tuple[str, ...] = ALL_RESOURCES
    allowed_topics: tuple[str, ...] = ALL_RESOURCES
    allowed_buckets: tuple[str, ...] = ALL_RESOURCES
    allowed_streams: tuple[str, ...] = ALL_RESOURCES
    allowed_services: tuple[str, ...] = ALL_RESOURCES
    is_enabled: bool = True
    hashes: tuple[KeyHash, ...]
    created_by: str = ""
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int | None = None
    max_requests_per_second: int | None = None
    max_live_connections: int | None = None
    aws: tuple[AwsSecret, ...] = ()

    @property
    def aws_access_key_id(self) -> str | None:
        return AWS_PREFIX + self.id if self.aws else None

    def aws_secret_by_id(self, secret_id: str, at_ms: int) -> AwsSecret | None:
        """The secret with this id, if it has not expired."""
        found = (one for one in self.aws if one.id == secret_id)
        return next((one for one in found if one.expires_at_ms is None or at_ms < one.expires_at_ms), None)

    @property
    def allowed(self) -> dict[str, tuple[str, ...]] | None:
        return resource_restrictions(
            queue=self.allowed_queues,
            topic=self.allowed_topics,
            bucket=self.allowed_buckets,
            stream=self.allowed_streams,
            service=self.allowed_services,
        )

    def is_active(self, at_ms: int) -> bool:
        """True if the key is enabled and has not expired."""
        return self.is_enabled and (self.expires_at_ms is None or at_ms < self.expires_at_ms)

    def text_of(self, sha256: str, at_ms: int) -> KeyHash | None:
        """The valid text of the key with this hash. The time does not depend on where the hashes differ."""
        found = [one for one in self.hashes if is_same_hash(one.sha256, sha256)]
        return next((one for one in found if one.expires_at_ms is None or at_ms < one.expires_at_ms), None)

    def text_by_id(self, text_id: str, at_ms: int) -> KeyHash | None:
        """The valid text of the key with this id. Without an id, the first text if the key was never rotated: earlier versions
        did not record the id."""
        if not text_id:
            return next((one for one in self.hashes[:1] if one.created_at_ms == self.created_at_ms), None)
        found = (one for one in self.hashes if one.text_id == text_id)
        return next((one for one in found if one.expires_at_ms is None or at_ms < one.expires_at_ms), None)

    def expiry_of(self, text: KeyHash) -> int | None:
        """The time at which this text of the key stops working, None if it does not."""
        return earliest(self.expires_at_ms, text.expires_at_ms)


class EndedSessionRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A web session whose user signed out, stored under its id until the session would have expired."""

    v: int = 1
    key: str


class SecretRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret that a tenant signs JWTs with, stored under `<tenant>.<id>`. `locked` is the encrypted secret.

    `created_by` is the id of the key that created it, which `scopes` and `allowed_streams` are of; JWTs end with that key.
    Earlier versions did not record them: such a secret allows everything that JWTs can do.
    """

    v: int = 1
    id: str
    tenant: str
    name: str
    locked: str
    scopes: tuple[Scope, ...] = JWT_SCOPES
    allowed_streams: tuple[str, ...] = ALL_RESOURCES
    created_by: str = ""
    created_at_ms: int
    expires_at_ms: int | None = None

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.id}"


class AccountRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The AWS account id of a tenant, which it is stored under. Kept after the tenant is deleted, so that no id is used twice."""

    v: int = 1
    tenant: str


class InviteRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An invite, stored under its id. It creates one tenant, of the id `tenant` if that is set."""

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


def tenant_of(record: TenantRecord) -> Tenant:
    return Tenant(
        id=record.id,
        state=record.state,
        description=record.description,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def key_properties_of(record: KeyRecord) -> KeyProperties:
    grace_ends = [one.expires_at_ms for one in record.hashes if one.expires_at_ms is not None]
    return KeyProperties(
        id=record.id,
        tenant=record.tenant,
        name=record.name,
        scopes=record.scopes,
        allowed_queues=record.allowed_queues,
        allowed_topics=record.allowed_topics,
        allowed_buckets=record.allowed_buckets,
        allowed_streams=record.allowed_streams,
        allowed_services=record.allowed_services,
        enabled=record.is_enabled,
        created_by=record.created_by or None,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        expires_at=_time(record.expires_at_ms),
        rotated_until=rfc3339(max(grace_ends)) if grace_ends else None,
        max_requests_per_second=record.max_requests_per_second,
        max_live_connections=record.max_live_connections,
        aws_access_key_id=record.aws_access_key_id,
    )


def key_of(record: KeyRecord, last_used_ms: int | None) -> Key:
    return Key(**msgspec.structs.asdict(key_properties_of(record)), last_used_at=_time(last_used_ms))


def jwt_secret_of(record: SecretRecord) -> JwtSecret:
    return JwtSecret(
        id=record.id,
        name=record.name,
        scopes=record.scopes,
        allowed_streams=record.allowed_streams,
        created_by=record.created_by or None,
        created_at=rfc3339(record.created_at_ms),
        expires_at=_time(record.expires_at_ms),
    )


def invite_of(record: InviteRecord, now_ms: int) -> Invite:
    state: InviteState = (
        "claimed" if record.claimed_at_ms is not None else "expired" if record.expires_at_ms <= now_ms else "open"
    )
    return Invite(
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


def earliest(*times: int | None) -> int | None:
    """The earliest of several expiries, None if there is none."""
    return min((one for one in times if one is not None), default=None)


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
