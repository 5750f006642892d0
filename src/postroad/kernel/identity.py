"""Who is calling, and what that allows."""

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
    """What a route may ask of a caller beside a scope: to be somebody, or to hold a platform key."""

    IDENTITY = "identity"
    PLATFORM = "platform"


class Credential(StrEnum):
    """By what a caller was known. `HOOK`: by the operator's own code; `NONE`: by nothing, it is anybody."""

    KEY = "key"
    JWT = "jwt"
    TOKEN = "token"  # noqa: S105  # the word, not one of them
    HOOK = "hook"
    NONE = "none"


ALL_SCOPES = tuple(Scope)
ALL_RESOURCES = ("*",)
# All that nobody in particular is told, wherever it is refused: two answers that differ would tell what is there.
MISSING_CREDENTIALS_HINT = "send the key as 'Authorization: Bearer <key>' or 'ApiKey <key>'"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling, as authentication found it. For a platform key `tenant` is the one that the request names.

    `allowed` has the globs of each kind of thing that the caller is kept to; a kind that is not in it is free. `only_stream` is
    the one stream that a JWT is for.
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

    def may_use(self, kind: str, name: str) -> bool:
        """Whether the caller may touch the `queue`, `topic` or `stream` of this name, as far as its globs go."""
        if self.only_stream is not None and (kind != "stream" or name != self.only_stream):
            return False
        if self.allowed is None:
            return True
        globs = self.allowed.get(kind)
        return globs is None or any(glob_matches(glob, name) for glob in globs)


def resource_restrictions(**globs: Iterable[str]) -> dict[str, tuple[str, ...]] | None:
    """The globs by kind, without those that allow everything; None if that leaves nothing."""
    kept = {kind: tuple(some) for kind, some in globs.items() if "*" not in tuple(some)}
    return kept or None
