"""Event types of sessions."""

from postroad.kernel.event import Event


class SessionSubscribed(Event, frozen=True, kw_only=True, tag="session.subscribed"):
    """A session subscribed to a stream or a pattern. Without further activity it ends at `expires_at`."""

    version: int = 1
    session_id: str
    stream_id: str
    is_new: bool
    expires_at: str


class SessionUnsubscribed(Event, frozen=True, kw_only=True, tag="session.unsubscribed"):
    """A session unsubscribed from a stream or a pattern."""

    version: int = 1
    session_id: str
    stream_id: str


class SessionTouched(Event, frozen=True, kw_only=True, tag="session.touched"):
    """The lifetime of a session was extended to `expires_at`."""

    version: int = 1
    session_id: str
    expires_at: str


class SessionEnded(Event, frozen=True, kw_only=True, tag="session.ended"):
    """A session and its stream were deleted by a request, or because the session expired (`is_expired`)."""

    version: int = 1
    session_id: str
    is_expired: bool
    subscriptions: int


EVENTS: tuple[type[Event], ...] = (
    SessionSubscribed,
    SessionUnsubscribed,
    SessionTouched,
    SessionEnded,
)
