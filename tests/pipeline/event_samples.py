"""One of each event that the reports count, at a moment that is given in seconds after noon."""

from datetime import UTC, datetime, timedelta
from typing import Any

from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.kernel.ids import new_id
from postroad.queues.events import JobCancelled, JobDead, JobDone, JobExpired, JobLeased, JobQueued, JobRedriven, QueueSampled
from postroad.sessions.events import SessionEnded, SessionSubscribed, SessionTouched, SessionUnsubscribed
from postroad.telemetry.events import StorageSampled, TrafficSampled

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def moment(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def _head(seconds: float, tenant: str) -> dict[str, Any]:
    return {"event_id": new_id(), "timestamp": rfc3339(NOON_MS + round(seconds * 1000)), "tenant": tenant}


def _job(seconds: float, tenant: str, queue: str) -> dict[str, Any]:
    return {**_head(seconds, tenant), "job_id": new_id(), "message_id": new_id(), "queue": queue, "key_id": "k"}


def queued(seconds: float, size: int = 1, tenant: str = "acme", queue: str = "mail") -> JobQueued:
    return JobQueued(payload_bytes=size, **_job(seconds, tenant, queue))


def leased(seconds: float, wait_ms: int, attempt: int = 1, tenant: str = "acme", queue: str = "mail") -> JobLeased:
    return JobLeased(attempt=attempt, wait_ms=wait_ms, lease_until=rfc3339(NOON_MS), **_job(seconds, tenant, queue))


def done(seconds: float, processing_ms: int, tenant: str = "acme", queue: str = "mail") -> JobDone:
    return JobDone(attempt=1, processing_ms=processing_ms, **_job(seconds, tenant, queue))


def dead(seconds: float, attempt: int, reason: str, tenant: str = "acme", queue: str = "mail") -> JobDead:
    return JobDead(attempt=attempt, reason=reason, **_job(seconds, tenant, queue))


def cancelled(seconds: float, tenant: str = "acme", queue: str = "mail") -> JobCancelled:
    return JobCancelled(attempt=1, retry_until=rfc3339(NOON_MS), **_job(seconds, tenant, queue))


def expired(seconds: float, tenant: str = "acme", queue: str = "mail") -> JobExpired:
    fields = {name: value for name, value in _job(seconds, tenant, queue).items() if name != "key_id"}  # no caller's
    return JobExpired(attempt=1, **fields)


def redriven(seconds: float, from_queue: str, tenant: str = "acme", queue: str = "mail") -> JobRedriven:
    return JobRedriven(from_queue=from_queue, task_id="t", **_job(seconds, tenant, queue))


def sampled(
    seconds: float,
    ready: int = 0,
    leased: int = 0,
    waiting: int = 0,
    oldest_age_ms: int | None = None,
    out_per_second: float = 0.0,
    tenant: str = "acme",
    queue: str = "mail",
    retrying: int = 0,
) -> QueueSampled:
    return QueueSampled(
        queue=queue,
        ready=ready,
        leased=leased,
        delayed=2,
        dead=3,
        waiting=waiting,
        oldest_age_ms=oldest_age_ms,
        expected_drain_seconds=60,
        in_per_second=0.0,
        out_per_second=out_per_second,
        seconds=5.0,
        retrying=retrying,
        **_head(seconds, tenant),
    )


def stored(seconds: float, size: int, lasted: float = 10.0, tenant: str = "acme") -> StorageSampled:
    return StorageSampled(bytes=size, messages=1, queues=1, streams=1, seconds=lasted, **_head(seconds, tenant))


def traffic(seconds: float, requests: int, bytes_in: int, tenant: str = "acme") -> TrafficSampled:
    return TrafficSampled(worker="w", seconds=10.0, requests=requests, bytes_in=bytes_in, **_head(seconds, tenant))


def subscribed(seconds: float, session: str = "s", lives: float = 60, tenant: str = "acme") -> SessionSubscribed:
    until = rfc3339(NOON_MS + round((seconds + lives) * 1000))
    return SessionSubscribed(session_id=session, stream_id="news", is_new=True, expires_at=until, **_head(seconds, tenant))


def unsubscribed(seconds: float, session: str = "s", tenant: str = "acme") -> SessionUnsubscribed:
    return SessionUnsubscribed(session_id=session, stream_id="news", **_head(seconds, tenant))


def touched(seconds: float, session: str = "s", lives: float = 60, tenant: str = "acme") -> SessionTouched:
    until = rfc3339(NOON_MS + round((seconds + lives) * 1000))
    return SessionTouched(session_id=session, expires_at=until, **_head(seconds, tenant))


def ended(seconds: float, session: str = "s", is_expired: bool = False, tenant: str = "acme") -> SessionEnded:
    return SessionEnded(session_id=session, is_expired=is_expired, subscriptions=1, **_head(seconds, tenant))


def sample_events() -> list[Event]:
    """Over two hours, of two tenants."""
    return [
        queued(1, 100),
        queued(2, 50),
        queued(61, 7, tenant="globex"),
        leased(2, 40),
        leased(3, 1000),
        leased(4, 9, attempt=2),
        leased(3700, 40),
        done(5, 130),
        done(6, 131),
        dead(7, 1, "bad address"),
        dead(8, 5, "bad address"),
        dead(9, 1, "x" * 300, queue="bill"),
        redriven(10, "mail", queue="bill"),
        sampled(5, ready=4, leased=1, waiting=1, oldest_age_ms=900, out_per_second=0.1, retrying=6),
        sampled(10, ready=8, out_per_second=2.0),
        stored(5, 1000),
        stored(15, 3000, 9.9),
        traffic(10, 3, 500),
        traffic(20, 4, 0),
        subscribed(1),
        subscribed(2),
        unsubscribed(3),
        touched(4),
        ended(5),
        ended(6, is_expired=True),
        ended(7, is_expired=True),
    ]
