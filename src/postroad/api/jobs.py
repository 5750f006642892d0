"""Jobs: the lifecycle of messages."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, Page, page_of
from postroad.api.queues import GroupId, Priority
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import ConflictError, NotFound

Id = Annotated[str, Meta(min_length=1, max_length=256)]


class JobNotFound(NotFound, code="job-not-found", status=404, title="Job not found"):
    """The tenant has no job with this id, it ended before the retention period, or the key may not use its queue."""


class JobEnded(ConflictError, code="job-ended", status=409, title="Job ended"):
    """The job is done, dead, expired or cancelled, or its message has just left the queue; `detail` says which."""


class JobInProgress(ConflictError, code="job-in-progress", status=409, title="Job in progress"):
    """A worker has the message of the job at the moment."""


class PayloadGone(NotFound, code="payload-gone", status=410, title="Payload gone"):
    """The payload was deleted with its message, so the job cannot be retried. Publish it again."""


class JobStatus(StrEnum):
    QUEUED = "queued"
    DELAYED = "delayed"
    LEASED = "leased"
    RETRYING = "retrying"
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class JobProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest progress that a worker reported, and when."""

    at: Timestamp
    percent: float | None = None
    note: str | None = None


class Job(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The lifecycle of one message."""

    job_id: str
    queue: str
    status: JobStatus
    attempts: Annotated[int, Meta(description="Deliveries. Starts again after a redrive.")]
    created_at: Timestamp
    updated_at: Timestamp
    last_error: str | None
    correlation_id: str | None
    message_id: str
    due_at: Annotated[Timestamp | None, Meta(description="Time of the next delivery, if the job is delayed or retrying.")] = None
    lease_until: Annotated[Timestamp | None, Meta(description="End of the lease, if the job is leased.")] = None
    expires_at: Annotated[Timestamp | None, Meta(description="Time when the queue drops the message unless it is done.")] = None
    priority: Annotated[
        Priority | None, Meta(description="Priority of the message; left out if it is `normal`, and for archived jobs.")
    ] = None
    group_id: Annotated[str | None, Meta(description="Group of the message; left out for archived jobs.")] = None
    progress: Annotated[JobProgress | None, Meta(description="As its worker reported it.")] = None
    archived: Annotated[bool, Meta(description="The job ended long ago: it does not change any more and has no events.")] = False


class JobQuery(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={
        "since": "from",
        "until": "to",
        "correlation_id": "correlationId",
        "message_id": "messageId",
        "group_id": "groupId",
    },
):
    queue: Annotated[str, Meta(min_length=1, max_length=80, description="Queue of the jobs.")] | None = None
    status: Annotated[JobStatus | None, Meta(description="Only jobs with this status.")] = None
    since: Annotated[AwareDatetime | None, Meta(description="Created at this time or later.")] = None
    until: Annotated[AwareDatetime | None, Meta(description="Created before this time.")] = None
    correlation_id: Annotated[Id | None, Meta(description="Only jobs with this correlation id.")] = None
    message_id: Annotated[Id | None, Meta(description="Only jobs of this message.")] = None
    group_id: Annotated[GroupId | None, Meta(description="Only jobs of messages of this group, without archived ones.")] = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[!-~]{1,256}$")] | None = None  # time of creation and id


class JobEventQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[0-9]\.[!-~]{1,256}$")] | None = None  # time, rank and id


class CancelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1000, description="Stored as the job's last error.")] | None = None


JobPage = page_of(Job, "jobs")


class JobEventPage(Page[dict[str, Any]], frozen=True, kw_only=True):
    """Events as they were stored, with names in snake_case. Empty if the job was stored without its events."""

    items: list[dict[str, Any]] = msgspec.field(name="events")
    next_cursor: str | None = msgspec.field(name="nextCursor")


class JobsProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Progress of the job index, in frames of the stream `JOBS`."""

    position: int
    target: int
    behind: int
    rebuilding: bool
    rebuilt_position: Annotated[int | None, Meta(description="Position of the new index during a rebuild.")]
