"""Event types of sessions."""

from postroad.kernel.event import Event


class SessionSubscribed(Event, frozen=True, kw_only=True, tag="session.subscribed"):
    """A session gets what is written to a stream, or to those of a pattern. Untouched, it lives until `expires_at`."""

    version: int = 1
    session_id: str
    stream_id: str
    is_new: bool
    expires_at: str


class SessionUnsubscribed(Event, frozen=True, kw_only=True, tag="session.unsubscribed"):
    """A session gets no more of a stream."""

    version: int = 1
    session_id: str
    stream_id: str


class SessionTouched(Event, frozen=True, kw_only=True, tag="session.touched"):
    """A session lives on, until `expires_at`."""

    version: int = 1
    session_id: str
    expires_at: str


class SessionEnded(Event, frozen=True, kw_only=True, tag="session.ended"):
    """A session is gone with its stream: somebody deleted it, or its time was over (`is_expired`)."""

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
