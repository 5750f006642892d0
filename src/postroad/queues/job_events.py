"""Builders of job events. Pure.

The outbox fills ids and times that are left out. Events of operations that can be repeated have ids that repeat, too.
"""

import msgspec

from postroad.kernel.archived_text import archived_text
from postroad.kernel.clock import rfc3339
from postroad.queues.events import (
    JobCancelled,
    JobDead,
    JobDone,
    JobExpired,
    JobExtended,
    JobLeased,
    JobProgressed,
    JobPromoted,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
    MessageArchived,
    QueueEvent,
)
from postroad.queues.records import CancelledMessage, DeadLetter, QueueRecord, Receipt, StoredMessage
from postroad.tasks.rules import TaskRecord


def first_events(record: QueueRecord, message: StoredMessage, delay_ms: int, sequence: int) -> tuple[QueueEvent, ...]:
    """The first event of a job, and the archived message if the queue has `archive`."""
    event = queued(record, message, delay_ms, len(bytes(message.payload)), sequence)
    return (event, archived(record, message)) if record.settings.archive else (event,)


def queued(record: QueueRecord, message: StoredMessage, delay_ms: int, size: int, sequence: int) -> JobQueued:
    retention = record.settings.retention_ms
    ends = [message.at + delay_ms + retention if retention else 0, message.expires]
    expires_at = min((end for end in ends if end), default=0)
    return JobQueued(
        event_id=message.id,
        timestamp=rfc3339(message.at),
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        payload_bytes=size,
        message_sequence=sequence,
        delay_ms=delay_ms,
        expires_at=rfc3339(expires_at) if expires_at else None,
        priority=message.priority,
        correlation_id=message.corr,
        group_id=message.group or None,
    )


def archived(record: QueueRecord, message: StoredMessage) -> MessageArchived:
    payload = archived_text(bytes(message.payload))
    return MessageArchived(
        event_id=f"{message.id}/archived",
        timestamp=rfc3339(message.at),
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        payload=payload.text,
        payload_hash=payload.digest,
        payload_bytes=payload.size,
        headers=msgspec.json.encode(message.headers).decode() if message.headers else None,
        correlation_id=message.corr,
    )


def leased(record: QueueRecord, receipt: Receipt, stored_at_ms: int) -> JobLeased:
    return JobLeased(
        timestamp=rfc3339(receipt.leased_at_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        lease_until=rfc3339(receipt.deadline_ms),
        wait_ms=max(0, receipt.leased_at_ms - stored_at_ms),
        message_sequence=receipt.stream_sequence,
    )


def extended(record: QueueRecord, receipt: Receipt, now_ms: int, deadline_ms: int) -> JobExtended:
    return JobExtended(
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        lease_until=rfc3339(deadline_ms),
    )


def progressed(record: QueueRecord, receipt: Receipt, now_ms: int, percent: float | None, note: str | None) -> JobProgressed:
    return JobProgressed(
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        lease_until=rfc3339(receipt.deadline_ms),
        percent=percent,
        note=note,
    )


def done(record: QueueRecord, receipt: Receipt, now_ms: int) -> JobDone:
    return JobDone(
        event_id=_delivery_event_id(receipt, "done"),
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        processing_ms=max(0, now_ms - receipt.leased_at_ms),
    )


def reconciled(record: QueueRecord, job_id: str, message_id: str, attempt: int, now_ms: int) -> JobDone:
    """The end of a job whose message is gone without an event: a message leaves its queue by an acknowledgement."""
    return JobDone(
        event_id=f"{message_id}/{attempt}/reconciled",
        timestamp=rfc3339(now_ms),
        tenant=record.tenant,
        job_id=job_id,
        message_id=message_id,
        queue=record.name,
        attempt=attempt,
        processing_ms=0,
        is_reconciled=True,
    )


def retried(record: QueueRecord, receipt: Receipt, now_ms: int, next_at_ms: int, reason: str | None) -> JobRetried:
    return JobRetried(
        event_id=_delivery_event_id(receipt, "retried"),
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        next_at=rfc3339(next_at_ms),
        reason=reason,
    )


def requeued(record: QueueRecord, receipt: Receipt, now_ms: int, reason: str | None) -> JobRequeued:
    return JobRequeued(
        event_id=_delivery_event_id(receipt, "requeued"),
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        reason=reason,
    )


def expired(tenant: str, queue: str, job_id: str, message_id: str, attempt: int, at_ms: int) -> JobExpired:
    return JobExpired(
        event_id=f"{message_id}/{at_ms}/expired",
        timestamp=rfc3339(at_ms),
        tenant=tenant,
        job_id=job_id,
        message_id=message_id,
        queue=queue,
        attempt=attempt,
    )


def dead(record: QueueRecord, message: StoredMessage, letter: DeadLetter) -> JobDead:
    """Taken from the stored dead letter: two workers that dead-letter the same delivery record the same event."""
    return JobDead(
        event_id=f"{message.id}/{letter.dead_at}",
        timestamp=rfc3339(letter.dead_at),
        tenant=record.tenant,
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        attempt=letter.attempts,
        reason=letter.reason,
        last_error=letter.last_error,
    )


def redriven(record: QueueRecord, from_queue: str, message: StoredMessage, task: TaskRecord) -> JobRedriven:
    """The time is that of the task's last progress: the same if the chunk is repeated, after the message was dead-lettered, and
    before it can be leased."""
    return JobRedriven(
        event_id=f"{task.id}/{message.id}",
        timestamp=rfc3339(task.updated_at_ms),
        tenant=record.tenant,
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        from_queue=from_queue,
        task_id=task.id,
        key_id=task.created_by,
    )


def retried_by_request(record: QueueRecord, message: StoredMessage, letter_id: str, at_ms: int, sequence: int) -> JobRedriven:
    """`letter_id` identifies the stored dead or cancelled message: a repeated request records the same event."""
    return JobRedriven(
        event_id=f"{letter_id}/{message.id}",
        timestamp=rfc3339(at_ms),
        tenant=record.tenant,
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        from_queue=record.name,
        message_sequence=sequence,
    )


def promoted(record: QueueRecord, message: StoredMessage, attempt: int, sequence: int, now_ms: int) -> JobPromoted:
    return JobPromoted(
        event_id=f"{message.id}/{sequence}.{attempt}/promoted",
        timestamp=rfc3339(now_ms),
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        attempt=attempt,
        message_sequence=sequence,
    )


def cancelled(record: QueueRecord, message: StoredMessage, letter: CancelledMessage) -> JobCancelled:
    """Taken from the stored message: two requests that cancel the same job record the same event."""
    return JobCancelled(
        event_id=f"{message.id}/{letter.cancelled_at}/cancelled",
        timestamp=rfc3339(letter.cancelled_at),
        tenant=record.tenant,
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        attempt=letter.attempts,
        reason=letter.reason,
        retry_until=rfc3339(letter.kept_until),
    )


def _delivery_event_id(receipt: Receipt, name: str) -> str:
    return f"{receipt.message_id}/{receipt.stream_sequence}.{receipt.attempt}/{name}"
