"""Sessions: subscriptions to streams, and the fan-out of published messages."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.api.streams import Appended
from postroad.kernel.circuit_breaker import BreakerState
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import NotFound
from postroad.kernel.names import STREAM_CHARS_MAX

SESSION_PATTERN = "[.]{0,127}[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,127}"  # not of dots alone: `.` and `..` have a meaning in paths
SESSION_CHARS_MAX = 128

SessionId = Annotated[
    str,
    Meta(pattern=f"^{SESSION_PATTERN}$", max_length=SESSION_CHARS_MAX, description="Id of the session, for example a UUID."),
]
SourceId = Annotated[
    str, Meta(min_length=1, max_length=STREAM_CHARS_MAX, description="Id of a stream, or a pattern such as `chat:*`.")
]
Milliseconds = Annotated[int, Meta(description="Milliseconds since 1970.")]


class SessionNotFound(NotFound, code="session-not-found", status=404, title="Session not found"):
    """No session has this id, or it has expired."""


class SubscribeRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    stream_id: SourceId
    envelope: Annotated[
        bool, Meta(description="Wrap each message in JSON with its stream and offset; the session is a JSON stream then.")
    ] = False


class UnsubscribeRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    stream_id: SourceId


class Subscribed(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Result of a subscribe. The session ends at `expires_at_ms` unless it is touched."""

    session_id: str
    stream_id: str
    session_stream_path: Annotated[str, Meta(description="Path of the stream with the session's messages.")]
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")
    is_new_session: bool


class Unsubscribed(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    stream_id: str
    unsubscribed: bool = True


class SessionSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """`outstanding` is left out for patterns, and for the subscriptions of a session after the first hundred."""

    stream_id: str
    subscribed_at: Timestamp
    envelope: bool
    outstanding: Annotated[int, Meta(description="Messages of this stream not yet copied to all sessions.")] | None = None


class Session(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A session and its subscriptions. `next_offset` is the end of its stream."""

    session_id: str
    session_stream_path: str
    content_type: str
    created_at: Timestamp
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")
    next_offset: str
    subscriptions: list[SessionSubscription]


class ListedSession(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A session in a list. `appends` is the number of messages in its stream; `last_activity_at` the time of its last message,
    subscribe or touch."""

    session_id: str
    session_stream_path: str
    content_type: str
    created_at: Timestamp
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")
    next_offset: str
    subscriptions: Annotated[int, Meta(description="Number of subscriptions.")]
    appends: int
    last_activity_at: Timestamp


ListedSessionPage = page_of(ListedSession, "sessions")


class SessionListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Annotated[str, Meta(max_length=SESSION_CHARS_MAX, description="Only ids that begin with this.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=SESSION_CHARS_MAX)] | None = None


class Touched(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")


class FannedOut(Appended, frozen=True, kw_only=True):
    """Result of a publish: stored at `offset`, and the copies made before the response.

    `mode` is `inline` (all of `count` sessions have a copy, except `failures`, which get it later or have ended), `queued`,
    `circuit-open` or `skipped`: the copies follow later.
    """

    mode: str
    count: int
    successes: int
    failures: int


class Fanout(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Progress of a stream's fan-out: all sessions have everything up to `done_offset`; `outstanding` messages follow."""

    stream_id: str
    subscribers: int
    done_offset: Annotated[str, Meta(description="All subscribers have everything up to this offset.")]
    outstanding: int
    breaker: Annotated[BreakerState, Meta(description="Circuit breaker of the gateway that responds.")]
