"""A message on its way to an endpoint: the request that is sent for it. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote

from postroad.api.cloudevents import event_of_topic_message
from postroad.api.subscriptions import PushFormat
from postroad.kernel.clock import rfc3339
from postroad.kernel.cloudevents import PREFIX, TYPES, to_headers
from postroad.kernel.spans import Span
from postroad.outbound.rules import HeaderLines, encode_headers
from postroad.subscriptions.signatures import Signer, signature_headers
from postroad.topics.records import StoredTopicMessage

T = TypeVar("T")

META_PREFIX = "X-MQ-Meta-"
_VALUE_CHARS_MAX = 4096
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_OWN_PREFIXES = ("x-mq-", "webhook-", "ce-")
_OWN_NAMES = ("content-type", "content-length", "traceparent")


@dataclass(frozen=True)
class Endpoint:
    """Where and how the messages of a subscription are sent. `signers` are those of the valid secrets, the oldest first.

    `replayed_to`: messages up to this sequence are delivered again.
    """

    subscription: str
    tenant: str
    topic: str
    url: str
    ack_wait_ms: int
    signers: Sequence[Signer] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    format: PushFormat = PushFormat.RAW
    replayed_to: int = 0

    @cached_property
    def header_lines(self) -> HeaderLines:
        """The custom headers. Raises OutboundRefused."""
        return encode_headers(self.headers)


class OutgoingMessage:
    """A message, with the headers that it has in the requests to all endpoints. They are encoded once."""

    __slots__ = ("_lines", "_shared", "stored")

    def __init__(self, stored: StoredTopicMessage) -> None:
        self.stored = stored
        self._shared: dict[Any, Any] | None = None
        self._lines: dict[PushFormat, HeaderLines] | None = None

    def header_lines(self, topic: str, push_format: PushFormat) -> HeaderLines:
        """Raises OutboundRefused."""
        if self._lines is None:
            self._lines = {}
        found = self._lines.get(push_format)
        if found is None:
            found = self._lines[push_format] = encode_headers(message_headers(topic, self.stored, push_format))
        return found

    def shared(self, key: object, make: Callable[[], T]) -> T:
        """What deliveries of this message to several subscriptions have in common, made once."""
        if self._shared is None:
            self._shared = {}
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found


def message_headers(topic: str, message: StoredTopicMessage, push_format: PushFormat) -> dict[str, str]:
    """The headers that say what the message is."""
    headers = {
        "Content-Type": _value(message.content_type or "application/octet-stream"),
        "X-MQ-Topic": topic,
        "X-MQ-Subject": _value(message.nats_subject),
        "X-MQ-Published-Subject": _value(message.subject),
        "X-MQ-Id": str(message.sequence),
        "X-MQ-Hops": str(message.hops + 1),
    }
    if message.group is not None:
        headers["X-MQ-Group"] = _value(message.group)
    for name, value in message.headers.items():
        if _NAME.fullmatch(name):
            headers[META_PREFIX + name] = _value(value)
    if push_format is PushFormat.CLOUDEVENTS:
        return {name: value for name, value in headers.items() if not _is_of_event(name)} | _cloud_event(topic, message)
    return headers


def attempt_headers(
    endpoint: Endpoint, message: StoredTopicMessage, attempt: int, now_ms: int, span: Span | None = None
) -> dict[str, str]:
    """The headers that differ from attempt to attempt: its number, the signatures, and the trace."""
    message_id = f"{endpoint.subscription}.{message.sequence}"
    headers = signature_headers(endpoint.signers, message_id, message.at_ms, now_ms // 1000, message.body)
    headers["X-MQ-Attempt"] = str(attempt)
    if span is not None:
        headers["traceparent"] = span.traceparent
    elif message.traceparent is not None:
        headers["traceparent"] = _value(message.traceparent)
    if message.sequence <= endpoint.replayed_to and message.sequence:
        headers["X-MQ-Replayed"] = "true"
    return headers


def is_own_header(name: str) -> bool:
    """True if deliveries set this header, so that a subscription cannot."""
    return name.lower() in _OWN_NAMES or name.lower().startswith(_OWN_PREFIXES)


def _cloud_event(topic: str, message: StoredTopicMessage) -> dict[str, str]:
    """The headers of binary mode: the attributes that the message was published with, or ones that describe it."""
    event = event_of_topic_message(
        topic,
        message.headers,
        sequence=message.sequence,
        subject=message.subject,
        time=rfc3339(message.at_ms),
        content_type=message.content_type,
        body=message.body,
    )
    return to_headers(event)


def _is_of_event(name: str) -> bool:
    """True for attributes among the headers of the publisher: in this format they are headers of the event."""
    return name.startswith(META_PREFIX + PREFIX) or name == META_PREFIX + TYPES


def _value(text: str) -> str:
    """A header's value; characters that HTTP does not allow in one are percent-encoded as UTF-8."""
    if text.isascii() and text.isprintable() and len(text) <= _VALUE_CHARS_MAX:
        return text
    return quote(text, safe=" ;,/?:@&=+$-_.!~*'()#")[:_VALUE_CHARS_MAX]
