"""API keys as texts: how they look, and what of them is stored.

    pr_live_<id, 16 characters><secret, 32 characters><checksum, 6 characters>

The prefix and the checksum let secret scanners find a leaked key without asking us. The id names the key's record and stays the
same when the key is rotated; behind the secret are 190 random bits, so of the whole only the SHA-256 is stored: there is nothing
to guess. Invites have the same form.
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
_ID_CHARS, _SECRET_CHARS, _SUM_CHARS = 16, 32, 6
_REST_CHARS = _ID_CHARS + _SECRET_CHARS + _SUM_CHARS


def new_key(prefix: str = TENANT_PREFIX, *, key_id: str = "") -> str:
    """With `key_id`: another key of the same id, for a rotation."""
    text = prefix + (key_id or _random(_ID_CHARS)) + _random(_SECRET_CHARS)
    return text + _checksum(text)


def key_id_of(text: str, prefixes: tuple[str, ...] = KEY_PREFIXES) -> str | None:
    """The id in the text, None if it is not of this form: that spares the look-up of typing errors and guesses.

    The alphabet is part of the form: anyone can make a checksum, and the id becomes part of what the engine is asked.
    """
    prefix = next((one for one in prefixes if text.startswith(one)), None)
    if prefix is None or len(text) != len(prefix) + _REST_CHARS or text[-_SUM_CHARS:] != _checksum(text[:-_SUM_CHARS]):
        return None
    if not _PLAIN.issuperset(text[len(prefix) :]):
        return None
    return text[len(prefix) : len(prefix) + _ID_CHARS]


def key_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_same_hash(one: str, other: str) -> bool:
    """Takes the same time wherever they differ."""
    return hmac.compare_digest(one, other)


def _random(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def _checksum(text: str) -> str:
    number, digits = zlib.crc32(text.encode()), []
    for _ in range(_SUM_CHARS):
        number, rest = divmod(number, 62)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))
