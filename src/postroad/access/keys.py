"""API keys: how they look, how they are stored, and what they allow.

`pr_live_<43 characters><6 characters>`: the prefix and the checksum at the end let secret scanners find a leaked key without
asking us. Only the SHA-256 of a key is stored; with 256 random bits behind it there is nothing to guess.
"""

import hashlib
import secrets
import zlib

import msgspec

from postroad.kernel.caller import Scope

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TENANT_PREFIX = "pr_live_"
PLATFORM_PREFIX = "pr_admin_"


class KeyRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is stored of a key, under the hash of it. A platform key has no tenant."""

    v: int = 1
    id: str
    tenant: str | None
    name: str
    scopes: tuple[Scope, ...]
    is_enabled: bool = True
    created_at_ms: int
    expires_at_ms: int | None = None


class TenantRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    v: int = 1
    id: str
    auto_create_queues: bool = False
    created_at_ms: int


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, rest = divmod(number, 62)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), 6)


def new_key(prefix: str = TENANT_PREFIX) -> str:
    text = prefix + _base62(secrets.randbits(256), 43)
    return text + _checksum(text)


def looks_like_key(text: str) -> bool:
    """Spares the engine from look-ups of typing errors and guesses."""
    return text.startswith((TENANT_PREFIX, PLATFORM_PREFIX)) and len(text) > 49 and text[-6:] == _checksum(text[:-6])


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
