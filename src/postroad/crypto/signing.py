"""Sealing: texts that we hand out and can trust when they come back. Authenticated, not secret.

    sealed = base64url( key number (1 byte) | tag (16 bytes) | body )

The tag is HMAC-SHA256, cut to 128 bits, over what kind of thing it is, whom it belongs to, and the body. Each kind has a key of
its own, derived from the platform key. The first platform key seals; all of them open, so a rotation breaks nothing that is out.
"""

import base64
import binascii
import hashlib
import hmac

_TAG_BYTES = 16


class SignatureInvalid(Exception):
    """Not sealed by us, not for this owner, or altered."""


class Signer:
    """Seals one kind of thing."""

    def __init__(self, platform_keys: tuple[str, ...], kind: str) -> None:
        made = [hmac.digest(key.encode(), b"postroad seal 1 " + kind.encode(), hashlib.sha256) for key in platform_keys]
        self._keys = [(_number(key), key) for key in made]

    def seal(self, owner: bytes, body: bytes) -> str:
        number, newest = self._keys[0]
        return base64.urlsafe_b64encode(number + _tag(newest, owner, body) + body).rstrip(b"=").decode()

    def open(self, owner: bytes, sealed: str) -> bytes:
        """The body. Raises SealBroken."""
        try:
            raw = base64.b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as exc:
            raise SignatureInvalid from exc
        tag, body = raw[1 : 1 + _TAG_BYTES], raw[1 + _TAG_BYTES :]
        for number, key in self._keys:
            if number == raw[:1] and hmac.compare_digest(tag, _tag(key, owner, body)):
                return body
        raise SignatureInvalid


def _number(key: bytes) -> bytes:
    """Spares the opening of most seals that another key made; says nothing about the key. What is sealed begins with it, and must
    not begin with `-` (62 in the first six bits): on a command line that would make an option of it."""
    number = hashlib.sha256(b"number" + key).digest()[0]
    return bytes([number & 0x7F if number >> 2 == 62 else number])


def _tag(key: bytes, owner: bytes, body: bytes) -> bytes:
    return hmac.digest(key, len(owner).to_bytes(4, "big") + owner + body, hashlib.sha256)[:_TAG_BYTES]
