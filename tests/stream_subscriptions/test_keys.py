"""Signing keys of webhooks."""

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from postroad.api.stream_subscriptions import Jwk
from postroad.stream_subscriptions.keys import SigningKeys

OLD, NEW = "an older platform key, long enough", "a newer platform key, long enough"


def verify(jwk: Jwk, signature: str, body: bytes) -> None:
    """Verify by the protocol alone. Raises InvalidSignature."""
    at, kid, made = (part.partition("=")[2] for part in signature.split(","))
    assert kid == jwk.kid
    raw = base64.urlsafe_b64decode(jwk.x + "=" * (-len(jwk.x) % 4))
    Ed25519PublicKey.from_public_bytes(raw).verify(
        base64.urlsafe_b64decode(made + "=" * (-len(made) % 4)), at.encode() + b"." + body
    )


def test_every_worker_has_the_same_key() -> None:
    one, other = SigningKeys((OLD,)), SigningKeys((OLD,))
    assert one.kid == other.kid
    assert one.kid.startswith("ds_")
    verify(other.published.keys[0], one.signature(b"{}", 1_700_000_000), b"{}")


def test_the_newest_key_signs_and_older_ones_are_still_published() -> None:
    before, after = SigningKeys((OLD,)), SigningKeys((NEW, OLD))
    assert [key.kid for key in after.published.keys] == [after.kid, before.kid]
    assert before.kid != after.kid
    verify(after.published.keys[1], before.signature(b"x", 1), b"x")
    verify(after.published.keys[0], after.signature(b"x", 1), b"x")
