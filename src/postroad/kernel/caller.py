"""Who is calling, and what that allows."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ALL_SCOPES = tuple(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling, as authentication found it. For a platform key `tenant` is the one that the request names."""

    tenant: str
    key_id: str
    scopes: frozenset[Scope]
    is_platform: bool = False
