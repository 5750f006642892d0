"""Headers of a delivery to an HTTP endpoint: what the message is, and signatures that prove its origin. Pure.

Two signatures: `X-MQ-Signature` over `timestamp.body`, and the Standard Webhooks headers over `id.timestamp.body`. While a secret
is rotated both secrets are valid: the Standard Webhooks header carries a signature of each, and `X-MQ-Signature` uses the older
one until that is retired.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from postroad import webhooks

SECRET_PREFIX = "whsec_"  # noqa: S105  # the prefix of a secret in the Standard Webhooks notation
_SECRET_BYTES = 24


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def mq_signature(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=<hex>` of the HMAC over `<timestamp>.<body>`, keyed with the text of the secret."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def webhook_signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """`v1,<base64>` of the HMAC over `<id>.<timestamp>.<body>`, keyed with the decoded secret."""
    return "v1," + webhooks.signature(secret, f"{message_id}.{timestamp}.".encode() + body)


def signature_headers(
    valid_secrets: Sequence[str], message_id: str, published_ms: int, sent_seconds: int, body: bytes
) -> dict[str, str]:
    """The signature headers; none of `X-MQ-Signature` and `webhook-signature` without a secret. The oldest secret comes first."""
    published = str(published_ms)
    headers = {"X-MQ-Timestamp": published, "webhook-id": message_id, "webhook-timestamp": str(sent_seconds)}
    if valid_secrets:
        headers["X-MQ-Signature"] = mq_signature(valid_secrets[0], published, body)
        headers["webhook-signature"] = " ".join(
            webhook_signature(secret, message_id, str(sent_seconds), body) for secret in reversed(valid_secrets)
        )
    return headers
