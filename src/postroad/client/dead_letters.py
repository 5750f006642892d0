"""`client.queues.dead_letters`: messages that were rejected or failed too often."""

from collections.abc import Sequence
from typing import Any, Literal

from postroad.api.dead_letters import DeadGroups, DeadMessage, DeadPage, Redriven
from postroad.api.queues import Priority, Purged
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, given, moment, segment
from postroad.client.generated.queues_dead_letters import QueuesDeadLettersCalls


class DeadLetterCalls(QueuesDeadLettersCalls):
    """All filters of a call must hold: `search` is text in the payload, `header` is `name` or `name=value`, `field` is
    `path.to.field=value` in the payload, `reason` is the whole reason, `error` is text in the last error,
    `error_group` a group of `groups`, `message_ids` a selection of up to 100, `redrive` the task after which the message died
    again. `since` and `until` limit the time at which the message was dead-lettered."""

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
        priority: Priority | None = None,
        group_id: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        redrive: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[DeadPage]:
        """Like `list`, but return one page, with the total, the number of dead letters searched and the next cursor."""
        query: dict[str, Any] = _filter(
            search,
            header,
            field,
            message_id,
            job_id,
            correlation_id,
            priority,
            group_id,
            reason,
            error,
            error_group,
            redrive,
            since,
            until,
        )
        query |= {"bodyMax": body_max, "order": order, "limit": page_size, "cursor": cursor}
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
        priority: Priority | None = None,
        group_id: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        redrive: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        page_size: int = 50,
    ) -> Pages[DeadMessage]:
        """List the dead letters that match, oldest or newest first, stored between `since` and `until`.

        Payloads over `body_max` are cut.

        If few match, several requests may precede the first result; `list_page` shows the progress.
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
            priority=priority,
            group_id=group_id,
            reason=reason,
            error=error,
            error_group=error_group,
            redrive=redrive,
            since=since,
            until=until,
            body_max=body_max,
            order=order,
            page_size=page_size,
        )
        return Pages(call=call)

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
        priority: Priority | None = None,
        group_id: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        redrive: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        group_by: str = "error",
        cursor: str | None = None,
    ) -> Call[DeadGroups]:
        """Count the dead letters by `error` (the last one, with digits and ids as `#`), `reason`, `header:<name>` or
        `field:<path>`, largest group first."""
        query: dict[str, Any] = _filter(
            search,
            header,
            field,
            message_id,
            job_id,
            correlation_id,
            priority,
            group_id,
            reason,
            error,
            error_group,
            redrive,
            since,
            until,
        )
        query |= {"groupBy": group_by, "cursor": cursor}
        return Call(method="GET", path=_path(queue), query=query, response=DeadGroups)

    @operation
    def redrive(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        message_ids: Sequence[str] | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        priority: Priority | None = None,
        group_id: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        redrive: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        to: str | None = None,
        rate_per_second: int = 100,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Call[Redriven]:
        """Start a task that moves the dead letters that match back to their queue, or to the queue `to`.

        `tasks.wait(redriven.task)` waits for it. Dead letters that arrive while it runs are not moved. With `dry_run`, only
        count them. Raises PreconditionFailed while a redrive of this queue is active. Not retried after a lost response: then
        `tasks.list()` shows whether the task was started.
        """
        body: dict[str, Any] = {
            "filter": _filter(
                search,
                header,
                field,
                message_id,
                job_id,
                correlation_id,
                priority,
                group_id,
                reason,
                error,
                error_group,
                redrive,
                since,
                until,
                message_ids,
            )
        }
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
        message_ids: Sequence[str] | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        priority: Priority | None = None,
        group_id: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        redrive: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        dry_run: bool = False,
    ) -> Call[Purged]:
        """Delete the dead letters that match; without a filter, all. With `dry_run`, only count them."""
        wanted = _filter(
            search,
            header,
            field,
            message_id,
            job_id,
            correlation_id,
            priority,
            group_id,
            reason,
            error,
            error_group,
            redrive,
            since,
            until,
            message_ids,
        )
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
    priority: Priority | None,
    group_id: str | None,
    reason: str | None,
    error: str | None,
    error_group: str | None,
    redrive: str | None,
    since: Moment | None,
    until: Moment | None,
    message_ids: Sequence[str] | None = None,
) -> dict[str, Any]:
    found = given(
        search=search,
        header=header,
        field=field,
        messageId=message_id,
        messageIds=None if message_ids is None else list(message_ids),
        jobId=job_id,
        correlationId=correlation_id,
        priority=priority,
        groupId=group_id,
        reason=reason,
        error=error,
        errorGroup=error_group,
        redrive=redrive,
    )
    return found | {name: time for name, time in (("from", moment(since)), ("to", moment(until))) if time is not None}


class DeadLetters(DeadLetterCalls, SyncNamespace):
    pass


class AsyncDeadLetters(DeadLetterCalls, AsyncNamespace):
    pass
