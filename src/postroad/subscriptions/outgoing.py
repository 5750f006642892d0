"""A message on its way to an endpoint: the request that is sent for it. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from postroad.api.subscriptions import PushFormat
from postroad.kernel.clock import rfc3339
from postroad.subscriptions.signatures import signature_headers
from postroad.topics.records import StoredTopicMessage

META_PREFIX = "X-MQ-Meta-"
_VALUE_CHARS_MAX = 4096
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_OWN_PREFIXES = ("x-mq-", "webhook-", "ce-")
_OWN_NAMES = ("content-type", "content-length", "traceparent")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how the messages of a subscription are sent. `secrets` are the valid ones, the oldest first."""

    subscription: str
    tenant: str
    topic: str
    url: str
    ack_wait_ms: int
    secrets: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    format: PushFormat = PushFormat.RAW


def request_headers(endpoint: Endpoint, message: StoredTopicMessage, attempt: int, now_ms: int) -> dict[str, str]:
    """All headers of the request for an attempt."""
    headers = dict(endpoint.headers)
    headers["Content-Type"] = _value(message.content_type or "application/octet-stream")
    headers["X-MQ-Topic"] = endpoint.topic
    headers["X-MQ-Subject"] = _value(message.nats_subject)
    headers["X-MQ-Published-Subject"] = _value(message.subject)
    headers["X-MQ-Id"] = str(message.sequence)
    headers["X-MQ-Attempt"] = str(attempt)
    headers["X-MQ-Hops"] = str(message.hops + 1)
    if message.traceparent is not None:
        headers["traceparent"] = _value(message.traceparent)
    for name, value in message.headers.items():
        if _NAME.fullmatch(name):
            headers[META_PREFIX + name] = _value(value)
    if endpoint.format is PushFormat.CLOUDEVENTS:
        headers |= _cloud_event(endpoint.topic, message)
    message_id = f"{endpoint.subscription}.{message.sequence}"
    return headers | signature_headers(endpoint.secrets, message_id, message.at_ms, now_ms // 1000, message.body)


def is_own_header(name: str) -> bool:
    """True if deliveries set this header, so that a subscription cannot."""
    return name.lower() in _OWN_NAMES or name.lower().startswith(_OWN_PREFIXES)


def _cloud_event(topic: str, message: StoredTopicMessage) -> dict[str, str]:
    return {
        "ce-specversion": "1.0",
        "ce-id": str(message.sequence),
        "ce-source": f"/v1/topics/{quote(topic, safe='')}",
        "ce-type": _value(message.subject),
        "ce-subject": _value(message.subject),
        "ce-time": rfc3339(message.at_ms),
    }


def _value(text: str) -> str:
    """A header's value; characters that HTTP does not allow in one are percent-encoded as UTF-8."""
    if text.isascii() and text.isprintable() and len(text) <= _VALUE_CHARS_MAX:
        return text
    return quote(text, safe=" ;,/?:@&=+$-_.!~*'()#")[:_VALUE_CHARS_MAX]
