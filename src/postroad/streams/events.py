"""Event types of durable streams."""

from postroad.kernel.event import Event


class StreamCreated(Event, frozen=True, kw_only=True, tag="stream.created"):
    """A durable stream was made, of its own or as a fork."""

    version: int = 1
    stream_id: str
    content_type: str
    forked_from: str | None = None
    key_id: str = ""


class StreamClosed(Event, frozen=True, kw_only=True, tag="stream.closed"):
    """Nothing can be appended to the stream any more."""

    version: int = 1
    stream_id: str
    key_id: str = ""


class StreamDeleted(Event, frozen=True, kw_only=True, tag="stream.deleted"):
    """A stream is gone: somebody deleted it, or its time was over (`is_expired`)."""

    version: int = 1
    stream_id: str
    is_expired: bool = False
    key_id: str = ""


EVENTS: tuple[type[Event], ...] = (
    StreamCreated,
    StreamClosed,
    StreamDeleted,
)
