"""Tenants, keys, JWT secrets, stream tokens and invites."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, page_of
from postroad.api.selectors import KEY_CHARS_MAX, PATTERNS_MAX, PREFIX, SubjectPattern
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import AuthError, NotFound
from postroad.kernel.identity import ALL_RESOURCES, Credential, Scope
from postroad.kernel.matching import pattern
from postroad.kernel.names import TOPIC_CHARS_MAX

GRACE_SECONDS_MAX = 30 * 86_400

TenantId = Annotated[str, Meta(min_length=1, max_length=32, pattern="^[a-z0-9][a-z0-9-]*$", description="Id of the tenant.")]
Description = Annotated[str, Meta(max_length=1000, description="Note for people.")]
KeyName = Annotated[
    str, Meta(min_length=1, max_length=100, description="Name for people, such as the service that uses the key.")
]
Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=8, description="Operations that the key allows.")]
Glob = Annotated[str, Meta(min_length=1, max_length=128)]
Globs = Annotated[tuple[Glob, ...], Meta(max_length=64, description="Names; `*` matches any run of characters.")]
RequestRate = Annotated[
    int,
    Meta(ge=0, le=1_000_000, description="Requests per second and worker; 0 for no limit, null for the installation's default."),
]
LiveConnections = Annotated[
    int, Meta(ge=0, le=1_000_000, description="Waiting long polls and streamed responses per worker; 0 or null for no limit.")
]
CreatedCursor = Annotated[str, Meta(pattern=r"^[0-9]{1,18}\.[0-9A-Za-z]{16}$")]  # creation time and id of the last item


class TenantDisabled(AuthError, code="tenant-disabled", status=403, title="Tenant disabled"):
    """The tenant is disabled or is being deleted. Its credentials are refused until it is enabled."""


class TenantNotFound(NotFound, code="tenant-not-found", status=404, title="Tenant not found"):
    """The tenant that the platform key named does not exist."""


class KeyRequired(AuthError, code="key-required", status=403, title="Key required"):
    """A web session cannot grant what outlives it. Send the key itself, in the header `Authorization`."""


class KeyNotFound(NotFound, code="key-not-found", status=404, title="Key not found"):
    """No key has this id, or the caller may not see it."""


class SecretNotFound(NotFound, code="secret-not-found", status=404, title="Secret not found"):
    """The tenant has no JWT secret with this id."""


class InviteNotFound(NotFound, code="invite-not-found", status=404, title="Invite not found"):
    """The invite id or code is unknown, or the invite was revoked."""


class InviteEnded(NotFound, code="invite-ended", status=410, title="Invite expired"):
    """The invite was already used, or it has expired. Ask for a new one."""


class IssuedCredential(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of responses whose first field is a secret that is shown once. Printing the object masks it."""

    def __repr__(self) -> str:
        secret, *rest = self.__struct_fields__
        shown = "".join(f", {name}={getattr(self, name)!r}" for name in rest)
        return f"{type(self).__name__}({secret}='***'{shown})"


# Tenants


class TenantState(StrEnum):
    """The id of a deleted tenant stays in use: a new tenant of that id would see the old one's audit log and events."""

    READY = "ready"
    DISABLED = "disabled"
    DELETING = "deleting"
    DELETED = "deleted"


class Tenant(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    state: TenantState
    description: str
    created_at: Timestamp
    updated_at: Timestamp


class NewTenant(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    id: TenantId
    description: Description = ""
    auto_create_queues: Annotated[bool, Meta(description="Publishing to a queue that does not exist creates it.")] = False


class TenantChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Fields to change; omitted fields keep their value."""

    description: Description | UnsetType = UNSET
    enabled: Annotated[bool | UnsetType, Meta(description="The credentials of a disabled tenant are refused.")] = UNSET


class TenantQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


TenantPage = page_of(Tenant, "tenants")


# Keys


class KeyProperties(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A key without its text and its usage."""

    id: str
    tenant: Annotated[str | None, Meta(description="null for a platform key.")]
    name: str
    scopes: tuple[Scope, ...]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_buckets: tuple[str, ...] = msgspec.field(default_factory=lambda: ALL_RESOURCES)  # missing in earlier versions
    allowed_streams: tuple[str, ...]
    allowed_services: tuple[str, ...] = msgspec.field(default_factory=lambda: ALL_RESOURCES)  # never left out
    enabled: bool
    created_by: str | None = None
    created_at: Timestamp
    updated_at: Timestamp
    expires_at: Timestamp | None
    rotated_until: Annotated[Timestamp | None, Meta(description="End of the grace period of the previous text.")] = None
    max_requests_per_second: int | None = None
    max_live_connections: int | None = None
    aws_access_key_id: Annotated[str | None, Meta(description="AWS access key id, if the key has an AWS secret.")] = None


class Key(KeyProperties, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A key. Its text is shown once, in the response that creates or rotates it."""

    last_used_at: Annotated[Timestamp | None, Meta(description="Precise to about a minute; null if never used.")]


class IssuedKey(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    """`key` is the text to authenticate with. It is shown here only."""

    key: str
    record: KeyProperties


class AwsAccessKey(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    """Credentials for AWS SDKs. `secret_access_key` is shown here only."""

    secret_access_key: str
    access_key_id: str
    account_id: str
    record: KeyProperties


class NewKey(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    name: KeyName
    scopes: Scopes
    allowed_queues: Globs = ALL_RESOURCES
    allowed_topics: Globs = ALL_RESOURCES
    allowed_buckets: Globs = ALL_RESOURCES
    allowed_streams: Globs = ALL_RESOURCES
    allowed_services: Globs = ALL_RESOURCES
    expires_at: AwareDatetime | None = None
    max_requests_per_second: RequestRate | None = None
    max_live_connections: LiveConnections | None = None
    platform: Annotated[bool, Meta(description="Create a platform key. Platform keys only.")] = False


class KeyChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Fields to change; omitted fields keep their value."""

    name: KeyName | UnsetType = UNSET
    scopes: Scopes | UnsetType = UNSET
    allowed_queues: Globs | UnsetType = UNSET
    allowed_topics: Globs | UnsetType = UNSET
    allowed_buckets: Globs | UnsetType = UNSET
    allowed_streams: Globs | UnsetType = UNSET
    allowed_services: Globs | UnsetType = UNSET
    expires_at: AwareDatetime | UnsetType | None = UNSET
    max_requests_per_second: RequestRate | UnsetType | None = UNSET
    max_live_connections: LiveConnections | UnsetType | None = UNSET
    enabled: Annotated[bool | UnsetType, Meta(description="Every gateway refuses a disabled key.")] = UNSET


class KeyRotation(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    grace_seconds: Annotated[int, Meta(ge=0, le=GRACE_SECONDS_MAX, description="Seconds that the previous text stays valid.")] = (
        86_400
    )


class KeyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: CreatedCursor | None = None
    platform: Annotated[bool, Meta(description="List the platform keys instead of the tenant's. Platform keys only.")] = False


KeyPage = page_of(Key, "keys")


class WhoAmI(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The credential of the request and its permissions."""

    tenant: str
    platform: bool
    credential: Credential
    key_id: str
    key_name: str
    subject: str | None
    scopes: tuple[Scope, ...]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_buckets: tuple[str, ...] = msgspec.field(default_factory=lambda: ALL_RESOURCES)  # missing in earlier versions
    allowed_streams: tuple[str, ...]
    allowed_services: tuple[str, ...] = ALL_RESOURCES
    expires_at: Timestamp | None
    account_id: Annotated[str | None, Meta(description="AWS account id of the tenant.")] = None


# Web sessions


class NewWebSession(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One of the two; `key` counts if both are given."""

    key: Annotated[str, Meta(min_length=1, max_length=128, description="Text of the key that the session acts as.")] | None = None
    access: (
        Annotated[str, Meta(min_length=1, max_length=512, description="Code of a sign-in link, which is valid once.")] | None
    ) = None


class WebSession(WhoAmI, frozen=True, rename="camel", kw_only=True):
    """The credential of the request, as `whoami` shows it, and what this installation has."""

    signed_in: Annotated[bool, Meta(description="True for a request with the session cookie.")]
    session_expires_at: Annotated[Timestamp | None, Meta(description="When the browser must sign in again.")]
    version: str
    features: Annotated[tuple[str, ...], Meta(description="Capabilities of the installation.")]


class NewSignInLink(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    expires_in_seconds: Annotated[int, Meta(ge=10, le=86_400, description="Seconds until the link expires.")] = 600


class SignInLink(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    url: Annotated[str, Meta(description="Opens the console signed in as the key of the request, once.")]
    expires_at: Timestamp


# JWT secrets


class JwtScope(StrEnum):
    READ = "read"
    WRITE = "write"


class JwtSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret that the tenant signs JWTs with, without its text. `id` may be the `kid` of a JWT."""

    id: str
    name: str
    scopes: Annotated[tuple[Scope, ...], Meta(description="Scopes that its JWTs can have.")] = (
        Scope.READ,
        Scope.WRITE,
    )
    allowed_streams: Annotated[
        tuple[str, ...], Meta(description="Streams that its JWTs can be for: those of the key that created it.")
    ] = ALL_RESOURCES
    created_by: Annotated[
        str | None,
        Meta(description="Id of the key that created it; its JWTs end with the key. null if an earlier version created it."),
    ] = None
    created_at: Timestamp
    expires_at: Timestamp | None


class IssuedJwtSecret(IssuedCredential, frozen=True, kw_only=True):
    """`secret` is the text to sign JWTs with (HS256). It is shown here only."""

    secret: str
    record: JwtSecret


class NewJwtSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    secret: (
        Annotated[str, Meta(min_length=32, max_length=512, description="Generated, and shown once, if omitted.")] | UnsetType
    ) = UNSET
    scopes: (
        Annotated[
            tuple[JwtScope, ...],
            Meta(min_length=1, max_length=2, description="Scopes that its JWTs can have; those of the key itself if omitted."),
        ]
        | UnsetType
    ) = UNSET
    expires_at: AwareDatetime | None = None


class JwtSecretPage(msgspec.Struct, frozen=True, kw_only=True):
    """All JWT secrets of a tenant. They are few: there is one page."""

    items: list[JwtSecret] = msgspec.field(name="secrets")
    next_cursor: ClassVar[None] = None


# Stream tokens


GRANTS_MAX = 32


class TopicGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic that a token may read, and patterns of the subjects that it sees of it."""

    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]
    filter: Annotated[tuple[SubjectPattern, ...], Meta(min_length=1, max_length=PATTERNS_MAX)] | SubjectPattern = (">",)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Raises InvalidParameter."""
        return tuple(pattern(one) for one in ((self.filter,) if isinstance(self.filter, str) else self.filter))


class NewToken(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    resource: Annotated[str, Meta(min_length=1, max_length=512, description="Resource to read, such as `telemetry`.")]
    expires_in_seconds: Annotated[int, Meta(ge=1, le=86_400, description="Seconds until the token expires.")] = 3600
    once: Annotated[bool, Meta(description="Valid for one connection.")] = False
    grants: (
        Annotated[
            tuple[TopicGrant, ...],
            Meta(min_length=1, max_length=GRANTS_MAX, description="For `live`: topics with patterns, as JSON."),
        ]
        | None
    ) = None
    prefix: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=KEY_CHARS_MAX,
                description="For `bucket/{bucket}`: only keys that start with this text.",
                extra_json_schema={"pattern": PREFIX},
            ),
        ]
        | None
    ) = None


class IssuedToken(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    token: Annotated[str, Meta(description="Send it as `?bearer=` or as a Bearer token.")]
    resource: str
    expires_at: Timestamp


# Invites

InviteState = Literal["open", "claimed", "expired"]


class Invite(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    state: InviteState
    tenant: Annotated[str | None, Meta(description="The only tenant id that it can create; null for any.")]
    note: str
    auto_create_queues: bool
    created_by: str
    created_at: Timestamp
    expires_at: Timestamp
    claimed_at: Timestamp | None
    claimed_tenant: str | None


class IssuedInvite(IssuedCredential, frozen=True, kw_only=True):
    """`code` is the text to claim the invite with. It is shown here only."""

    code: str
    invite: Invite


class NewInvite(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    tenant: Annotated[TenantId | None, Meta(description="The only tenant id that it can create; any if omitted.")] = None
    note: Annotated[str, Meta(max_length=1000, description="Note for people, such as the recipient.")] = ""
    auto_create_queues: Annotated[
        bool, Meta(description="In the tenant, publishing to a queue that does not exist creates it.")
    ] = False
    expires_in_seconds: Annotated[int, Meta(ge=60, le=90 * 86_400, description="Seconds until the invite expires.")] = 7 * 86_400


class InviteClaim(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, max_length=128)]
    tenant: Annotated[TenantId | None, Meta(description="Id of the tenant; may be omitted if the invite names it.")] = None
    key_name: Annotated[str, Meta(min_length=1, max_length=100)] = "first key"


class InviteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: CreatedCursor | None = None


InvitePage = page_of(Invite, "invites")
