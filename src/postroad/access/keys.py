"""Texts of API keys: format, checksum and hash.

    pr_live_<id, 16 characters><secret, 32 characters><checksum, 6 characters>

The prefix and the checksum let secret scanners recognise a leaked key offline. The id names the record of the key and stays the
same when the key is rotated. The secret has 190 random bits, so storing the plain SHA-256 of the text is safe against guessing.
Codes of invites have the same format.
"""

import hashlib
import hmac
import secrets
import zlib

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PLAIN = frozenset(_ALPHABET)
TENANT_PREFIX = "pr_live_"
PLATFORM_PREFIX = "pr_admin_"
INVITE_PREFIX = "pr_invite_"
KEY_PREFIXES = (TENANT_PREFIX, PLATFORM_PREFIX)
ID_CHARS = 16
_SECRET_CHARS, _CHECKSUM_CHARS = 32, 6
_BODY_CHARS = ID_CHARS + _SECRET_CHARS + _CHECKSUM_CHARS


def new_key(prefix: str = TENANT_PREFIX, *, key_id: str = "") -> str:
    """Generate a key. With `key_id`, a new text of that key, for a rotation."""
    text = prefix + (key_id or _random(ID_CHARS)) + _random(_SECRET_CHARS)
    return text + _checksum(text)


def key_id_of(text: str, prefixes: tuple[str, ...] = KEY_PREFIXES) -> str | None:
    """The id in the text, None if the format is invalid, which saves the lookup of typing errors and guesses.

    The alphabet is checked because a checksum is easy to forge and the id becomes part of a NATS subject.
    """
    prefix = next((one for one in prefixes if text.startswith(one)), None)
    if prefix is None or len(text) != len(prefix) + _BODY_CHARS:
        return None
    if text[-_CHECKSUM_CHARS:] != _checksum(text[:-_CHECKSUM_CHARS]) or not _PLAIN.issuperset(text[len(prefix) :]):
        return None
    return text[len(prefix) : len(prefix) + ID_CHARS]


def key_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_same_hash(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one, other)


def is_id(text: str) -> bool:
    """True if the text has the format of the id of a key or invite."""
    return len(text) == ID_CHARS and _PLAIN.issuperset(text)


def _random(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def _checksum(text: str) -> str:
    number, digits = zlib.crc32(text.encode()), []
    for _ in range(_CHECKSUM_CHARS):
        number, rest = divmod(number, 62)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))
