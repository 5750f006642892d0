"""Secrets at rest: encrypted with a key derived from the platform key, and bound to their owner.

    encrypted = base64url( key number (1 byte) | nonce (12 bytes) | AES-256-GCM ciphertext and tag )

The first platform key encrypts; all of them decrypt. The control role re-encrypts secrets of older keys when it starts.
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
    """The text was encrypted with an unknown platform key or for another owner, or it was altered."""


class SecretCipher:
    def __init__(self, platform_keys: tuple[str, ...]) -> None:
        keys = [hmac.digest(key.encode(), b"postroad vault 1", hashlib.sha256) for key in platform_keys]
        self._keys = [(hashlib.sha256(b"number" + key).digest()[:1], AESGCM(key)) for key in keys]

    def encrypt(self, owner: str, secret: str) -> str:
        number, newest = self._keys[0]
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(number + nonce + newest.encrypt(nonce, secret.encode(), owner.encode())).decode()

    def uses_newest_key(self, owner: str, encrypted: str) -> bool:
        return _decrypt(self._keys[0][1], owner, base64.urlsafe_b64decode(encrypted)) is not None

    def decrypt(self, owner: str, encrypted: str) -> str:
        """Raises DecryptionFailed."""
        try:
            raw = base64.urlsafe_b64decode(encrypted)
        except (binascii.Error, ValueError) as exc:
            raise DecryptionFailed from exc
        for number, key in self._keys:
            plain = _decrypt(key, owner, raw) if number == raw[:1] else None
            if plain is not None:
                return plain
        raise DecryptionFailed


def _decrypt(key: AESGCM, owner: str, raw: bytes) -> str | None:
    try:
        return key.decrypt(raw[1 : 1 + _NONCE_BYTES], raw[1 + _NONCE_BYTES :], owner.encode()).decode()
    except (InvalidTag, ValueError):
        return None
