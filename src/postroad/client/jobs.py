"""`client.jobs`: what became of messages; and, with a platform key, how far the server's view of them is."""

from collections.abc import Callable
from typing import Any

from postroad.client.calls import AsyncNamespace, Call, Pages, Poll, SyncNamespace, operation, pages, poll
from postroad.client.encoding import Moment, moment, segment
from postroad.client.shapes.tasks import Job, JobEventPage, JobPage, JobsProgress

_CONTROL = "/api/control/jobs"


class JobCalls:
    @operation
    def get(self, job_id: str) -> Call[Job]:
        """A job is there as soon as its publish was answered. Raises JobNotFound."""
        return Call(method="GET", path=f"/v1/jobs/{segment(job_id)}", response=Job)

    @pages
    def list(
        self,
        *,
        queue: str | None = None,
        status: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        page_size: int = 100,
    ) -> Pages[Job]:
        """The jobs that fit, newest first; `since` and `until` bound when they were created."""
        query = {
            "queue": queue,
            "status": status,
            "from": moment(since),
            "to": moment(until),
            "correlationId": correlation_id,
            "messageId": message_id,
            "limit": page_size,
        }
        call: Call[JobPage] = Call(method="GET", path="/v1/jobs", query=query, response=JobPage)
        return Pages(call=call, items=lambda page: page.jobs, cursor=lambda page: page.next_cursor)

    @pages
    def events(self, job_id: str, *, page_size: int = 100) -> Pages[dict[str, Any]]:
        """The job's events as they were sent, oldest first. They are kept where `audit_mode` is `full`. Raises JobNotFound."""
        path, query = f"/v1/jobs/{segment(job_id)}/events", {"limit": page_size}
        call: Call[JobEventPage] = Call(method="GET", path=path, query=query, response=JobEventPage)
        return Pages(call=call, items=lambda page: page.events, cursor=lambda page: page.next_cursor)

    @operation
    def status(self) -> Call[JobsProgress]:
        """How far the jobs are behind what has happened. Needs a platform key."""
        return Call(method="GET", path=_CONTROL, response=JobsProgress)

    @operation
    def rebuild(self) -> Call[JobsProgress]:
        """Make the jobs anew; the old ones answer until the new ones are there. Needs a platform key. Raises NotNow."""
        return Call(method="POST", path=f"{_CONTROL}/rebuild", response=JobsProgress, is_repeatable=False)

    @poll
    def wait_rebuilt(
        self, timeout: float | None = None, *, on_progress: Callable[[JobsProgress], None] | None = None
    ) -> Poll[JobsProgress]:
        """Return once no rebuild goes on; `on_progress` hears how far it is. Needs a platform key. Raises TimeoutError."""
        call: Call[JobsProgress] = Call(method="GET", path=_CONTROL, response=JobsProgress)
        return Poll(call=call, is_done=lambda progress: not progress.rebuilding, timeout=timeout, on_result=on_progress)


class Jobs(JobCalls, SyncNamespace):
    pass


class AsyncJobs(JobCalls, AsyncNamespace):
    pass
