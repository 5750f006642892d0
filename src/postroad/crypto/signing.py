"""Signed tokens: given to clients and verified when they return. Authenticated, not secret.

    token = base64url( key number (1 byte) | tag (16 bytes) | body )

The tag is HMAC-SHA256 over the owner and the body, truncated to 128 bits. Each kind of token has its own key, derived from the
platform key. The first platform key signs; all of them verify, so tokens stay valid during a key rotation.
"""

import base64
import binascii
import hashlib
import hmac

from postroad.crypto.hmac_key import HmacKey

_TAG_BYTES = 16
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class SignatureInvalid(Exception):
    """The token was not signed by this installation or not for this owner, or it was altered."""


class Signer:
    """Signs and verifies one kind of token."""

    def __init__(self, platform_keys: tuple[str, ...], kind: str) -> None:
        keys = [hmac.digest(key.encode(), b"postroad seal 1 " + kind.encode(), hashlib.sha256) for key in platform_keys]
        self._keys = [(key_number(key), HmacKey(key)) for key in keys]

    def sign(self, owner: bytes, body: bytes) -> str:
        number, newest = self._keys[0]
        return base64.urlsafe_b64encode(number + _tag(newest, owner, body) + body).rstrip(b"=").decode()

    def verify(self, owner: bytes, token: str) -> bytes:
        """The token's body. Raises SignatureInvalid."""
        try:
            text = token.encode("ascii").translate(_FROM_URL_SAFE) + b"=" * (-len(token) % 4)
            raw = binascii.a2b_base64(text, strict_mode=True)  # without the checks of `base64.b64decode`, half the time
        except (binascii.Error, ValueError) as exc:
            raise SignatureInvalid from exc
        tag, body = raw[1 : 1 + _TAG_BYTES], raw[1 + _TAG_BYTES :]
        for number, key in self._keys:
            if number == raw[:1] and hmac.compare_digest(tag, _tag(key, owner, body)):
                return body
        raise SignatureInvalid


def key_number(key: bytes) -> bytes:
    """A hint which key signed a token, which reveals nothing about the key.

    A token begins with it and must not begin with `-` (62 in the first six bits): a command line would parse it as an option.
    """
    number = hashlib.sha256(b"number" + key).digest()[0]
    return bytes([number & 0x7F if number >> 2 == 62 else number])


def _tag(key: HmacKey, owner: bytes, body: bytes) -> bytes:
    return key.sign(len(owner).to_bytes(4, "big") + owner, body)[:_TAG_BYTES]
