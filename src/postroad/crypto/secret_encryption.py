"""Secrets at rest: encrypted with a key derived from the platform key, bound to whom they belong to.

    locked = base64url( key number (1 byte) | nonce (12 bytes) | AES-256-GCM ciphertext and tag )

The first platform key locks; all of them unlock. What an older one locked is locked anew by the control role when it starts.
"""

import base64
import binascii
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class DecryptionFailed(Exception):
    """No platform key that is known here opens it, or it belongs to somebody else, or it was altered."""


class SecretCipher:
    def __init__(self, platform_keys: tuple[str, ...]) -> None:
        made = [hmac.digest(key.encode(), b"postroad vault 1", hashlib.sha256) for key in platform_keys]
        self._keys = [(hashlib.sha256(b"number" + key).digest()[:1], AESGCM(key)) for key in made]

    def lock(self, owner: str, secret: str) -> str:
        number, newest = self._keys[0]
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(number + nonce + newest.encrypt(nonce, secret.encode(), owner.encode())).decode()

    def is_newest(self, owner: str, locked: str) -> bool:
        """Whether the newest key locked it."""
        return _opened(self._keys[0][1], owner, base64.urlsafe_b64decode(locked)) is not None

    def unlock(self, owner: str, locked: str) -> str:
        """Raises VaultLocked."""
        try:
            raw = base64.urlsafe_b64decode(locked)
        except (binascii.Error, ValueError) as exc:
            raise DecryptionFailed from exc
        for number, key in self._keys:
            plain = _opened(key, owner, raw) if number == raw[:1] else None
            if plain is not None:
                return plain
        raise DecryptionFailed


def _opened(key: AESGCM, owner: str, raw: bytes) -> str | None:
    try:
        return key.decrypt(raw[1 : 1 + _NONCE_BYTES], raw[1 + _NONCE_BYTES :], owner.encode()).decode()
    except (InvalidTag, ValueError):
        return None
