"""Jobs as the API shows them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.jobs.rules import Job, JobStatus, status_at
from postroad.kernel.clock import Timestamp, rfc3339


class JobView(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    job_id: str
    queue: str
    status: JobStatus
    attempts: Annotated[int, Meta(description="How often it was delivered; counts from 1 again after it was put back.")]
    created_at: Timestamp
    updated_at: Timestamp
    last_error: str | None
    correlation_id: str | None
    message_id: str
    due_at: Annotated[Timestamp | UnsetType, Meta(description="Not delivered before; of delayed and retrying jobs.")] = UNSET
    lease_until: Annotated[Timestamp | UnsetType, Meta(description="Of leased jobs.")] = UNSET
    expires_at: Annotated[Timestamp | UnsetType, Meta(description="When the queue drops it, if it is not done before.")] = UNSET
    archived: Annotated[bool, Meta(description="It ended long ago: it is as it was then, and its events are gone.")] = False


def job_view(job: Job, now: int) -> JobView:
    status, step = status_at(job, now), job.step
    has_expiry = job.expires_at and not job.redriven_at
    return JobView(
        job_id=job.job_id,
        queue=job.queue,
        status=status,
        attempts=step.attempt,
        created_at=rfc3339(job.created_at),
        updated_at=rfc3339(job.changed_at),
        last_error=job.last_error,
        correlation_id=job.correlation_id,
        message_id=job.message_id,
        due_at=rfc3339(step.due_at) if status in (JobStatus.DELAYED, JobStatus.RETRYING) else UNSET,
        lease_until=rfc3339(step.lease_until) if status is JobStatus.LEASED else UNSET,
        expires_at=rfc3339(job.expires_at) if has_expiry and not step.is_end else UNSET,
    )
