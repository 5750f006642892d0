"""Headers of a delivery to an HTTP endpoint: what the message is, and signatures that prove its origin. Pure.

Two signatures: `X-MQ-Signature` over `timestamp.body`, and the Standard Webhooks headers over `id.timestamp.body`. While a secret
is rotated both secrets are valid: the Standard Webhooks header carries a signature of each, and `X-MQ-Signature` uses the older
one until that is retired.
"""

import base64
import secrets
from collections.abc import Sequence

from postroad import webhooks
from postroad.crypto.hmac_key import HmacKey

SECRET_PREFIX = "whsec_"  # noqa: S105  # the prefix of a secret in the Standard Webhooks notation
_SECRET_BYTES = 24


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


class Signer:
    """Signs deliveries with one secret."""

    __slots__ = ("_decoded", "_text")

    def __init__(self, secret: str) -> None:
        self._text, self._decoded = HmacKey(secret.encode()), HmacKey(webhooks.decoded_secret(secret))

    def mq_signature(self, timestamp: str, body: bytes) -> str:
        """`sha256=<hex>` of the HMAC over `<timestamp>.<body>`, keyed with the text of the secret."""
        return "sha256=" + self._text.sign(f"{timestamp}.".encode(), body).hex()

    def webhook_signature(self, message_id: str, timestamp: str, body: bytes) -> str:
        """`v1,<base64>` of the HMAC over `<id>.<timestamp>.<body>`, keyed with the decoded secret."""
        return "v1," + base64.b64encode(self._decoded.sign(f"{message_id}.{timestamp}.".encode(), body)).decode("ascii")


def signature_headers(
    signers: Sequence[Signer], message_id: str, published_ms: int, sent_seconds: int, body: bytes
) -> dict[str, str]:
    """The signature headers; none of `X-MQ-Signature` and `webhook-signature` without a secret. The oldest secret comes first."""
    published, sent = str(published_ms), str(sent_seconds)
    headers = {"X-MQ-Timestamp": published, "webhook-id": message_id, "webhook-timestamp": sent}
    if signers:
        headers["X-MQ-Signature"] = signers[0].mq_signature(published, body)
        headers["webhook-signature"] = " ".join(
            [signer.webhook_signature(message_id, sent, body) for signer in reversed(signers)]
        )
    return headers
