"""What a message of the SNS API has beside its body: subject, attributes with their types, group. Pure.

It is stored as the extension of the topic's message. A message that was published natively has none: its headers are its
attributes.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from postroad.subscriptions.value_tests import number_of
from postroad.topics.records import StoredTopicMessage

STRING_ARRAY = "String.Array"


class SnsAttribute(msgspec.Struct, frozen=True, array_like=True):
    """A message attribute: its data type, and its value as text. Binary values are base64."""

    type: str
    value: str


class SnsMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of the extension. `is_json`: the body is an object with a message per protocol."""

    v: int = 1
    subject: str | None = None
    is_json: bool = False
    attributes: dict[str, SnsAttribute] = {}
    group: str | None = None
    dedupe: str | None = None
    trace: str | None = None

    def encode(self) -> str:
        """JSON in ASCII, without line breaks, as a header needs it."""
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))


_decode = msgspec.json.Decoder(SnsMessage).decode


def sns_message(stored: StoredTopicMessage) -> SnsMessage:
    """The extension of a message. Never fails: other clients of the NATS server can write any header."""
    if stored.extension is not None:
        try:
            return _decode(stored.extension)
        except (msgspec.DecodeError, RecursionError):
            pass
    return SnsMessage(attributes={name: SnsAttribute("String", value) for name, value in stored.headers.items()})


def filter_values(attributes: Mapping[str, SnsAttribute]) -> dict[str, Any]:
    """The attributes as filter policies see them: texts, numbers, and the elements of arrays. Of a binary one, only that it
    exists."""
    return {name: _filter_value(one) for name, one in attributes.items()}


def _filter_value(attribute: SnsAttribute) -> Any:
    if attribute.type.startswith("Binary"):
        return b""
    if attribute.type.startswith("Number"):
        return number_of(attribute.value)
    if attribute.type == STRING_ARRAY:
        try:
            found = msgspec.json.decode(attribute.value)
        except (msgspec.DecodeError, RecursionError):
            return attribute.value
        return found if isinstance(found, list) else attribute.value
    return attribute.value
