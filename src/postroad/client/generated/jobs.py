"""Calls of `client.jobs`. Generated from the route table by `make generate`; do not edit."""

from typing import Any

from postroad.api.jobs import Job, JobEventPage, JobPage, JobsProgress, JobStatus
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class JobsCalls:
    @pages
    def list(
        self,
        *,
        queue: str | None = None,
        status: JobStatus | str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        group_id: str | None = None,
        page_size: int = 100,
    ) -> Pages[Job]:
        """List jobs. Newest first, including archived jobs. A key that is restricted to some queues gets their jobs."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/jobs",
                query={
                    "queue": queue,
                    "status": status,
                    "from": moment(since),
                    "to": moment(until),
                    "correlationId": correlation_id,
                    "messageId": message_id,
                    "groupId": group_id,
                    "limit": page_size,
                },
                response=JobPage,
            )
        )

    @operation
    def get(self, job: str) -> Call[Job]:
        """Show a job. A job exists as soon as the publish that created it was answered. Raises JobNotFound."""
        return Call(method="GET", path=f"/v1/jobs/{segment(job)}", response=Job)

    @pages
    def events(self, job: str, *, page_size: int = 100) -> Pages[dict[str, Any]]:
        """List the events of a job.

        Oldest first. Stored if the tenant's `auditMode` is `full`, until the job is archived. Raises JobNotFound.
        """
        return Pages(
            call=Call(method="GET", path=f"/v1/jobs/{segment(job)}/events", query={"limit": page_size}, response=JobEventPage)
        )

    @operation
    def cancel(self, job: str, *, reason: str | None = None) -> Call[Job]:
        """Cancel a job.

        Takes the message of an unfinished job out of its queue. A worker that has it learns of it when it extends its
        lease or reports progress; if it acknowledges before, the job is done. Idempotent. Raises JobNotFound, JobEnded,
        QueueNotFound, BackendCannot.
        """
        body = body_of({"reason": reason})
        return Call(method="POST", path=f"/v1/jobs/{segment(job)}/cancel", body=body, response=Job)

    @operation
    def run_now(self, job: str) -> Call[Job]:
        """Run a delayed or retrying job now.

        A job that is ready already stays as it is. Raises JobNotFound, JobEnded, JobInProgress, QueueNotFound,
        BackendCannot.
        """
        return Call(method="POST", path=f"/v1/jobs/{segment(job)}/run", response=Job)

    @operation
    def retry(self, job: str) -> Call[Job]:
        """Retry a dead or cancelled job.

        The message returns to its queue, and its attempts start at 1 again. The payload of a job that is done or expired
        does not exist any more: 410. Raises JobNotFound, PayloadGone, JobInProgress, PreconditionFailed, QueueNotFound.
        """
        return Call(method="POST", path=f"/v1/jobs/{segment(job)}/retry", response=Job, is_repeatable=False)

    @operation
    def status(self) -> Call[JobsProgress]:
        """Show the progress of the job index. Needs a platform key."""
        return Call(method="GET", path="/api/control/jobs", response=JobsProgress)

    @operation
    def rebuild(self) -> Call[JobsProgress]:
        """Rebuild the job index.

        From all events on `JOBS`. The current index serves requests until the new one is complete. Raises
        PreconditionFailed.
        """
        return Call(method="POST", path="/api/control/jobs/rebuild", response=JobsProgress, is_repeatable=False)


class Jobs(JobsCalls, SyncNamespace):
    pass


class AsyncJobs(JobsCalls, AsyncNamespace):
    pass
