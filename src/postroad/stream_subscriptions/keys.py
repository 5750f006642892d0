"""The key that signs webhooks: one per platform key, derived from it, so that every worker has the same and none is stored."""

import base64
import hashlib
import hmac
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from postroad.stream_subscriptions.rules import signed_text


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"
    x: str
    kid: str
    use: Literal["sig"] = "sig"
    alg: Literal["EdDSA"] = "EdDSA"


class JwkSet(msgspec.Struct, frozen=True):
    keys: list[Jwk]


class SigningKeys:
    """The newest one signs. All are published: what was signed just before a rotation is still good."""

    def __init__(self, platform_keys: tuple[str, ...]) -> None:
        seeds = [hmac.digest(key.encode(), b"postroad webhook signing 1", hashlib.sha256) for key in platform_keys]
        keys = [Ed25519PrivateKey.from_private_bytes(seed) for seed in seeds]
        self._newest = keys[0]
        self.published = JwkSet([_jwk(key) for key in keys])
        self.kid = self.published.keys[0].kid

    def signature(self, body: bytes, at_seconds: int) -> str:
        """The value of `Webhook-Signature`."""
        made = _base64url(self._newest.sign(signed_text(at_seconds, body)))
        return f"t={at_seconds},kid={self.kid},ed25519={made}"


def _jwk(key: Ed25519PrivateKey) -> Jwk:
    x = _base64url(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    thumbprint = hashlib.sha256(f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'.encode()).digest()  # RFC 7638
    return Jwk(x=x, kid=f"ds_{_base64url(thumbprint)}")


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
