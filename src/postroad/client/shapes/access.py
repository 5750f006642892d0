"""Tenants and credentials, as the client hands them back.

What is a fixed set of words on the server (scopes, states) is a text here: a newer server may have more of them.
"""

import msgspec


class ShownOnce(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Its first field is a secret that the server shows once; printing the object does not show it."""

    def __repr__(self) -> str:
        secret, *rest = self.__struct_fields__
        shown = "".join(f", {name}={getattr(self, name)!r}" for name in rest)
        return f"{type(self).__name__}({secret}='***'{shown})"


class Tenant(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`state` is `ready`, `disabled` or `deleting`."""

    id: str
    state: str
    description: str
    created_at: str
    updated_at: str


class TenantPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    tenants: list[Tenant]
    next_cursor: str | None


class Key(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key without its text. `tenant` is None for a platform key.

    `last_used_at` is exact to about a minute; None means never. The calls that make or rotate a key do not tell it.
    """

    id: str
    tenant: str | None
    name: str
    scopes: tuple[str, ...]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_streams: tuple[str, ...]
    enabled: bool
    created_at: str
    updated_at: str
    expires_at: str | None
    created_by: str | None = None
    last_used_at: str | None = None
    rotated_until: str | None = None


class KeyPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    keys: list[Key]
    next_cursor: str | None


class MadeKey(ShownOnce, frozen=True, kw_only=True):
    """`key` is the text to call with; nobody can ask for it again."""

    key: str
    record: Key


class WhoAmI(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the credential of the call is, and allows."""

    tenant: str
    platform: bool
    credential: str
    key_id: str
    key_name: str
    subject: str | None
    scopes: tuple[str, ...]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_streams: tuple[str, ...]
    expires_at: str | None


class JwtSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret that the tenant signs JWTs with, without its text. `id` may be a JWT's `kid`."""

    id: str
    name: str
    created_at: str
    expires_at: str | None


class JwtSecretList(msgspec.Struct, frozen=True):
    secrets: list[JwtSecret]


class MadeJwtSecret(ShownOnce, frozen=True, kw_only=True):
    """`secret` is what to sign with (HS256); nobody can ask for it again."""

    secret: str
    record: JwtSecret


class MadeToken(ShownOnce, frozen=True, rename="camel", kw_only=True):
    """`token` goes into `?bearer=`, or is sent as a Bearer token."""

    token: str
    resource: str
    expires_at: str


class Invite(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`state` is `open`, `claimed` or `expired`; with `tenant` it is good for that name only."""

    id: str
    state: str
    tenant: str | None
    note: str
    auto_create_queues: bool
    created_by: str
    created_at: str
    expires_at: str
    claimed_at: str | None
    claimed_tenant: str | None


class InvitePage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    invites: list[Invite]
    next_cursor: str | None


class MadeInvite(ShownOnce, frozen=True, kw_only=True):
    """`code` is what the invited one claims with; nobody can ask for it again."""

    code: str
    invite: Invite
