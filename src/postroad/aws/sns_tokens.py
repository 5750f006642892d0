"""Tokens in the URLs of SNS messages, which work without a signature: they confirm, end or restore one subscription."""

import msgspec

from postroad.api.subscriptions import SnsSubscription
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.kernel.clock import Clock

CONFIRM_SECONDS = 2 * 86_400
_RESTORED_BYTES_MAX = 4096  # a URL must not be longer


class EndedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """What a token restores."""

    topic: str
    until: int
    sns: SnsSubscription


_decode_ended = msgspec.json.Decoder(EndedSubscription).decode


class SnsTokens:
    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer, self._clock = signer, clock

    def confirmation(self, tenant: str, subscription: str, incarnation: str) -> str:
        """Valid for two days."""
        until = self._clock() // 1000 + CONFIRM_SECONDS
        return self._signer.sign(_owner("confirm", tenant), f"{subscription}/{incarnation}/{until}".encode())

    def confirmed(self, tenant: str, token: str) -> tuple[str, str] | None:
        """Subscription and incarnation of a valid token."""
        try:
            subscription, incarnation, until = self._signer.verify(_owner("confirm", tenant), token).decode().split("/")
        except (SignatureInvalid, ValueError):
            return None
        return (subscription, incarnation) if int(until) > self._clock() // 1000 else None

    def unsubscription(self, tenant: str, incarnation: str) -> str:
        """Valid for as long as the subscription exists."""
        return self._signer.sign(_owner("unsubscribe", tenant), incarnation.encode())

    def ends(self, tenant: str, incarnation: str, token: str) -> bool:
        try:
            return self._signer.verify(_owner("unsubscribe", tenant), token) == incarnation.encode()
        except (SignatureInvalid, ValueError):
            return False

    def restoration(self, tenant: str, topic: str, sns: SnsSubscription) -> str:
        """Creates an ended subscription again, for two days. A subscription with attributes that are too long for a URL cannot be
        restored: its token is not valid."""
        ended = EndedSubscription(topic, self._clock() // 1000 + CONFIRM_SECONDS, sns)
        encoded = msgspec.json.encode(ended)
        return self._signer.sign(_owner("restore", tenant), encoded if len(encoded) <= _RESTORED_BYTES_MAX else b"")

    def restored(self, tenant: str, token: str) -> EndedSubscription | None:
        """What a valid token restores."""
        try:
            ended = _decode_ended(self._signer.verify(_owner("restore", tenant), token))
        except (SignatureInvalid, ValueError):
            return None
        return ended if ended.until > self._clock() // 1000 else None


def _owner(kind: str, tenant: str) -> bytes:
    return f"{kind}/{tenant}".encode()
