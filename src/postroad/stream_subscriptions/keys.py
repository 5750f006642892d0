"""Signing keys of webhooks, one per platform key. Each is derived from its platform key, so that all workers have it and none
is stored."""

import base64
import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from postroad.api.stream_subscriptions import Jwk, JwkSet
from postroad.stream_subscriptions.rules import signed_text


class SigningKeys:
    """The newest key signs. All are published, so that signatures made before a rotation stay valid."""

    def __init__(self, platform_keys: tuple[str, ...]) -> None:
        seeds = [hmac.digest(key.encode(), b"postroad webhook signing 1", hashlib.sha256) for key in platform_keys]
        keys = [Ed25519PrivateKey.from_private_bytes(seed) for seed in seeds]
        self._newest = keys[0]
        self.published = JwkSet([_jwk(key) for key in keys])
        self.kid = self.published.keys[0].kid

    def signature(self, body: bytes, at_seconds: int) -> str:
        """The value of `Webhook-Signature`."""
        signature = _base64url(self._newest.sign(signed_text(at_seconds, body)))
        return f"t={at_seconds},kid={self.kid},ed25519={signature}"


def _jwk(key: Ed25519PrivateKey) -> Jwk:
    x = _base64url(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    thumbprint = hashlib.sha256(f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'.encode()).digest()  # RFC 7638
    return Jwk(x=x, kid=f"ds_{_base64url(thumbprint)}")


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
