"""Every event type, once: typed and versioned. What is not in here is not emitted.

An event is one JSON object: `event` names its type, `version` the form of that type. A field may be added to a type without a
new version; a field that changes its meaning, or goes, is a new version. Fields are in snake_case, as seed 003 has them.
"""

from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """What all events have. `event_id` identifies the event wherever it is read, however often it is delivered."""

    stream: ClassVar[str] = "TELEMETRY"

    event_id: str
    timestamp: str
    tenant: str


class JobEvent(Event, frozen=True, kw_only=True):
    """A step in the life of a job. These travel on `JOBS`, from which the state of every job can be rebuilt.

    `audit` is the tenant's audit mode when it happened: with `jobs_only` the step counts for the job's state, and is not kept
    as an event of the job.
    """

    stream: ClassVar[str] = "JOBS"

    job_id: str
    message_id: str
    queue: str
    audit: str = "full"


class JobQueued(JobEvent, frozen=True, kw_only=True, tag="job.queued"):
    """A message was stored, ready to be pulled at once or, with `delay_ms`, later. At `expires_at` the queue drops it."""

    version: int = 1
    payload_bytes: int
    delay_ms: int = 0
    expires_at: str | None = None
    correlation_id: str | None = None
    key_id: str
    request_id: str = ""


class JobLeased(JobEvent, frozen=True, kw_only=True, tag="job.leased"):
    """A consumer has the message until `lease_until`; `wait_ms` is how long the message waited for its first delivery."""

    version: int = 1
    attempt: int
    lease_until: str
    wait_ms: int
    key_id: str
    request_id: str = ""


class JobDone(JobEvent, frozen=True, kw_only=True, tag="job.done"):
    """The consumer acknowledged the message; `processing_ms` is the time since its lease began."""

    version: int = 1
    attempt: int
    processing_ms: int
    key_id: str
    request_id: str = ""


class JobRetried(JobEvent, frozen=True, kw_only=True, tag="job.retried"):
    """The consumer could not do it: it is to be delivered again at `next_at`."""

    version: int = 1
    attempt: int
    next_at: str
    reason: str | None = None
    key_id: str
    request_id: str = ""


class JobRequeued(JobEvent, frozen=True, kw_only=True, tag="job.requeued"):
    """The consumer gave the message back, to be delivered again at once."""

    version: int = 1
    attempt: int
    reason: str | None = None
    key_id: str
    request_id: str = ""


class JobExtended(JobEvent, frozen=True, kw_only=True, tag="job.extended"):
    """The consumer keeps the message for longer, until `lease_until`."""

    version: int = 1
    attempt: int
    lease_until: str
    key_id: str
    request_id: str = ""


class JobDead(JobEvent, frozen=True, kw_only=True, tag="job.dead"):
    """The message went to the dead letters: its consumer said so, or it failed too often. `last_error` is what a consumer gave
    as its reason last."""

    version: int = 1
    attempt: int
    reason: str
    last_error: str | None = None
    key_id: str
    request_id: str = ""


class JobRedriven(JobEvent, frozen=True, kw_only=True, tag="job.redriven"):
    """The message was put back from the dead letters of `from_queue`; its attempts count from 1 again."""

    version: int = 1
    from_queue: str
    task_id: str
    key_id: str


class QueuePurged(Event, frozen=True, kw_only=True, tag="queue.purged"):
    """All messages that were in the queue were dropped; with `is_deleted` the queue itself, too. Their jobs have expired."""

    stream: ClassVar[str] = "JOBS"

    version: int = 1
    queue: str
    count: int
    is_deleted: bool = False
    key_id: str
    request_id: str = ""


class QueueChanged(Event, frozen=True, kw_only=True, tag="queue.changed"):
    """A queue was created, or its settings were changed."""

    version: int = 1
    queue: str
    is_new: bool
    key_id: str
    request_id: str = ""


class QueueDeleted(Event, frozen=True, kw_only=True, tag="queue.deleted"):
    """A queue was deleted with all that was in it."""

    version: int = 1
    queue: str
    key_id: str
    request_id: str = ""


class QueueSampled(Event, frozen=True, kw_only=True, tag="queue.sampled"):
    """What is in a queue. Those with something in them are looked at every few seconds, the others now and then; `seconds` is how
    long ago the look before was due. `waiting` is how many pulls wait for a message, `oldest_age_ms` how old the oldest is."""

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


class StorageSampled(Event, frozen=True, kw_only=True, tag="storage.sampled"):
    """What a tenant has stored, in all its queues and streams; it counts for the `seconds` since the sample before."""

    version: int = 1
    bytes: int
    messages: int
    queues: int
    streams: int
    seconds: float


class TrafficSampled(Event, frozen=True, kw_only=True, tag="traffic.sampled"):
    """What one process did for a tenant in the last `seconds`. Only processes that did something say so."""

    version: int = 1
    worker: str
    seconds: float
    requests: int = 0
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    appends: int = 0
    append_bytes: int = 0
    fanout_messages: int = 0


class ProcessSampled(Event, frozen=True, kw_only=True, tag="process.sampled"):
    """How a process of Postroad is; the tenant is `_platform`. `loop_lag_ms`: the longest that its work waited for its turn."""

    version: int = 1
    worker: str
    role: str
    seconds: float
    requests: int
    client_errors: int
    server_errors: int
    open_requests: int
    loop_lag_ms: int
    memory_bytes: int
    events_dropped: int


class StreamCreated(Event, frozen=True, kw_only=True, tag="stream.created"):
    """A durable stream was made, of its own or as a fork."""

    version: int = 1
    stream_id: str
    content_type: str
    forked_from: str | None = None
    key_id: str


class StreamClosed(Event, frozen=True, kw_only=True, tag="stream.closed"):
    """Nothing can be appended to the stream any more."""

    version: int = 1
    stream_id: str
    key_id: str


class StreamDeleted(Event, frozen=True, kw_only=True, tag="stream.deleted"):
    """A stream is gone: somebody deleted it, or its time was over (`is_expired`)."""

    version: int = 1
    stream_id: str
    is_expired: bool = False
    key_id: str = ""


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


class WorkerStarted(Event, frozen=True, kw_only=True, tag="worker.started"):
    """A process of Postroad is ready. The tenant is `_platform`."""

    version: int = 1
    worker: str
    role: str
    postroad_version: str


PLATFORM = "_platform"  # stands for the tenant in events of the installation itself; no tenant can be called so

EVENT_TYPES: tuple[type[Event], ...] = (
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
    StorageSampled,
    TrafficSampled,
    ProcessSampled,
    StreamCreated,
    StreamClosed,
    StreamDeleted,
    SessionSubscribed,
    SessionUnsubscribed,
    SessionTouched,
    SessionEnded,
    WorkerStarted,
)


def event_name(of: type[Event]) -> str:
    name = of.__struct_config__.tag
    if not isinstance(name, str):
        raise TypeError(f"{of.__name__} has no tag")
    return name
