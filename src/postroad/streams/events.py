"""Event types of durable streams."""

from postroad.kernel.event import Event


class StreamCreated(Event, frozen=True, kw_only=True, tag="stream.created"):
    """A durable stream or a fork was created."""

    version: int = 1
    stream_id: str
    content_type: str
    forked_from: str | None = None
    key_id: str = ""


class StreamClosed(Event, frozen=True, kw_only=True, tag="stream.closed"):
    """A stream was closed and accepts no more appends."""

    version: int = 1
    stream_id: str
    key_id: str = ""


class StreamDeleted(Event, frozen=True, kw_only=True, tag="stream.deleted"):
    """A stream was deleted by a request, or because it expired (`is_expired`)."""

    version: int = 1
    stream_id: str
    is_expired: bool = False
    key_id: str = ""


EVENTS: tuple[type[Event], ...] = (
    StreamCreated,
    StreamClosed,
    StreamDeleted,
)
