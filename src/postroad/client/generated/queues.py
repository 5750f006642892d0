"""Calls of `client.queues`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from postroad.api.message_search import FoundMessage, MessageSearchPage
from postroad.api.purging import Purged
from postroad.api.queue_list import QueuePage
from postroad.api.queue_purging import WaitingFilter
from postroad.api.queues import PeekedMessage, PeekPage, Queue
from postroad.api.tasks import Task
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class QueuesCalls:
    @pages
    def list(
        self,
        *,
        stats: bool = False,
        search: str | None = None,
        prefix: str | None = None,
        paused: bool | None = None,
        sort: Literal[
            "name",
            "-name",
            "createdAt",
            "-createdAt",
            "updatedAt",
            "-updatedAt",
            "ready",
            "-ready",
            "leased",
            "-leased",
            "overdue",
            "-overdue",
            "delayed",
            "-delayed",
            "dead",
            "-dead",
            "oldestAgeMs",
            "-oldestAgeMs",
            "waiting",
            "-waiting",
            "inPerSecond",
            "-inPerSecond",
            "outPerSecond",
            "-outPerSecond",
        ]
        | None = None,
        page_size: int = 100,
    ) -> Pages[Queue]:
        """List queues. `total` is the number of queues that match the filters."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/queues",
                query={
                    "stats": stats or None,
                    "search": search,
                    "prefix": prefix,
                    "paused": paused,
                    "sort": sort,
                    "limit": page_size,
                },
                response=QueuePage,
            )
        )

    @operation
    def list_page(
        self,
        *,
        stats: bool = False,
        search: str | None = None,
        prefix: str | None = None,
        paused: bool | None = None,
        sort: Literal[
            "name",
            "-name",
            "createdAt",
            "-createdAt",
            "updatedAt",
            "-updatedAt",
            "ready",
            "-ready",
            "leased",
            "-leased",
            "overdue",
            "-overdue",
            "delayed",
            "-delayed",
            "dead",
            "-dead",
            "oldestAgeMs",
            "-oldestAgeMs",
            "waiting",
            "-waiting",
            "inPerSecond",
            "-inPerSecond",
            "outPerSecond",
            "-outPerSecond",
        ]
        | None = None,
        page_size: int = 100,
        cursor: str | None = None,
    ) -> Call[QueuePage]:
        """One page of `list`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/queues",
            query={
                "stats": stats or None,
                "search": search,
                "prefix": prefix,
                "paused": paused,
                "sort": sort,
                "limit": page_size,
                "cursor": cursor,
            },
            response=QueuePage,
        )

    @operation
    def put(
        self,
        queue: Queue | str,
        *,
        visibility_timeout_ms: int | None = None,
        retention_ms: int | None = None,
        dedupe_window_ms: int | None = None,
        max_attempts: int | None = None,
        retry_delays_ms: Sequence[int] | None = None,
        dead_letter_queue: str | None = None,
        delay_ms: int | None = None,
        max_messages: int | None = None,
        max_in_flight: int | None = None,
        replicas: int | None = None,
        geo: str | None = None,
        schema: Mapping[str, Any] | None = None,
        expected_drain_seconds: int | None = None,
        tags: Mapping[str, str] | None = None,
        sqs_attributes: Mapping[str, str] | None = None,
        archive: bool = False,
        ordered: bool = False,
        dedupe_by_content: bool = False,
        dedupe_scope: Literal["queue", "group"] | None = None,
        backend: Literal["engine", "rabbitmq"] | None = None,
    ) -> Call[Queue]:
        """Create a queue or replace its settings.

        Settings that are left out get their defaults. The status is 201 if the queue is new. Raises PreconditionFailed.
        """
        body = body_of(
            {
                "visibilityTimeoutMs": visibility_timeout_ms,
                "retentionMs": retention_ms,
                "dedupeWindowMs": dedupe_window_ms,
                "maxAttempts": max_attempts,
                "retryDelaysMs": retry_delays_ms,
                "deadLetterQueue": dead_letter_queue,
                "delayMs": delay_ms,
                "maxMessages": max_messages,
                "maxInFlight": max_in_flight,
                "replicas": replicas,
                "geo": geo,
                "schema": schema,
                "expectedDrainSeconds": expected_drain_seconds,
                "tags": tags,
                "sqsAttributes": sqs_attributes,
                "archive": archive or None,
                "ordered": ordered or None,
                "dedupeByContent": dedupe_by_content or None,
                "dedupeScope": dedupe_scope,
                "backend": backend,
            }
        )
        return Call(method="PUT", path=f"/v1/queues/{segment(queue)}", body=body, response=Queue)

    @operation
    def update(
        self,
        queue: Queue | str,
        *,
        visibility_timeout_ms: int | UnsetType | None = UNSET,
        retention_ms: int | UnsetType | None = UNSET,
        dedupe_window_ms: int | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        retry_delays_ms: Sequence[int] | UnsetType | None = UNSET,
        dead_letter_queue: str | UnsetType | None = UNSET,
        delay_ms: int | UnsetType | None = UNSET,
        max_messages: int | UnsetType | None = UNSET,
        max_in_flight: int | UnsetType | None = UNSET,
        replicas: int | UnsetType | None = UNSET,
        geo: str | UnsetType | None = UNSET,
        schema: Mapping[str, Any] | UnsetType | None = UNSET,
        expected_drain_seconds: int | UnsetType | None = UNSET,
        tags: Mapping[str, str] | UnsetType | None = UNSET,
        sqs_attributes: Mapping[str, str] | UnsetType | None = UNSET,
        archive: bool | UnsetType | None = UNSET,
        ordered: bool | UnsetType | None = UNSET,
        dedupe_by_content: bool | UnsetType | None = UNSET,
        dedupe_scope: Literal["queue", "group"] | UnsetType | None = UNSET,
        backend: Literal["engine", "rabbitmq"] | UnsetType | None = UNSET,
    ) -> Call[Queue]:
        """Change settings of a queue.

        Settings that are left out keep their value; null restores the default. Another `geo` moves the queue while it is
        in use: a task `move-placement` shows the progress. Raises QueueNotFound, PreconditionFailed.
        """
        body = body_of(
            {},
            {
                "visibilityTimeoutMs": visibility_timeout_ms,
                "retentionMs": retention_ms,
                "dedupeWindowMs": dedupe_window_ms,
                "maxAttempts": max_attempts,
                "retryDelaysMs": retry_delays_ms,
                "deadLetterQueue": dead_letter_queue,
                "delayMs": delay_ms,
                "maxMessages": max_messages,
                "maxInFlight": max_in_flight,
                "replicas": replicas,
                "geo": geo,
                "schema": schema,
                "expectedDrainSeconds": expected_drain_seconds,
                "tags": tags,
                "sqsAttributes": sqs_attributes,
                "archive": archive,
                "ordered": ordered,
                "dedupeByContent": dedupe_by_content,
                "dedupeScope": dedupe_scope,
                "backend": backend,
            },
        )
        return Call(method="PATCH", path=f"/v1/queues/{segment(queue)}", body=body, response=Queue)

    @operation
    def get(self, queue: Queue | str) -> Call[Queue]:
        """Show a queue and its stats. Raises QueueNotFound."""
        return Call(method="GET", path=f"/v1/queues/{segment(queue)}", response=Queue)

    @operation
    def delete(self, queue: str) -> Call[None]:
        """Delete a queue with its messages and dead letters. Raises QueueNotFound, Conflict."""
        return Call(method="DELETE", path=f"/v1/queues/{segment(queue)}")

    @operation
    def purge(self, queue: str, *, dry_run: bool = False, filter: WaitingFilter | None = None) -> Call[Purged]:
        """Delete all messages of a queue.

        Leased and delayed messages are included; dead letters are kept. With a filter, only messages that match are
        removed, and their jobs are cancelled. Raises QueueNotFound, BackendCannot.
        """
        body = body_of({"dryRun": dry_run or None, "filter": filter})
        return Call(method="POST", path=f"/v1/queues/{segment(queue)}/purge", body=body, response=Purged)

    @operation
    def pause(self, queue: Queue | str, *, reason: str | None = None) -> Call[Queue]:
        """Pause deliveries of a queue.

        Pulls return no messages, on all workers, until the queue is resumed. Publishing and acknowledging continue.
        Raises QueueNotFound.
        """
        body = body_of({"reason": reason})
        return Call(method="POST", path=f"/v1/queues/{segment(queue)}/pause", body=body, response=Queue)

    @operation
    def resume(self, queue: Queue | str) -> Call[Queue]:
        """Resume deliveries of a queue. Raises QueueNotFound."""
        return Call(method="POST", path=f"/v1/queues/{segment(queue)}/resume", response=Queue)

    @pages
    def peek(
        self,
        queue: str,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        group_id: str | None = None,
        state: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["oldest", "newest"] | None = None,
        page_size: int = 50,
    ) -> Pages[PeekedMessage]:
        """Peek at messages without leasing them.

        Oldest first, or with `order=newest` newest first. One request searches some thousands of messages; `nextCursor`
        continues the search. Raises QueueNotFound, BackendCannot.
        """
        return Pages(
            call=Call(
                method="GET",
                path=f"/v1/queues/{segment(queue)}/messages",
                query={
                    "search": search,
                    "header": header,
                    "field": field,
                    "messageId": message_id,
                    "jobId": job_id,
                    "correlationId": correlation_id,
                    "priority": priority,
                    "groupId": group_id,
                    "state": state,
                    "from": moment(since),
                    "to": moment(until),
                    "bodyMax": body_max,
                    "order": order,
                    "limit": page_size,
                },
                response=PeekPage,
            )
        )

    @operation
    def get_message(self, queue: str, message: str) -> Call[PeekedMessage]:
        """Show a message of a queue with its payload.

        In any state but dead. Its id begins with the time, so the search begins there. Raises QueueNotFound,
        MessageNotFound, BackendCannot.
        """
        return Call(method="GET", path=f"/v1/queues/{segment(queue)}/messages/{segment(message)}", response=PeekedMessage)

    @operation
    def delete_message(self, queue: str, message: str) -> Call[None]:
        """Remove a message from a queue.

        Its job is cancelled, and can be retried for a week. A consumer that has leased it learns of it when it extends
        the lease. Raises QueueNotFound, MessageNotFound, BackendCannot.
        """
        return Call(method="DELETE", path=f"/v1/queues/{segment(queue)}/messages/{segment(message)}")

    @pages
    def search(
        self,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        group_id: str | None = None,
        queue: str | None = None,
        state: Literal["ready", "delayed", "dead"] | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["newest", "oldest"] | None = None,
        page_size: int = 50,
    ) -> Pages[FoundMessage]:
        """Search messages over all queues.

        Waiting, leased, delayed and dead messages of all queues that the key may use, queue by queue. One request takes
        less than a second; it returns what it found and how much it searched; `nextCursor` continues.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/messages",
                query={
                    "search": search,
                    "header": header,
                    "field": field,
                    "messageId": message_id,
                    "jobId": job_id,
                    "correlationId": correlation_id,
                    "priority": priority,
                    "groupId": group_id,
                    "queue": queue,
                    "state": state,
                    "reason": reason,
                    "error": error,
                    "errorGroup": error_group,
                    "from": moment(since),
                    "to": moment(until),
                    "bodyMax": body_max,
                    "order": order,
                    "limit": page_size,
                },
                response=MessageSearchPage,
            )
        )

    @operation
    def search_page(
        self,
        *,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        group_id: str | None = None,
        queue: str | None = None,
        state: Literal["ready", "delayed", "dead"] | None = None,
        reason: str | None = None,
        error: str | None = None,
        error_group: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["newest", "oldest"] | None = None,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[MessageSearchPage]:
        """One page of `search`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/messages",
            query={
                "search": search,
                "header": header,
                "field": field,
                "messageId": message_id,
                "jobId": job_id,
                "correlationId": correlation_id,
                "priority": priority,
                "groupId": group_id,
                "queue": queue,
                "state": state,
                "reason": reason,
                "error": error,
                "errorGroup": error_group,
                "from": moment(since),
                "to": moment(until),
                "bodyMax": body_max,
                "order": order,
                "limit": page_size,
                "cursor": cursor,
            },
            response=MessageSearchPage,
        )

    @operation
    def move(self, queue: str, *, to: str | None = None, rate_per_second: int | None = None) -> Call[Task]:
        """Move the messages of a queue to another one.

        Starts a task that consumes the queue at the given rate; see /v1/tasks. Without `to`, messages of a dead-letter
        queue return to the queues that they come from. One move per queue is active at a time. Raises PreconditionFailed,
        QueueNotFound.
        """
        body = body_of({"to": to, "ratePerSecond": rate_per_second})
        return Call(method="POST", path=f"/v1/queues/{segment(queue)}/move", body=body, response=Task, is_repeatable=False)


class Queues(QueuesCalls, SyncNamespace):
    pass


class AsyncQueues(QueuesCalls, AsyncNamespace):
    pass
