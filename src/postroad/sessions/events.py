"""The events of a session's life. Pure."""

from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import new_id
from postroad.sessions.records import Ending
from postroad.telemetry.event_types import SessionEnded, SessionSubscribed, SessionTouched, SessionUnsubscribed


def subscribed(tenant: str, session: str, source: str, now_ms: int, expires_at_ms: int, *, is_new: bool) -> SessionSubscribed:
    return SessionSubscribed(
        event_id=new_id(),
        timestamp=rfc3339(now_ms),
        tenant=tenant,
        session_id=session,
        stream_id=source,
        is_new=is_new,
        expires_at=rfc3339(expires_at_ms),
    )


def unsubscribed(tenant: str, session: str, source: str, now_ms: int) -> SessionUnsubscribed:
    return SessionUnsubscribed(event_id=new_id(), timestamp=rfc3339(now_ms), tenant=tenant, session_id=session, stream_id=source)


def touched(tenant: str, session: str, now_ms: int, expires_at_ms: int) -> SessionTouched:
    return SessionTouched(
        event_id=new_id(),
        timestamp=rfc3339(now_ms),
        tenant=tenant,
        session_id=session,
        expires_at=rfc3339(expires_at_ms),
    )


def ended(tenant: str, session: str, ending: Ending) -> SessionEnded:
    """As it is stored: told again, it is the same event."""
    return SessionEnded(
        event_id=ending.id,
        timestamp=rfc3339(ending.at_ms),
        tenant=tenant,
        session_id=session,
        is_expired=ending.is_expired,
        subscriptions=ending.subscriptions,
    )
