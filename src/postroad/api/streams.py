"""Durable streams. Most properties of a stream are in response headers (Durable Streams protocol), so these structs are built
from headers and bodies by the SDK."""

from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import AuthError, ConflictError, NotFound
from postroad.kernel.names import STREAM_CHARS_MAX

OFFSET_PATTERN = r"^[0-9]{1,20}_[0-9]{1,20}$"


class StreamNotFound(NotFound, code="stream-not-found", status=404, title="Stream not found"):
    """No stream has this name, or it has expired."""


class StreamGone(NotFound, code="stream-gone", status=410, title="Stream deleted"):
    """The stream was deleted; only its forks can still read its data."""


class OffsetGone(NotFound, code="offset-gone", status=410, title="Offset before the start of the stream"):
    """Retention has dropped data after this offset; `Stream-Start-Offset` is the first offset that can be read."""


class StreamExists(ConflictError, code="stream-exists", status=409, title="Stream exists with other properties"):
    """A stream with this name exists with a different content type, lifetime, origin or state."""


class StreamClosed(ConflictError, code="stream-closed", status=409, title="Stream closed"):
    """The stream is closed and accepts no appends; `Stream-Next-Offset` is its end."""


class ContentTypeMismatch(ConflictError, code="content-type-mismatch", status=409, title="Content type mismatch"):
    """An append must have the content type of the stream."""


class SequenceConflict(ConflictError, code="sequence-conflict", status=409, title="Sequence conflict"):
    """`Stream-Seq` must be greater, byte by byte, than the last accepted one."""


class ProducerGap(ConflictError, code="producer-gap", status=409, title="Producer sequence gap"):
    """The producer's sequence skips a number; `Producer-Expected-Seq` has the expected one."""


class ProducerFenced(AuthError, code="producer-fenced", status=403, title="Producer fenced"):
    """A producer with the same id and a higher epoch has written to the stream; `Producer-Epoch` has that epoch."""


class StreamReadQuery(msgspec.Struct, frozen=True):
    """The patterns document the values; the server's parsers check them and name the fault."""

    offset: (
        Annotated[
            str,
            Meta(
                description="Position to read from: an offset, `-1` for the start, `now` for the end.",
                extra_json_schema={"pattern": f"^-1$|^now$|{OFFSET_PATTERN}"},
            ),
        ]
        | None
    ) = None
    live: Annotated[Literal["long-poll", "sse"], Meta(description="Wait for new data.")] | None = None
    cursor: (
        Annotated[
            str,
            Meta(description="`Stream-Cursor` of the previous response.", extra_json_schema={"pattern": "^[0-9]{1,18}$"}),
        ]
        | None
    ) = None


class ListedStream(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A stream in a list. `appends` is the number of stored appends of its own; `last_activity_at` the time of the last append or
    change, or of the last read of a stream with a TTL."""

    id: str
    content_type: str
    created_at: Timestamp
    next_offset: str
    appends: Annotated[int, Meta(description="Stored appends, without those of a fork's source.")]
    last_activity_at: Timestamp
    is_closed: bool = False
    is_public: bool = False
    ttl_seconds: int | None = None
    expires_at: str | None = None
    forked_from: str | None = None


ListedStreamPage = page_of(ListedStream, "streams")


class StreamListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: (
        Annotated[
            str,
            Meta(max_length=STREAM_CHARS_MAX, description="Only ids that begin with this. `session:` lists streams of sessions."),
        ]
        | None
    ) = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=STREAM_CHARS_MAX)] | None = None


class StreamInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Properties of a stream. `offset` is its end. With `ttl_seconds` it expires after that time without reads and writes.
    `start_offset` is the first offset that can be read, None if nothing was dropped. `max_…` are the limits of its retention."""

    content_type: str
    offset: str
    is_closed: bool
    ttl_seconds: int | None = None
    expires_at: str | None = None
    start_offset: str | None = None
    max_age_seconds: int | None = None
    max_bytes: int | None = None
    max_count: int | None = None


class CreatedStream(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Result of a create or fork. `is_new` is False if the stream existed with the same properties."""

    content_type: str
    offset: str
    is_closed: bool
    is_new: bool


class Appended(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Result of an append. `offset` is the end of the stream; a server may leave it out for a duplicate.

    `is_duplicate`: the producer had appended this before, and it is stored once.
    """

    offset: str | None
    is_closed: bool
    is_duplicate: bool = False


class Chunk(msgspec.Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """Result of one read. `is_up_to_date`: it reaches the end of the stream; `is_closed`: nothing will follow."""

    content_type: str
    data: bytes
    next_offset: str
    is_up_to_date: bool
    is_closed: bool
    cursor: str | None = None

    @cached_property
    def messages(self) -> list[Any]:
        """Decoded messages of a JSON stream. Raises ValueError for other streams: use `data`."""
        return [msgspec.json.decode(message) for message in self.raw_messages]

    @property
    def raw_messages(self) -> list[msgspec.Raw]:
        """Like `messages`, as JSON text."""
        if not is_json(self.content_type):
            raise ValueError(f"a stream of {self.content_type!r} has no messages; use `data`")
        return msgspec.json.decode(self.data, type=list[msgspec.Raw]) if self.data else []


class StreamMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """One message of a JSON stream, or some bytes of another stream, and the position after it.

    A stream has offsets between server responses, not between all messages: `offset` is the last offset that was reached, `skip`
    the number of messages after it, this one included. Pass both to `follow` or `messages` to continue without gaps and
    repetitions; with `offset` alone, some messages may be repeated.
    """

    offset: str
    skip: int
    data: bytes

    @cached_property
    def value(self) -> Any:
        """Decoded message of a JSON stream. Raises ValueError if `data` is not JSON."""
        return msgspec.json.decode(self.data)


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """Content type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return media_type(content_type) == "application/json"
