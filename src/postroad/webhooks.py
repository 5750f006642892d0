"""Verification of deliveries, for programs that receive them. It needs nothing but the standard library.

from postroad.webhooks import verify

event = verify(secret, request.headers, request.body)   # raises WebhookInvalid
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

TOLERANCE_SECONDS = 300


class WebhookInvalid(Exception):
    """The request was not sent by the subscription, was altered, or is too old. Answer with status 400."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A verified delivery. `id` is the same for every attempt: use it to ignore repetitions."""

    id: str
    topic: str
    subject: str
    sequence: int
    attempt: int
    hops: int
    published_ms: int
    headers: Mapping[str, str]
    body: bytes


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Delivery:
    """Check the Standard Webhooks signature and the age of the attempt. Raises WebhookInvalid.

    During a rotation pass both secrets. Names of headers are compared without regard to case.
    """
    found = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = found.get("webhook-id", ""), found.get("webhook-timestamp", "")
    if not message_id or not timestamp.isascii() or not timestamp.isdigit():
        raise WebhookInvalid("the headers webhook-id and webhook-timestamp are missing or malformed")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance_seconds:
        raise WebhookInvalid(f"the timestamp differs from this machine's clock by more than {tolerance_seconds:.0f} seconds")
    signed = f"{message_id}.{timestamp}.".encode() + body
    given = [part[3:] for part in found.get("webhook-signature", "").split(" ") if part.startswith("v1,")]
    expected = [signature(one, signed) for one in ([secret] if isinstance(secret, str) else secret)]
    # Every pair is compared, in constant time.
    if sum(hmac.compare_digest(one.encode(), other.encode()) for one in given for other in expected) == 0:
        raise WebhookInvalid("no signature matches")
    return _delivery(message_id, found, body)


def signature(secret: str, signed: bytes) -> str:
    """The base64 HMAC of `<id>.<timestamp>.<body>`."""
    return base64.b64encode(hmac.digest(decoded_secret(secret), signed, hashlib.sha256)).decode()


@lru_cache(maxsize=1024)
def decoded_secret(secret: str) -> bytes:
    """A secret that starts with `whsec_` is base64, any other is used as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            pass
    return secret.encode()


def _delivery(message_id: str, headers: Mapping[str, str], body: bytes) -> Delivery:
    def number(name: str) -> int:
        text = headers.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    return Delivery(
        id=message_id,
        topic=headers.get("x-mq-topic", ""),
        subject=headers.get("x-mq-published-subject", ""),
        sequence=number("x-mq-id"),
        attempt=number("x-mq-attempt"),
        hops=number("x-mq-hops"),
        published_ms=number("x-mq-timestamp"),
        headers=headers,
        body=body,
    )
