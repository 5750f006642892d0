"""Positions in streams that tenants share, encrypted for the tenant that receives them: plain sequences would reveal how much
other tenants write, and accepting chosen ones would, too.

    position = base64url( key number (1 byte) | AES-256-SIV tag and ciphertext of the sequences, 8 bytes each )

Encryption is deterministic, so a position has one text, and authenticated together with its owner. The first platform key
encrypts; all of them decrypt.
"""

import base64
import binascii
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from postroad.crypto.signing import key_number

_SEQUENCE_BYTES = 8


class PositionInvalid(Exception):
    """The text was not made by this installation or not for this owner, or it was altered."""


class PositionCipher:
    """Encrypts and decrypts one kind of position."""

    def __init__(self, platform_keys: tuple[str, ...], kind: str) -> None:
        keys = [hmac.digest(key.encode(), b"postroad position 1 " + kind.encode(), hashlib.sha512) for key in platform_keys]
        self._keys = [(key_number(key), AESSIV(key)) for key in keys]

    def encrypt(self, owner: str, *sequences: int) -> str:
        number, newest = self._keys[0]
        body = b"".join(sequence.to_bytes(_SEQUENCE_BYTES, "big") for sequence in sequences)
        return base64.urlsafe_b64encode(number + newest.encrypt(body, [owner.encode()])).rstrip(b"=").decode()

    def decrypt(self, owner: str, text: str) -> tuple[int, ...]:
        """The sequences. Raises PositionInvalid."""
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as exc:
            raise PositionInvalid from exc
        for number, key in self._keys:
            body = _decrypt(key, owner, raw[1:]) if number == raw[:1] else None
            if body is not None:
                starts = range(0, len(body), _SEQUENCE_BYTES)
                return tuple(int.from_bytes(body[start : start + _SEQUENCE_BYTES], "big") for start in starts)
        raise PositionInvalid


def _decrypt(key: AESSIV, owner: str, encrypted: bytes) -> bytes | None:
    try:
        return key.decrypt(encrypted, [owner.encode()])
    except (InvalidTag, ValueError):
        return None
