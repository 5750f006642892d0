"""Callers and their permissions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from postroad.kernel.matching import glob_matches


class Scope(StrEnum):
    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class RouteRequirement(StrEnum):
    """Requirements of routes other than scopes: any valid credential, or a platform key."""

    IDENTITY = "identity"
    PLATFORM = "platform"


class Credential(StrEnum):
    """The kind of credential of a caller. `AWS`: a signature with the secret of an AWS access key. `EMIT`: an emit token of a
    service; `REPLAY`: a replay, which acts for the service of its commands; `HOOK`: accepted by the operator's hook; `NONE`:
    anonymous."""

    KEY = "key"
    AWS = "aws"
    JWT = "jwt"
    TOKEN = "token"  # noqa: S105  # not a secret
    EMIT = "emit"
    REPLAY = "replay"
    HOOK = "hook"
    NONE = "none"


ALL_SCOPES = tuple(Scope)
ALL_RESOURCES = ("*",)
# The only detail that anonymous callers get, for every refusal: different texts would reveal which resources exist.
MISSING_CREDENTIALS_HINT = "send the key as 'Authorization: Bearer <key>' or 'ApiKey <key>'"


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller of a request. For a platform key, `tenant` is the tenant that the request names.

    `allowed` has the globs of each kind of resource that the caller is restricted to; other kinds are not restricted.
    `only_stream` is the stream that a JWT is restricted to. `grants` are the topics that a token or JWT is restricted to, each
    with the patterns of subjects that it may read; None for no such restriction. `key_prefix` is that of the keys of a bucket
    that a token may read.
    `text_id` identifies the text of the key that admitted the caller,
    which a rotation replaces. `issuer` is the id of the key that created the JWT's secret.
    `service` is the service that an emit token sends commands for.
    `session` is the id of the web session, of a caller that sent its cookie instead of the key. The session ends at
    `expires_at_ms`, at the latest with its key.
    The limits are those of the key per worker: None for the defaults, 0 for none.
    """

    tenant: str
    key_id: str
    scopes: frozenset[Scope]
    is_platform: bool = False
    name: str = ""
    credential: Credential = Credential.KEY
    subject: str | None = None
    expires_at_ms: int | None = None
    allowed: Mapping[str, tuple[str, ...]] | None = None
    only_stream: str | None = None
    text_id: str = ""
    issuer: str = ""
    service: str | None = None
    max_requests_per_second: int | None = None
    max_live_connections: int | None = None
    grants: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    key_prefix: str = ""
    session: str = ""

    @property
    def is_partial(self) -> bool:
        """True if the caller is restricted to a part of the tenant's resources."""
        return self.allowed is not None or self.only_stream is not None or self.grants is not None

    def may_use(self, kind: str, name: str) -> bool:
        """True if the restrictions allow the resource of this kind and name."""
        if self.only_stream is not None and (kind != "stream" or name != self.only_stream):
            return False
        if self.grants is not None and kind == "topic" and all(topic != name for topic, _ in self.grants):
            return False
        if self.allowed is None:
            return True
        globs = self.allowed.get(kind)
        return globs is None or any(glob_matches(glob, name) for glob in globs)

    def own_service(self, name: str | None) -> str:
        """The service of a sender or target `<tenant>/<service>` of commands; empty if it is of another tenant."""
        tenant, _, service = (name or "").partition("/")
        return service if tenant == self.tenant else ""

    def granted_patterns(self, topic: str) -> tuple[str, ...] | None:
        """The patterns of subjects that the caller may read of a topic; None for all."""
        if self.grants is None:
            return None
        return tuple(sorted({pattern for name, patterns in self.grants if name == topic for pattern in patterns}))

    def is_restricted(self, kind: str) -> bool:
        """False if `may_use` allows every resource of this kind."""
        if kind == "topic" and self.grants is not None:
            return True
        return self.only_stream is not None or (self.allowed is not None and self.allowed.get(kind) is not None)


def grantable_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Scopes that a key with these scopes can grant to keys and JWT secrets. `admin` manages the tenant's credentials: all.

    Resources, expiry and limits of what it creates stay within those of the key.
    """
    own = frozenset(scopes)
    return frozenset(ALL_SCOPES) if Scope.ADMIN in own else own


def resource_restrictions(**globs: Iterable[str]) -> dict[str, tuple[str, ...]] | None:
    """The globs by kind, without kinds that allow every name; None if no kind is restricted."""
    kept = {kind: tuple(some) for kind, some in globs.items() if "*" not in tuple(some)}
    return kept or None


def is_within(allowed: Mapping[str, tuple[str, ...]] | None, limits: Mapping[str, tuple[str, ...]] | None) -> bool:
    """True if `allowed` matches no resource that `limits` refuses. In doubt, for patterns that overlap, False."""
    return not any(globs_beyond((allowed or {}).get(kind, ALL_RESOURCES), globs) for kind, globs in (limits or {}).items())


def globs_beyond(globs: Iterable[str], limits: Iterable[str]) -> list[str]:
    """The globs that may match names which no glob of `limits` matches.

    A limit that matches the text of a glob matches all its names: only a `*` can match the `*` in the text.
    """
    return [glob for glob in globs if not any(glob_matches(limit, glob) for limit in limits)]


def common_globs(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Globs for the names that both match. Names that match by an overlap of two different patterns only are left out."""
    beyond = {*globs_beyond(one, other), *globs_beyond(other, one)}
    return tuple(glob for glob in dict.fromkeys((*one, *other)) if glob not in beyond)
