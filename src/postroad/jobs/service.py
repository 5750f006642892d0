"""Reads jobs from the index of the leader, and older ones from the archive. A caller that is restricted to some queues gets the
jobs of these queues."""

import structlog

from postroad.api.jobs import Job, JobNotFound, JobQuery
from postroad.jobs import metrics
from postroad.jobs.archive import ArchivedPage, JobArchive
from postroad.jobs.event_decoder import millis
from postroad.jobs.page_merge import LOWEST, Key, KeyedJob, KeyRange, MergedPage, merge
from postroad.jobs.queries import EventKey
from postroad.jobs.rpc import (
    EventsRequest,
    EventsResponse,
    JobRequest,
    JobResponse,
    JobsRpcClient,
    KnownRequest,
    KnownResponse,
    PageRequest,
    PageResponse,
    ProgressRequest,
    ProgressResponse,
    RebuildRequest,
)
from postroad.jobs.rules import UNFINISHED
from postroad.kernel.errors import EngineRefused, EngineUnavailable
from postroad.kernel.identity import Caller
from postroad.kernel.matching import glob_matches

_BEGINNING: EventKey = (0, 0, "")
_LATEST_MS = 2**62

log = structlog.get_logger("postroad.jobs")


class JobService:
    """All methods raise EngineUnavailable if no leader answers in time, or its index is not up to date."""

    def __init__(self, rpc: JobsRpcClient, archive: JobArchive) -> None:
        self._rpc, self._archive = rpc, archive

    async def find(self, caller: Caller, job: str) -> Job:
        """Raises JobNotFound."""
        request = JobRequest(tenant=caller.tenant, job=job, globs=_globs(caller))
        try:
            return (await self._rpc.call(request, JobResponse)).job
        except JobNotFound:
            archived = await self._archived(caller, job)
            if archived is None:
                raise
            return archived

    async def locate(self, caller: Caller, job: str) -> JobResponse:
        """A job of the index, with the position of its message. Raises JobNotFound, also for archived jobs."""
        return await self._rpc.call(JobRequest(tenant=caller.tenant, job=job, globs=_globs(caller)), JobResponse)

    async def _archived(self, caller: Caller, job: str) -> Job | None:
        """None if the archive has no such job, or the index has it and the caller may not see it."""
        globs = _globs(caller)
        found = await self._archive.find(caller.tenant, job)
        if found is None or not _is_allowed(found.job, globs):
            return None
        if globs is not None and await self._known(caller.tenant, [found]):
            return None
        return found.job

    async def page(self, caller: Caller, query: JobQuery) -> MergedPage:
        """Newest first. If the archive does not answer, the page ends where archived jobs would begin."""
        since = max(0, int(query.since.timestamp() * 1000)) if query.since else 0
        until = max(0, int(query.until.timestamp() * 1000)) if query.until else _LATEST_MS
        before = _key_of(query.cursor) if query.cursor else None
        request = PageRequest(
            tenant=caller.tenant,
            queue=query.queue,
            status=query.status,
            since=since,
            until=until,
            correlation_id=query.correlation_id,
            message_id=query.message_id,
            group_id=query.group_id,
            globs=_globs(caller),
            limit=query.limit,
            before=before,
        )
        response = await self._rpc.call(request, PageResponse)
        indexed = [KeyedJob((millis(job.created_at), job.job_id), job) for job in response.jobs]
        below = min(key for key in (before, (until, LOWEST), (response.complete_since, LOWEST)) if key is not None)
        window = KeyRange(below, response.following or (since, ""))
        if window.is_empty or request.globs == () or query.status in UNFINISHED:
            return MergedPage(response.jobs, response.following)
        try:
            archived = await self._archived_page(request, window)
        except (EngineUnavailable, EngineRefused) as problem:
            if before is not None and not indexed:
                raise
            metrics.history_failures.inc()
            log.warning("history_not_read", tenant=caller.tenant, problem=problem.detail)
            return MergedPage(response.jobs, response.following or min((below, *(one.key for one in indexed))))
        return merge(indexed, response.following, archived.jobs, archived.reached, query.limit)

    async def _archived_page(self, request: PageRequest, window: KeyRange) -> ArchivedPage:
        """Without jobs that the index has: one that was redriven may have ended in one queue and continue in another, which the
        request does not select."""
        found = await self._archive.page(request.tenant, window, request.limit + 1, lambda job: _matches(job, request))
        known = await self._known(request.tenant, found.jobs)
        return ArchivedPage([one for one in found.jobs if one.job.job_id not in known], found.reached)

    async def _known(self, tenant: str, jobs: list[KeyedJob]) -> set[str]:
        if not jobs:
            return set()
        request = KnownRequest(tenant=tenant, jobs=[one.job.job_id for one in jobs])
        return set((await self._rpc.call(request, KnownResponse)).jobs)

    async def events(self, caller: Caller, job: str, limit: int, after: EventKey | None) -> EventsResponse:
        """Oldest first; none for an archived job. Raises JobNotFound."""
        request = EventsRequest(tenant=caller.tenant, job=job, globs=_globs(caller), limit=limit, after=after or _BEGINNING)
        try:
            return await self._rpc.call(request, EventsResponse)
        except JobNotFound:
            if await self._archived(caller, job) is None:
                raise
            return EventsResponse([], None)

    async def progress(self) -> ProgressResponse:
        return await self._rpc.call(ProgressRequest(), ProgressResponse)

    async def rebuild(self) -> ProgressResponse:
        """Raises PreconditionFailed during a rebuild."""
        return await self._rpc.call(RebuildRequest(), ProgressResponse)


def _key_of(cursor: str) -> Key:
    at, _, job = cursor.partition(".")
    return int(at), job


def _globs(caller: Caller) -> tuple[str, ...] | None:
    """Queues that the caller is restricted to; None if it is not restricted. A caller for one stream gets no jobs."""
    if caller.only_stream is not None:
        return ()
    return caller.allowed.get("queue") if caller.allowed is not None else None


def _is_allowed(job: Job, globs: tuple[str, ...] | None) -> bool:
    return globs is None or any(glob_matches(glob, job.queue) for glob in globs)


def _matches(job: Job, request: PageRequest) -> bool:
    return (
        (request.queue is None or job.queue == request.queue)
        and (request.status is None or job.status == request.status)
        and (request.correlation_id is None or job.correlation_id == request.correlation_id)
        and (request.message_id is None or job.message_id == request.message_id)
        and (request.group_id is None or job.group_id == request.group_id)
        and _is_allowed(job, request.globs)
    )
