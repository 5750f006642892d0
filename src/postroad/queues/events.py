"""Event types of queues and their jobs."""

from typing import ClassVar

from postroad.kernel.event import Event


class QueueEvent(Event, frozen=True, kw_only=True):
    """An event of one queue."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")


class JobEvent(QueueEvent, frozen=True, kw_only=True):
    """A transition of a job. Stored in `JOBS`, from which the state of every job can be rebuilt.

    `audit` is the tenant's audit mode at that time: with `jobs_only` the event changes the state of the job, and is not kept as
    an event of the job.
    """

    stream: ClassVar[str] = "JOBS"

    job_id: str
    message_id: str
    queue: str
    audit: str = "full"

    @property
    def is_audited(self) -> bool:
        return True


class JobQueued(JobEvent, frozen=True, kw_only=True, tag="job.queued"):
    """A message was stored; it is due at once or after `delay_ms`, and is deleted at `expires_at`. `message_sequence` is its
    position in the stream of the queue."""

    version: int = 1
    payload_bytes: int
    message_sequence: int = 0
    delay_ms: int = 0
    expires_at: str | None = None
    priority: str = "normal"
    correlation_id: str | None = None
    group_id: str | None = None
    key_id: str = ""
    request_id: str = ""


class MessageArchived(QueueEvent, frozen=True, kw_only=True, tag="message.archived"):
    """A message of a queue with `archive`: the line after the `job.queued` of its job, in the same frame.

    `payload` and `headers` are JSON texts, the payload as it was sent; null if it is too large, then only `payload_hash` (hex of
    SHA-256) is stored. `timestamp` is when it was published.
    """

    stream: ClassVar[str] = "JOBS"
    table: ClassVar[str] = "messages"
    is_attached: ClassVar[bool] = True

    version: int = 1
    job_id: str
    message_id: str
    queue: str
    payload: str | None = None
    payload_hash: str | None = None
    payload_bytes: int = 0
    headers: str | None = None
    correlation_id: str | None = None


class JobLeased(JobEvent, frozen=True, kw_only=True, tag="job.leased"):
    """A consumer leased the message until `lease_until`; `wait_ms` is the time since it was published."""

    version: int = 1
    attempt: int
    lease_until: str
    wait_ms: int
    message_sequence: int = 0
    key_id: str = ""
    request_id: str = ""


class JobExtended(JobEvent, frozen=True, kw_only=True, tag="job.extended"):
    """The consumer extended the lease until `lease_until`."""

    version: int = 1
    attempt: int
    lease_until: str
    key_id: str = ""
    request_id: str = ""


class JobProgressed(JobEvent, frozen=True, kw_only=True, tag="job.progressed"):
    """The consumer reported progress: at most one event a second of a message and worker process."""

    version: int = 1
    attempt: int
    lease_until: str
    percent: float | None = None
    note: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobDone(JobEvent, frozen=True, kw_only=True, tag="job.done"):
    """The consumer acknowledged the message; `processing_ms` is the time since the lease began.

    `is_reconciled`: the event of the acknowledgement was lost, and this one was derived from the absence of the message. Its
    time is that of the discovery, and `processing_ms` is 0.
    """

    version: int = 1
    attempt: int
    processing_ms: int
    is_reconciled: bool = False
    key_id: str = ""
    request_id: str = ""


class JobRetried(JobEvent, frozen=True, kw_only=True, tag="job.retried"):
    """The consumer rejected the message; it is delivered again at `next_at`."""

    version: int = 1
    attempt: int
    next_at: str
    reason: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobRequeued(JobEvent, frozen=True, kw_only=True, tag="job.requeued"):
    """The consumer rejected the message; it is delivered again at once."""

    version: int = 1
    attempt: int
    reason: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobDead(JobEvent, frozen=True, kw_only=True, tag="job.dead"):
    """The message became a dead letter: a consumer rejected it, or it failed too often. `last_error` is the latest reason that
    a consumer gave."""

    version: int = 1
    attempt: int
    reason: str
    last_error: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobRedriven(JobEvent, frozen=True, kw_only=True, tag="job.redriven"):
    """The message was moved back to `queue`; its attempts start at 1 again. It was a dead letter of `from_queue`, or cancelled.

    `task_id` is the task that did it; empty if the job was retried alone.
    """

    version: int = 1
    from_queue: str
    task_id: str = ""
    message_sequence: int = 0
    key_id: str = ""
    request_id: str = ""


class JobPromoted(JobEvent, frozen=True, kw_only=True, tag="job.promoted"):
    """A delayed or retrying job was made ready before its time. `attempt` is that of its last delivery."""

    version: int = 1
    attempt: int
    message_sequence: int = 0
    key_id: str = ""
    request_id: str = ""


class JobCancelled(JobEvent, frozen=True, kw_only=True, tag="job.cancelled"):
    """The message was taken out of its queue on request. It can be retried until `retry_until`."""

    version: int = 1
    attempt: int
    reason: str | None = None
    retry_until: str
    key_id: str = ""
    request_id: str = ""


class JobExpired(JobEvent, frozen=True, kw_only=True, tag="job.expired"):
    """The job was not done at its `expires_at`. The leader of the role `control` records it, with that time."""

    version: int = 1
    attempt: int


class QueuePurged(QueueEvent, frozen=True, kw_only=True, tag="queue.purged"):
    """All messages of the queue were deleted; with `is_deleted` the queue, too. Their jobs have expired."""

    stream: ClassVar[str] = "JOBS"
    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    count: int
    is_deleted: bool = False
    key_id: str = ""
    request_id: str = ""

    @property
    def is_audited(self) -> bool:
        return not self.is_deleted


class QueueChanged(QueueEvent, frozen=True, kw_only=True, tag="queue.changed"):
    """A queue was created, or its settings were changed."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    is_new: bool
    key_id: str = ""
    request_id: str = ""


class QueueDeleted(QueueEvent, frozen=True, kw_only=True, tag="queue.deleted"):
    """A queue was deleted with its messages."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    key_id: str = ""
    request_id: str = ""


class QueueSampled(QueueEvent, frozen=True, kw_only=True, tag="queue.sampled"):
    """Stats of a queue: every few seconds for queues with messages, less often for others. `seconds` is the time since the
    previous sample, `waiting` the number of waiting pulls, `oldest_age_ms` the age of the oldest message. `overdue` and
    `deferred` messages are also `ready`."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    ready: int
    leased: int
    delayed: int
    dead: int
    waiting: int
    oldest_age_ms: int | None = None
    expected_drain_seconds: int
    in_per_second: float
    out_per_second: float
    seconds: float
    overdue: int = 0
    retrying: int = 0
    deferred: int = 0


EVENTS: tuple[type[Event], ...] = (
    JobQueued,
    MessageArchived,
    JobLeased,
    JobExtended,
    JobProgressed,
    JobDone,
    JobRetried,
    JobRequeued,
    JobDead,
    JobRedriven,
    JobPromoted,
    JobCancelled,
    JobExpired,
    QueuePurged,
    QueueChanged,
    QueueDeleted,
    QueueSampled,
)
