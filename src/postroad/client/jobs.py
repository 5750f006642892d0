"""`client.jobs`: the lifecycle of messages; with a platform key, the progress of the job index."""

from collections.abc import Callable

from postroad.api.jobs import JobsProgress
from postroad.client.calls import AsyncNamespace, Call, Poll, SyncNamespace, poll
from postroad.client.generated.jobs import JobsCalls


class JobCalls(JobsCalls):
    @poll
    def wait_rebuilt(
        self, timeout: float | None = None, *, on_progress: Callable[[JobsProgress], None] | None = None
    ) -> Poll[JobsProgress]:
        """Wait until no rebuild is running. `on_progress` gets each state. Needs a platform key. Raises TimeoutError."""
        call: Call[JobsProgress] = Call(method="GET", path="/api/control/jobs", response=JobsProgress)
        return Poll(call=call, is_done=lambda progress: not progress.rebuilding, timeout=timeout, on_result=on_progress)


class Jobs(JobCalls, SyncNamespace):
    pass


class AsyncJobs(JobCalls, AsyncNamespace):
    pass
