"""Jobs over HTTP: one service call, JSON out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.jobs.rpc import ProgressResponse
from postroad.jobs.rules import JobStatus
from postroad.jobs.service import JobService
from postroad.jobs.views import JobView
from postroad.kernel.errors import EngineUnavailable, JobNotFound, Overloaded, PreconditionFailed
from postroad.kernel.identity import RouteRequirement, Scope

When = Annotated[datetime, Meta(tz=True)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
_FAR = 2**62


class JobQuery(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"since": "from", "until": "to", "correlation_id": "correlationId", "message_id": "messageId"},
):
    queue: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    status: JobStatus | None = None
    since: Annotated[When | None, Meta(description="Created not before.")] = None
    until: Annotated[When | None, Meta(description="Created before.")] = None
    correlation_id: Id | None = None
    message_id: Id | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[!-~]{1,256}$")] | None = None  # when, and which


class EventQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[0-9]\.[!-~]{1,256}$")] | None = None  # when, of what rank, and which


class JobList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    jobs: list[JobView]
    next_cursor: str | None


class JobEventList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Events as they were sent, in snake_case. Of a job that was kept without its events the list is empty."""

    events: list[Annotated[msgspec.Raw, Meta(description="An event of the catalogue.")]]
    next_cursor: str | None


class JobsProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far the jobs are, in frames of `JOBS`."""

    position: int
    target: int
    behind: int
    rebuilding: bool
    rebuilt_position: Annotated[int | None, Meta(description="How far the new file is, while one is made.")]


_READING = (EngineUnavailable, Overloaded)


class JobRoutes:
    def __init__(self, board: JobService) -> None:
        self._board = board

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
                response=JobList,
                errors=_READING,
                description="Newest first, archived ones included. A key that is kept to some queues sees the jobs of these.",
            ),
            Route(
                "GET",
                one,
                self.get_job,
                Scope.READ,
                "Show a job",
                "Jobs",
                response=JobView,
                errors=(JobNotFound, *_READING),
                description="A job is found as soon as the publish that made it was answered.",
            ),
            Route(
                "GET",
                f"{one}/events",
                self.list_events,
                Scope.READ,
                "List a job's events",
                "Jobs",
                query=EventQuery,
                response=JobEventList,
                errors=(JobNotFound, *_READING),
                description="Oldest first. Kept where the tenant's `auditMode` is `full`, until the job is archived.",
            ),
            Route(
                "GET",
                control,
                self.show_progress,
                RouteRequirement.PLATFORM,
                "How far are the jobs?",
                "Jobs",
                response=JobsProgress,
                errors=_READING,
            ),
            Route(
                "POST",
                f"{control}/rebuild",
                self.rebuild,
                RouteRequirement.PLATFORM,
                "Make the jobs anew",
                "Jobs",
                response=JobsProgress,
                status=202,
                errors=(PreconditionFailed, *_READING),
                description="From all that `JOBS` has. The jobs as they are answer until the new ones are there.",
            ),
        ]

    async def list_jobs(self, request: Request) -> Response:
        query: JobQuery = request.query
        found = await self._board.page(
            request.caller,
            queue=query.queue,
            status=query.status,
            since=_millis(query.since) if query.since else 0,
            until=_millis(query.until) if query.until else _FAR,
            correlation_id=query.correlation_id,
            message_id=query.message_id,
            limit=query.limit,
            before=_job_key(query.cursor) if query.cursor else None,
        )
        cursor = ".".join(map(str, found.following)) if found.following else None
        return Response(JobList(jobs=found.jobs, next_cursor=cursor))

    async def get_job(self, request: Request) -> Response:
        return Response(await self._board.find(request.caller, request.parameters["job"]))

    async def list_events(self, request: Request) -> Response:
        query: EventQuery = request.query
        after = _event_key(query.cursor) if query.cursor else None
        found = await self._board.events(request.caller, request.parameters["job"], query.limit, after)
        cursor = ".".join(map(str, found.following)) if found.following else None
        return Response(JobEventList(events=found.events, next_cursor=cursor))

    async def show_progress(self, _request: Request) -> Response:
        return Response(_progress(await self._board.progress()))

    async def rebuild(self, _request: Request) -> Response:
        return Response(_progress(await self._board.rebuild()), status=202)


def _progress(found: ProgressResponse) -> JobsProgress:
    return JobsProgress(
        position=found.position,
        target=found.target,
        behind=max(0, found.target - found.position),
        rebuilding=found.rebuilt is not None,
        rebuilt_position=found.rebuilt,
    )


def _millis(when: datetime) -> int:
    return max(0, int(when.timestamp() * 1000))


def _job_key(cursor: str) -> tuple[int, str]:
    at, _, job = cursor.partition(".")
    return int(at), job


def _event_key(cursor: str) -> tuple[int, int, str]:
    at, rank, event = cursor.split(".", 2)
    return int(at), int(rank), event
