"""HTTP routes of jobs."""

from collections.abc import Sequence
from typing import Any

from postroad.api.jobs import (
    CancelRequest,
    Job,
    JobEnded,
    JobEventPage,
    JobEventQuery,
    JobInProgress,
    JobNotFound,
    JobPage,
    JobQuery,
    JobsProgress,
    PayloadGone,
)
from postroad.api.queues import BackendCannot, QueueNotFound
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.jobs.control import JobControl
from postroad.jobs.queries import EventKey
from postroad.jobs.rpc import ProgressResponse
from postroad.jobs.service import JobService
from postroad.kernel.errors import EngineFull, EngineUnavailable, Overloaded, PreconditionFailed
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import RouteRequirement, Scope

_ERRORS = (EngineUnavailable, Overloaded)


class JobRoutes:
    def __init__(self, jobs: JobService, control: JobControl, audit: Audit) -> None:
        self._jobs, self._control, self._audit = jobs, control, audit

    def table(self) -> Sequence[Route]:
        jobs, one, control = "/v1/jobs", "/v1/jobs/{job}", "/api/control/jobs"
        return [
            Route(
                "GET",
                jobs,
                self.list_jobs,
                Scope.READ,
                "List jobs",
                "Jobs",
                query=JobQuery,
                response=JobPage,
                errors=_ERRORS,
                description="Newest first, including archived jobs. A key that is restricted to some queues gets their jobs.",
                sdk="jobs.list",
                cli=Command(
                    "jobs list",
                    columns=("job_id", "queue", "status", "attempts", "last_error", "created_at", "updated_at"),
                    limit=50,
                ),
                allows_admin=True,
            ),
            Route(
                "GET",
                one,
                self.get_job,
                Scope.READ,
                "Show a job",
                "Jobs",
                response=Job,
                errors=(JobNotFound, *_ERRORS),
                description="A job exists as soon as the publish that created it was answered.",
                sdk="jobs.get",
                cli=Command("jobs show"),
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{one}/events",
                self.list_events,
                Scope.READ,
                "List the events of a job",
                "Jobs",
                query=JobEventQuery,
                response=JobEventPage,
                errors=(JobNotFound, *_ERRORS),
                description="Oldest first. Stored if the tenant's `auditMode` is `full`, until the job is archived.",
                sdk="jobs.events",
                cli=Command(
                    "jobs events",
                    columns=(
                        *("timestamp", "event", "attempt", "processing_ms", "reason", "last_error"),
                        *("delay_ms", "lease_until", "next_at", "task_id"),
                    ),
                ),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{one}/cancel",
                self.cancel,
                Scope.WRITE,
                "Cancel a job",
                "Jobs",
                body=CancelRequest,
                empty_body=CancelRequest(),
                response=Job,
                errors=(JobNotFound, JobEnded, QueueNotFound, BackendCannot, *_ERRORS),
                description="Takes the message of an unfinished job out of its queue. A worker that has it learns of it when it "
                "extends its lease or reports progress; if it acknowledges before, the job is done. Idempotent.",
                sdk="jobs.cancel",
                cli=Command("jobs cancel", confirm="Cancel the job {job}?"),
                allows_admin=True,
                repeatable=True,
            ),
            Route(
                "POST",
                f"{one}/run",
                self.run_now,
                Scope.WRITE,
                "Run a delayed or retrying job now",
                "Jobs",
                response=Job,
                errors=(JobNotFound, JobEnded, JobInProgress, QueueNotFound, BackendCannot, *_ERRORS),
                description="A job that is ready already stays as it is.",
                sdk="jobs.run_now",
                cli=Command("jobs run"),
                allows_admin=True,
                repeatable=True,
            ),
            Route(
                "POST",
                f"{one}/retry",
                self.retry,
                Scope.WRITE,
                "Retry a dead or cancelled job",
                "Jobs",
                response=Job,
                errors=(JobNotFound, PayloadGone, JobInProgress, PreconditionFailed, QueueNotFound, EngineFull, *_ERRORS),
                description="The message returns to its queue, and its attempts start at 1 again. The payload of a job that is "
                "done or expired does not exist any more: 410.",
                sdk="jobs.retry",
                cli=Command("jobs retry"),
                allows_admin=True,
            ),
            Route(
                "GET",
                control,
                self.show_progress,
                RouteRequirement.PLATFORM,
                "Show the progress of the job index",
                "Jobs",
                response=JobsProgress,
                errors=_ERRORS,
                description="Needs a platform key.",
                sdk="jobs.status",
                cli=Command("jobs status"),
            ),
            Route(
                "POST",
                f"{control}/rebuild",
                self.rebuild,
                RouteRequirement.PLATFORM,
                "Rebuild the job index",
                "Jobs",
                response=JobsProgress,
                status=202,
                errors=(PreconditionFailed, *_ERRORS),
                description="From all events on `JOBS`. The current index serves requests until the new one is complete.",
                sdk="jobs.rebuild",
            ),
        ]

    async def list_jobs(self, request: Request) -> Response:
        found = await self._jobs.page(request.caller, request.query)
        return Response(JobPage(items=found.jobs, next_cursor=_cursor(found.following)))

    async def get_job(self, request: Request) -> Response:
        return Response(await self._jobs.find(request.caller, request.parameters["job"]))

    async def list_events(self, request: Request) -> Response:
        query: JobEventQuery = request.query
        after = _event_key(query.cursor) if query.cursor else None
        found = await self._jobs.events(request.caller, request.parameters["job"], query.limit, after)
        events: list[Any] = found.events  # as they were stored, not decoded
        return Response(JobEventPage(items=events, next_cursor=_cursor(found.following)))

    async def cancel(self, request: Request) -> Response:
        body: CancelRequest = request.body
        return Response(await self._control.cancel(request.context, request.parameters["job"], body.reason))

    async def run_now(self, request: Request) -> Response:
        return Response(await self._control.run_now(request.context, request.parameters["job"]))

    async def retry(self, request: Request) -> Response:
        return Response(await self._control.retry(request.context, request.parameters["job"]))

    async def show_progress(self, _request: Request) -> Response:
        return Response(_progress(await self._jobs.progress()))

    async def rebuild(self, request: Request) -> Response:
        async with self._audit.change(request.context, "jobs.rebuild", "jobs", tenant=PLATFORM):
            progress = await self._jobs.rebuild()
        return Response(_progress(progress), status=202)


def _progress(found: ProgressResponse) -> JobsProgress:
    return JobsProgress(
        position=found.position,
        target=found.target,
        behind=max(0, found.target - found.position),
        rebuilding=found.rebuilt is not None,
        rebuilt_position=found.rebuilt,
    )


def _cursor(key: tuple[int | str, ...] | None) -> str | None:
    return ".".join(map(str, key)) if key else None


def _event_key(cursor: str) -> EventKey:
    at, rank, event = cursor.split(".", 2)
    return int(at), int(rank), event
