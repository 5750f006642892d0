"""What a user can do with jobs: look at them. A caller that is kept to some queues sees the jobs of these and no others."""

from postroad.jobs.desk import (
    AskEvents,
    AskJob,
    AskPage,
    AskProgress,
    AskRebuild,
    EventsAnswer,
    Inquirer,
    JobAnswer,
    PageAnswer,
    ProgressAnswer,
)
from postroad.jobs.lookup import EventKey, Key
from postroad.jobs.rules import JobStatus
from postroad.jobs.views import JobView
from postroad.kernel.caller import Caller

_BEGINNING: EventKey = (0, 0, "")


class JobBoard:
    """All of these raise EngineUnavailable when nobody answers in time, or the answer would not be up to date."""

    def __init__(self, inquirer: Inquirer) -> None:
        self._inquirer = inquirer

    async def find(self, caller: Caller, job: str) -> JobView:
        """Raises JobNotFound."""
        ask = AskJob(tenant=caller.tenant, job=job, globs=_globs(caller))
        return (await self._inquirer.ask(ask, JobAnswer)).job

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
    ) -> PageAnswer:
        """Newest first."""
        ask = AskPage(
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
        return await self._inquirer.ask(ask, PageAnswer)

    async def events(self, caller: Caller, job: str, limit: int, after: EventKey | None) -> EventsAnswer:
        """Oldest first. Raises JobNotFound."""
        ask = AskEvents(tenant=caller.tenant, job=job, globs=_globs(caller), limit=limit, after=after or _BEGINNING)
        return await self._inquirer.ask(ask, EventsAnswer)

    async def progress(self) -> ProgressAnswer:
        return await self._inquirer.ask(AskProgress(), ProgressAnswer)

    async def rebuild(self) -> ProgressAnswer:
        """Raises NotNow while one goes on."""
        return await self._inquirer.ask(AskRebuild(), ProgressAnswer)


def _globs(caller: Caller) -> tuple[str, ...] | None:
    """Of the queues that the caller is kept to; None if to none. One that is for a stream only sees no jobs."""
    if caller.only_stream is not None:
        return ()
    return caller.allowed.get("queue") if caller.allowed is not None else None
