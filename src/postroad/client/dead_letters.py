"""`client.queues.dead_letters`: messages that were given up."""

from typing import Any

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, given, moment, segment
from postroad.client.shapes.queues import DeadGroups, DeadMessage, DeadPage, Purged
from postroad.client.shapes.tasks import Redriven


class DeadLetterCalls:
    """Where these take filters, all that are given must hold: `search` is a text in the payload, `header` is `name` or
    `name=value`, `field` is `path.to.field=value` in the payload, `reason` is the whole reason."""

    @operation
    def list_page(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[DeadPage]:
        """As `list`, but one page: it says how many there are, were looked at and fit, and, as `next_cursor`, where to go on."""
        query: dict[str, Any] = _filter(search, header, field, message_id, job_id, correlation_id, reason)
        query |= {"from": moment(since), "to": moment(until), "bodyMax": body_max, "limit": page_size, "cursor": cursor}
        return Call(method="GET", path=_path(queue), query=query, response=DeadPage)

    @pages
    def list(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
    ) -> Pages[DeadMessage]:
        """Those that fit, oldest first; `since` and `until` bound when they died. Payloads over `body_max` bytes are cut.

        Where few fit, the server is asked several times before the first comes; `list_page` shows how it goes.
        """
        call = DeadLetterCalls.list_page._build(
            self,
            queue,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            reason=reason,
            since=since,
            until=until,
            body_max=body_max,
            page_size=page_size,
        )
        return Pages(call=call, items=lambda page: page.messages, cursor=lambda page: page.next_cursor)

    @operation
    def groups(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        reason: str | None = None,
    ) -> Call[DeadGroups]:
        """How many there are of each reason, largest first."""
        query = _filter(search, header, field, message_id, job_id, correlation_id, reason) | {"groupBy": "reason"}
        return Call(method="GET", path=_path(queue), query=query, response=DeadGroups)

    @operation
    def get(self, queue: str, message_id: str) -> Call[DeadMessage]:
        """With its whole payload. Raises MessageNotFound."""
        return Call(method="GET", path=_path(queue, f"/{segment(message_id)}"), response=DeadMessage)

    @operation
    def delete(self, queue: str, message_id: str) -> Call[None]:
        """Drop one. Raises MessageNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=_path(queue, f"/{segment(message_id)}"))

    @operation
    def redrive(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        reason: str | None = None,
        to: str | None = None,
        rate_per_second: int = 100,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Call[Redriven]:
        """Start the task that puts those that fit back, into their queue or the queue `to`; `tasks.wait(redriven.task)` waits.

        Letters that die while it runs are not taken. With `dry_run` they are only counted. Raises NotNow while one runs for
        this queue. Not sent again when its answer is lost: then `tasks.list()` tells whether it was started.
        """
        body: dict[str, Any] = {"filter": _filter(search, header, field, message_id, job_id, correlation_id, reason)}
        body |= {"ratePerSecond": rate_per_second, "dryRun": dry_run} | given(to=to, limit=limit)
        return Call(method="POST", path=_path(queue, "/redrive"), body=body, response=Redriven, is_repeatable=dry_run)

    @operation
    def purge(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Call[Purged]:
        """Drop those that fit: all of them if no filter is given. With `dry_run` they are only counted."""
        wanted = _filter(search, header, field, message_id, job_id, correlation_id, reason)
        body = {"filter": wanted, "dryRun": dry_run}
        return Call(method="POST", path=_path(queue, "/purge"), body=body, response=Purged)


def _path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{segment(queue)}/dlq{rest}"


def _filter(
    search: str | None,
    header: str | None,
    field: str | None,
    message_id: str | None,
    job_id: str | None,
    correlation_id: str | None,
    reason: str | None,
) -> dict[str, str]:
    return given(
        search=search,
        header=header,
        field=field,
        messageId=message_id,
        jobId=job_id,
        correlationId=correlation_id,
        reason=reason,
    )


class DeadLetters(DeadLetterCalls, SyncNamespace):
    pass


class AsyncDeadLetters(DeadLetterCalls, AsyncNamespace):
    pass
