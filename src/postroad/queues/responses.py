"""What the API shows of stored queues and messages. Pure."""

from typing import Any

import msgspec

from postroad.api.dead_letters import DeadMessage
from postroad.api.placement import Placement
from postroad.api.queues import (
    Message,
    PeekedMessage,
    Published,
    Queue,
    QueueStats,
)
from postroad.kernel.clock import rfc3339
from postroad.queues.records import DeadLetter, QueueRecord, StoredMessage


def queue_of(
    record: QueueRecord, stats: QueueStats | None = None, placement: Placement | None = None, features: tuple[str, ...] = ()
) -> Queue:
    return Queue(
        name=record.name,
        settings=msgspec.structs.replace(record.settings, backend=record.backend),
        features=features,
        paused=record.is_paused,
        pause_reason=record.pause_reason,
        replicas=record.replicas,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        stats=stats,
        placement=placement,
    )


def published_of(message: StoredMessage, *, is_duplicate: bool = False, sequence: int | None = None) -> Published:
    """`sequence`: that of a message in an ordered queue."""
    return Published(
        message_id=message.id,
        job_id=message.job,
        enqueued_at=rfc3339(message.at),
        duplicate=is_duplicate,
        sequence=sequence,
    )


def message_of(
    stored: StoredMessage, attempt: int, receipt_id: str, first_leased_ms: int = 0, sequence: int | None = None
) -> Message:
    return Message(
        receipt_id=receipt_id,
        message_id=stored.id,
        job_id=stored.job,
        raw_payload=stored.payload,
        headers=stored.headers,
        attempt=attempt,
        enqueued_at=rfc3339(stored.at),
        priority=stored.priority,
        correlation_id=stored.corr,
        traceparent=stored.trace,
        header_types=stored.types,
        first_leased_at=rfc3339(first_leased_ms) if attempt > 1 and first_leased_ms else None,
        dead_letter=stored.dead,
        group_id=stored.group or None,
        dedupe_id=stored.dedupe or None,
        sequence=sequence,
    )


def peeked_message_of(
    message: StoredMessage, state: str, body_max: int, until_ms: int | None, sequence: int = 0
) -> PeekedMessage:
    until = None if until_ms is None else rfc3339(until_ms)
    return PeekedMessage(
        state=state,
        lease_until=until if state == "leased" else None,
        next_at=until if state == "retrying" else None,
        sequence=sequence,
        **_peeked_fields(message, body_max),
    )


def dead_message_of(letter: DeadLetter, message: StoredMessage, body_max: int, sequence: int = 0) -> DeadMessage:
    return DeadMessage(
        state="dead",
        sequence=sequence,
        reason=letter.reason,
        last_error=letter.last_error,
        attempts=letter.attempts,
        first_failed_at=None if letter.first_failed_at is None else rfc3339(letter.first_failed_at),
        dead_at=rfc3339(letter.dead_at),
        **_peeked_fields(message, body_max),
    )


def _peeked_fields(message: StoredMessage, body_max: int) -> dict[str, Any]:
    payload = bytes(message.payload)
    is_cut = len(payload) > body_max
    return {
        "message_id": message.id,
        "job_id": message.job,
        "headers": message.headers,
        "enqueued_at": rfc3339(message.at),
        "payload_bytes": len(payload),
        "published_by": message.by or None,
        "payload": None if is_cut else message.payload,
        "payload_start": payload[:body_max].decode("utf-8", "ignore") if is_cut else None,
        "priority": message.priority,
        "correlation_id": message.corr,
        "traceparent": message.trace,
        "group_id": message.group or None,
    }
