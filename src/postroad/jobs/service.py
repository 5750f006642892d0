"""What a user can do with jobs: look at them. A caller that is kept to some queues sees the jobs of these and no others.

The process that leads knows the jobs of late; those that it has forgotten are looked for in the archive.
"""

import structlog

from postroad.jobs import metrics
from postroad.jobs.archive import Archived, History
from postroad.jobs.event_decoder import millis
from postroad.jobs.page_merge import LOWEST, KeyedJob, KeyRange, MergedPage, merge
from postroad.jobs.queries import EventKey, Key
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
from postroad.jobs.rules import UNFINISHED, JobStatus
from postroad.jobs.views import JobView
from postroad.kernel.errors import EngineRefused, EngineUnavailable, JobNotFound
from postroad.kernel.identity import Caller
from postroad.kernel.matching import glob_matches

_BEGINNING: EventKey = (0, 0, "")

log = structlog.get_logger("postroad.jobs")


class JobService:
    """All of these raise EngineUnavailable when nobody answers in time, or the answer would not be up to date."""

    def __init__(self, inquirer: JobsRpcClient, history: History) -> None:
        self._inquirer, self._history = inquirer, history

    async def find(self, caller: Caller, job: str) -> JobView:
        """Raises JobNotFound."""
        ask = JobRequest(tenant=caller.tenant, job=job, globs=_globs(caller))
        try:
            return (await self._inquirer.ask(ask, JobResponse)).job
        except JobNotFound:
            archived = await self._archived(caller, job)
            if archived is None:
                raise
            return archived

    async def _archived(self, caller: Caller, job: str) -> JobView | None:
        """A job that is known, and not the caller's to see, is not looked for."""
        globs = _globs(caller)
        found = await self._history.find(caller.tenant, job)
        if found is None or not _is_allowed(found.job, globs):
            return None
        if globs is not None and await self._known(caller.tenant, [found]):
            return None
        return found.job

    async def page(
        self,
        caller: Caller,
        *,
        queue: str | None,
        status: JobStatus | None,
        since: int,
        until: int,
        correlation_id: str | None,
        message_id: str | None,
        limit: int,
        before: Key | None,
    ) -> MergedPage:
        """Newest first. Without the archive, if that does not answer: then the list goes on where it would have come in."""
        ask = PageRequest(
            tenant=caller.tenant,
            queue=queue,
            status=status,
            since=since,
            until=until,
            correlation_id=correlation_id,
            message_id=message_id,
            globs=_globs(caller),
            limit=limit,
            before=before,
        )
        answer = await self._inquirer.ask(ask, PageResponse)
        hot = [KeyedJob((millis(job.created_at), job.job_id), job) for job in answer.jobs]
        below = min(key for key in (before, (until, LOWEST), (answer.complete_since, LOWEST)) if key is not None)
        window = KeyRange(below, answer.following or (since, ""))
        if window.is_empty or ask.globs == () or status in UNFINISHED:
            return MergedPage(answer.jobs, answer.following)
        try:
            archived = await self._forgotten(ask, window)
        except (EngineUnavailable, EngineRefused) as problem:
            if before is not None and not hot:
                raise
            metrics.history_failures.inc()
            log.warning("history_not_read", tenant=caller.tenant, problem=problem.detail)
            return MergedPage(answer.jobs, answer.following or min((below, *(one.key for one in hot))))
        return merge(hot, answer.following, archived.jobs, archived.reached, limit)

    async def _forgotten(self, ask: PageRequest, window: KeyRange) -> Archived:
        """What the archive has, save for what is known: a job that was put back may have ended in one queue and go on in another,
        where it does not fit what is asked for."""
        found = await self._history.page(ask.tenant, window, ask.limit + 1, lambda job: _fits(job, ask))
        known = await self._known(ask.tenant, found.jobs)
        return Archived([one for one in found.jobs if one.job.job_id not in known], found.reached)

    async def _known(self, tenant: str, placed: list[KeyedJob]) -> set[str]:
        if not placed:
            return set()
        ask = KnownRequest(tenant=tenant, jobs=[one.job.job_id for one in placed])
        return set((await self._inquirer.ask(ask, KnownResponse)).jobs)

    async def events(self, caller: Caller, job: str, limit: int, after: EventKey | None) -> EventsResponse:
        """Oldest first; none of an archived job. Raises JobNotFound."""
        ask = EventsRequest(tenant=caller.tenant, job=job, globs=_globs(caller), limit=limit, after=after or _BEGINNING)
        try:
            return await self._inquirer.ask(ask, EventsResponse)
        except JobNotFound:
            if await self._archived(caller, job) is None:
                raise
            return EventsResponse([], None)

    async def progress(self) -> ProgressResponse:
        return await self._inquirer.ask(ProgressRequest(), ProgressResponse)

    async def rebuild(self) -> ProgressResponse:
        """Raises NotNow while one goes on."""
        return await self._inquirer.ask(RebuildRequest(), ProgressResponse)


def _globs(caller: Caller) -> tuple[str, ...] | None:
    """Of the queues that the caller is kept to; None if to none. One that is for a stream only sees no jobs."""
    if caller.only_stream is not None:
        return ()
    return caller.allowed.get("queue") if caller.allowed is not None else None


def _is_allowed(job: JobView, globs: tuple[str, ...] | None) -> bool:
    return globs is None or any(glob_matches(glob, job.queue) for glob in globs)


def _fits(job: JobView, ask: PageRequest) -> bool:
    return (
        (ask.queue is None or job.queue == ask.queue)
        and (ask.status is None or job.status == ask.status)
        and (ask.correlation_id is None or job.correlation_id == ask.correlation_id)
        and (ask.message_id is None or job.message_id == ask.message_id)
        and _is_allowed(job, ask.globs)
    )
