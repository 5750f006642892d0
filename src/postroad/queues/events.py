"""Event types of queues and their jobs."""

from typing import ClassVar

from postroad.kernel.event import Event


class JobEvent(Event, frozen=True, kw_only=True):
    """A step in the life of a job. These travel on `JOBS`, from which the state of every job can be rebuilt.

    `audit` is the tenant's audit mode when it happened: with `jobs_only` the step counts for the job's state, and is not kept
    as an event of the job.
    """

    stream: ClassVar[str] = "JOBS"
    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    job_id: str
    message_id: str
    queue: str
    audit: str = "full"

    @property
    def is_audited(self) -> bool:
        return True


class JobQueued(JobEvent, frozen=True, kw_only=True, tag="job.queued"):
    """A message was stored, ready to be pulled at once or, with `delay_ms`, later. At `expires_at` the queue drops it."""

    version: int = 1
    payload_bytes: int
    delay_ms: int = 0
    expires_at: str | None = None
    correlation_id: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobLeased(JobEvent, frozen=True, kw_only=True, tag="job.leased"):
    """A consumer has the message until `lease_until`; `wait_ms` is how long the message waited for its first delivery."""

    version: int = 1
    attempt: int
    lease_until: str
    wait_ms: int
    key_id: str = ""
    request_id: str = ""


class JobExtended(JobEvent, frozen=True, kw_only=True, tag="job.extended"):
    """The consumer keeps the message for longer, until `lease_until`."""

    version: int = 1
    attempt: int
    lease_until: str
    key_id: str = ""
    request_id: str = ""


class JobDone(JobEvent, frozen=True, kw_only=True, tag="job.done"):
    """The consumer acknowledged the message; `processing_ms` is the time since its lease began."""

    version: int = 1
    attempt: int
    processing_ms: int
    key_id: str = ""
    request_id: str = ""


class JobRetried(JobEvent, frozen=True, kw_only=True, tag="job.retried"):
    """The consumer could not do it: it is to be delivered again at `next_at`."""

    version: int = 1
    attempt: int
    next_at: str
    reason: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobRequeued(JobEvent, frozen=True, kw_only=True, tag="job.requeued"):
    """The consumer gave the message back, to be delivered again at once."""

    version: int = 1
    attempt: int
    reason: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobDead(JobEvent, frozen=True, kw_only=True, tag="job.dead"):
    """The message went to the dead letters: its consumer said so, or it failed too often. `last_error` is what a consumer gave
    as its reason last."""

    version: int = 1
    attempt: int
    reason: str
    last_error: str | None = None
    key_id: str = ""
    request_id: str = ""


class JobRedriven(JobEvent, frozen=True, kw_only=True, tag="job.redriven"):
    """The message was put back from the dead letters of `from_queue`; its attempts count from 1 again."""

    version: int = 1
    from_queue: str
    task_id: str
    key_id: str = ""


class QueuePurged(Event, frozen=True, kw_only=True, tag="queue.purged"):
    """All messages that were in the queue were dropped; with `is_deleted` the queue itself, too. Their jobs have expired."""

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


class QueueChanged(Event, frozen=True, kw_only=True, tag="queue.changed"):
    """A queue was created, or its settings were changed."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    is_new: bool
    key_id: str = ""
    request_id: str = ""


class QueueDeleted(Event, frozen=True, kw_only=True, tag="queue.deleted"):
    """A queue was deleted with all that was in it."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    key_id: str = ""
    request_id: str = ""


class QueueSampled(Event, frozen=True, kw_only=True, tag="queue.sampled"):
    """What is in a queue. Those with something in them are looked at every few seconds, the others now and then; `seconds` is how
    long ago the look before was due. `waiting` is how many pulls wait for a message, `oldest_age_ms` how old the oldest is."""

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


EVENTS: tuple[type[Event], ...] = (
    JobQueued,
    JobLeased,
    JobExtended,
    JobDone,
    JobRetried,
    JobRequeued,
    JobDead,
    JobRedriven,
    QueuePurged,
    QueueChanged,
    QueueDeleted,
    QueueSampled,
)
