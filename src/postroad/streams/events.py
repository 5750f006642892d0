"""The events of a durable stream's life. Pure.

A session's own stream has none of these: what happens to it is told as the session's (`sessions/events.py`).
"""

from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import new_id
from postroad.streams.records import StreamRecord
from postroad.telemetry.event_types import StreamClosed, StreamCreated, StreamDeleted


def created(tenant: str, record: StreamRecord, key_id: str) -> StreamCreated:
    return StreamCreated(
        event_id=new_id(),
        timestamp=rfc3339(record.created_at_ms),
        tenant=tenant,
        stream_id=record.id,
        content_type=record.content_type,
        forked_from=None if record.origin is None else record.origin.source,
        key_id=key_id,
    )


def closed(tenant: str, stream: str, key_id: str, now_ms: int) -> StreamClosed:
    return StreamClosed(event_id=new_id(), timestamp=rfc3339(now_ms), tenant=tenant, stream_id=stream, key_id=key_id)


def deleted(tenant: str, stream: str, key_id: str, now_ms: int) -> StreamDeleted:
    return StreamDeleted(event_id=new_id(), timestamp=rfc3339(now_ms), tenant=tenant, stream_id=stream, key_id=key_id)


def expired(tenant: str, stream: str, now_ms: int) -> StreamDeleted:
    return StreamDeleted(event_id=new_id(), timestamp=rfc3339(now_ms), tenant=tenant, stream_id=stream, is_expired=True)
