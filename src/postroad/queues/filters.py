"""Matching of stored messages against a filter. Pure.

Most messages are ruled out by a search in their bytes, before they are decoded. That makes a search of many messages cheap.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.api.queues import MessageFilter
from postroad.queues.records import StoredMessage

_INDEX = re.compile(r"[0-9]{1,9}")  # `isdigit` is true for characters that `int` refuses


class CompiledFilter:
    """A filter, prepared for many messages."""

    def __init__(self, wanted: MessageFilter) -> None:
        self.wanted = wanted
        self._header_name, self._header_equals, self._header_value = (wanted.header or "").partition("=")
        path, _, value = (wanted.field or "").partition("=")
        self._path, self._field_values = path.split("."), _values(value)
        self._required_bytes = [text.encode() for text in (wanted.message_id, wanted.job_id) if text is not None]
        if wanted.search is not None:  # payloads are stored as they were sent
            self._required_bytes.append(wanted.search.encode("utf-8", "surrogatepass"))

    def may_match(self, raw: bytes) -> bool:
        """False if the stored bytes alone show that the message does not match."""
        return all(text in raw for text in self._required_bytes)

    def matches(self, message: StoredMessage) -> bool:
        wanted = self.wanted
        return (
            (wanted.message_id is None or message.id == wanted.message_id)
            and (wanted.job_id is None or message.job == wanted.job_id)
            and (wanted.correlation_id is None or message.corr == wanted.correlation_id)
            and (wanted.priority is None or message.priority == wanted.priority)
            and (wanted.group_id is None or message.group == wanted.group_id)
            and (wanted.header is None or self._has_header(message))
            and (wanted.search is None or wanted.search in bytes(message.payload).decode("utf-8", "replace"))
            and (wanted.field is None or self._has_field(message))
        )

    def _has_header(self, message: StoredMessage) -> bool:
        value = message.headers.get(self._header_name)
        return value is not None and (not self._header_equals or value == self._header_value)

    def _has_field(self, message: StoredMessage) -> bool:
        found = field_of(message, self._path)
        return any(found == value and type(found) is type(value) for value in self._field_values)


def field_of(message: StoredMessage, path: Sequence[str]) -> Any:
    """The value of a field in the payload; `UNSET` if there is none."""
    try:
        found: Any = msgspec.json.decode(message.payload)
    except msgspec.DecodeError:
        return msgspec.UNSET
    for name in path:
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            return msgspec.UNSET
    return found


def _values(text: str) -> list[Any]:
    """The text, and its JSON value: in a URL, `42` stands for the number and for the text."""
    try:
        return [text, msgspec.json.decode(text.encode())]
    except msgspec.DecodeError:
        return [text]
