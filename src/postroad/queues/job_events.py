"""The events of a queue's life, made of what the service has in hand. Pure."""

from postroad.kernel.clock import rfc3339
from postroad.queues.events import (
    JobDead,
    JobDone,
    JobExtended,
    JobLeased,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
    QueuePurged,
    QueueSampled,
)
from postroad.queues.rules import DeadLetter, NewMessage, QueueRecord, Receipt, StoredMessage
from postroad.queues.stats import QueueStats
from postroad.tasks.rules import TaskRecord


def queued(record: QueueRecord, message: StoredMessage, new: NewMessage, size: int) -> JobQueued:
    """Its id is the message's own: repeated, it is the same event."""
    retention = record.settings.retention_ms
    return JobQueued(
        event_id=message.id,
        timestamp=rfc3339(message.at),
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        payload_bytes=size,
        delay_ms=new.delay_ms,
        expires_at=rfc3339(message.at + new.delay_ms + retention) if retention else None,
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
    )


def extended(record: QueueRecord, receipt: Receipt, now_ms: int, until_ms: int) -> JobExtended:
    return JobExtended(
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        lease_until=rfc3339(until_ms),
    )


def _settled_id(receipt: Receipt, how: str) -> str:
    """Whoever did not hear the answer says it again: that is the same event, told again."""
    return f"{receipt.message_id}/{receipt.stream_sequence}.{receipt.attempt}/{how}"


def done(record: QueueRecord, receipt: Receipt, now_ms: int) -> JobDone:
    return JobDone(
        event_id=_settled_id(receipt, "done"),
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        processing_ms=max(0, now_ms - receipt.leased_at_ms),
    )


def retried(
    record: QueueRecord,
    receipt: Receipt,
    now_ms: int,
    next_at_ms: int,
    reason: str | None,
) -> JobRetried:
    return JobRetried(
        event_id=_settled_id(receipt, "retried"),
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
        event_id=_settled_id(receipt, "requeued"),
        timestamp=rfc3339(now_ms),
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        reason=reason,
    )


def dead(
    record: QueueRecord,
    message: StoredMessage,
    letter: DeadLetter,
) -> JobDead:
    """Of the letter as it is stored: two who give up the same delivery tell of one death, in the same words."""
    return JobDead(
        event_id=f"{message.id}/{letter.dead_at}",
        timestamp=rfc3339(letter.dead_at),
        job_id=message.job,
        message_id=message.id,
        queue=record.name,
        attempt=letter.attempts,
        reason=letter.reason,
        last_error=letter.last_error,
    )


def redriven(record: QueueRecord, from_queue: str, message: StoredMessage, task: TaskRecord) -> JobRedriven:
    """At the time at which the task last said how far it is: whoever takes it up from there tells the same again. It is after
    the message's death, and before anybody can have the message."""
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


def purged(queue: str, count: int, *, is_deleted: bool = False) -> QueuePurged:
    return QueuePurged(
        queue=queue,
        count=count,
        is_deleted=is_deleted,
    )


EXPECTED_DRAIN_SECONDS = 300  # of a queue whose owner expects nothing in particular


def sampled(record: QueueRecord, stats: QueueStats, moved: tuple[int, int], seconds: float) -> QueueSampled:
    """`moved`: how many came and went in these `seconds`."""
    came, went = moved
    return QueueSampled(
        tenant=record.tenant,
        queue=record.name,
        ready=stats.ready,
        leased=stats.leased,
        delayed=stats.delayed,
        dead=stats.dead,
        waiting=stats.waiting,
        oldest_age_ms=stats.oldest_age_ms,
        expected_drain_seconds=record.settings.expected_drain_seconds or EXPECTED_DRAIN_SECONDS,
        in_per_second=round(came / seconds, 3),
        out_per_second=round(went / seconds, 3),
        seconds=round(seconds, 3),
    )
