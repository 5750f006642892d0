"""Durable streams, as the client hands them back. What they say of themselves is in an answer's headers, not in its body."""

from functools import cached_property
from typing import Any

import msgspec


class StreamInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`offset` is where the stream ends. A stream with `ttl_seconds` expires when it was left alone for so long."""

    content_type: str
    offset: str
    is_closed: bool
    ttl_seconds: int | None = None
    expires_at: str | None = None


class CreatedStream(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`is_new` is False for a stream that was there already, just as it was asked for."""

    content_type: str
    offset: str
    is_closed: bool
    is_new: bool


class Appended(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`offset` is where the stream ends now. `is_duplicate`: a producer had appended this before, and it is there once.

    Of a duplicate, a server need not say where the stream ends.
    """

    offset: str | None
    is_closed: bool
    is_duplicate: bool = False


class Chunk(msgspec.Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """What one read brought. `is_up_to_date`: it went to the stream's end; `is_closed`: that is the end for good."""

    content_type: str
    data: bytes
    next_offset: str
    is_up_to_date: bool
    is_closed: bool
    cursor: str | None = None

    @cached_property
    def messages(self) -> list[Any]:
        """Of a JSON stream. Raises ValueError for a stream of another type: that has `data`."""
        return [msgspec.json.decode(message) for message in self.raw_messages]

    @property
    def raw_messages(self) -> list[msgspec.Raw]:
        """As `messages`, each as its JSON text."""
        if not is_json(self.content_type):
            raise ValueError(f"a stream of {self.content_type!r} has no messages, it has data")
        return msgspec.json.decode(self.data, type=list[msgspec.Raw]) if self.data else []


class StreamMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """One message of a JSON stream, or some bytes of another one, and from where to go on after it.

    A stream has offsets between what the server sent together, not between all messages. `offset` is the last one that was
    reached, `skip` how many messages after it have been handed out, this one included. Whoever saves both, and passes both
    to `follow` or `messages`, misses nothing and gets nothing twice; with `offset` alone, some messages may come twice.
    """

    offset: str
    skip: int
    data: bytes

    @cached_property
    def value(self) -> Any:
        """A JSON stream's message, decoded. Raises ValueError if `data` is no JSON."""
        return msgspec.json.decode(self.data)


def is_json(content_type: str) -> bool:
    return media_type(content_type) == "application/json"


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
