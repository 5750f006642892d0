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
    """A step in the life of a job. These travel on `JOBS`, from which the state of every job can be rebuilt."""

    stream: ClassVar[str] = "JOBS"

    job_id: str
    message_id: str
    queue: str


class JobQueued(JobEvent, frozen=True, kw_only=True, tag="job.queued"):
    """A message was stored, ready to be pulled at once or, with `delay_ms`, later."""

    version: int = 1
    payload_bytes: int
    delay_ms: int = 0
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


class WorkerStarted(Event, frozen=True, kw_only=True, tag="worker.started"):
    """A process of Postroad is ready. The tenant is `_platform`."""

    version: int = 1
    worker: str
    role: str
    postroad_version: str


PLATFORM = "_platform"  # stands for the tenant in events of the installation itself; no tenant can be called so

EVENT_TYPES: tuple[type[Event], ...] = (JobQueued, JobLeased, JobDone, QueueChanged, QueueDeleted, WorkerStarted)


def event_name(of: type[Event]) -> str:
    name = of.__struct_config__.tag
    if not isinstance(name, str):
        raise TypeError(f"{of.__name__} has no tag")
    return name
