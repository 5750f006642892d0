"""`client.queues`: every call on queues and their messages, defined once for both clients."""

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.dead_letters import AsyncDeadLetters, DeadLetters
from postroad.client.encoding import Moment, given, moment, segment
from postroad.client.shapes.queues import (
    Acked,
    Batch,
    Extended,
    ExtendedItem,
    ExtendedMany,
    Message,
    Published,
    Pulled,
    Purged,
    Queue,
    QueuePage,
    SeenMessage,
    SeenPage,
)

if TYPE_CHECKING:
    from postroad.client.transport import AsyncTransport, SyncTransport

Leased = Message | Extended | ExtendedItem | str  # what names a lease: a message, what came of extending it, or a receipt
NackAction = Literal["requeue", "retry", "dlq"]


def _path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{segment(queue)}{rest}"


class QueueCalls:
    @operation
    def put(
        self,
        queue: str,
        *,
        visibility_timeout_ms: int | None = None,
        retention_ms: int | None = None,
        dedupe_window_ms: int | None = None,
        max_attempts: int | None = None,
        retry_delays_ms: Sequence[int] | None = None,
        max_messages: int | None = None,
        replicas: int | None = None,
        geo: str | None = None,
        schema: Mapping[str, Any] | None = None,
        expected_drain_seconds: int | None = None,
        archive: bool | None = None,
    ) -> Call[Queue]:
        """Create the queue, or replace its settings; what is left out takes its default.

        After `max_attempts` deliveries (0: no limit) a message goes to the dead letters; `retry_delays_ms` is how long to wait
        after each failed one, the last for all further. `schema` is a JSON Schema that payloads must fit.
        """
        body = given(
            visibilityTimeoutMs=visibility_timeout_ms,
            retentionMs=retention_ms,
            dedupeWindowMs=dedupe_window_ms,
            maxAttempts=max_attempts,
            retryDelaysMs=retry_delays_ms,
            maxMessages=max_messages,
            replicas=replicas,
            geo=geo,
            schema=schema,
            expectedDrainSeconds=expected_drain_seconds,
            archive=archive,
        )
        return Call(method="PUT", path=_path(queue), body=body, response=Queue)

    @operation
    def get(self, queue: str) -> Call[Queue]:
        """The queue with its settings and stats. Raises QueueNotFound."""
        return Call(method="GET", path=_path(queue), response=Queue)

    @pages
    def list(self, *, stats: bool = False, page_size: int = 100) -> Pages[Queue]:
        """All queues of the tenant, fetched page by page as they are needed; with `stats`, what is in each."""
        query = {"limit": page_size, "stats": stats or None}
        call: Call[QueuePage] = Call(method="GET", path="/v1/queues", query=query, response=QueuePage)
        return Pages(call=call, items=lambda page: page.queues, cursor=lambda page: page.next_cursor)

    @operation
    def delete(self, queue: str) -> Call[None]:
        """Delete the queue and all that is in it. Raises QueueNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=_path(queue))

    @operation
    def publish(
        self,
        queue: str,
        payload: Any,
        *,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        is_repeatable: bool = True,
    ) -> Call[Published]:
        """Return once the message is stored durably.

        A key is made up when none is given, so that a try whose answer was lost can be repeated without a second message;
        `is_repeatable=False` does without, and without repeating.
        """
        key = idempotency_key or (str(uuid.uuid4()) if is_repeatable else None)
        body = {"payload": payload, "headers": dict(headers or {}), "delayMs": delay_ms}
        body |= given(correlationId=correlation_id, idempotencyKey=key)
        return Call(method="POST", path=_path(queue, "/messages"), body=body, response=Published, is_repeatable=key is not None)

    @operation
    def publish_batch(self, queue: str, messages: Sequence[Mapping[str, Any]]) -> Call[Batch]:
        """Up to 1,000 messages, each a mapping with `payload` and the API's other fields; a result for each, in order.

        Repeated only if every message has an `idempotencyKey`.
        """
        is_repeatable = all("idempotencyKey" in message for message in messages)
        body = {"messages": [dict(message) for message in messages]}
        return Call(method="POST", path=_path(queue, "/messages/batch"), body=body, response=Batch, is_repeatable=is_repeatable)

    @operation
    def pull(
        self, queue: str, *, max_messages: int = 1, visibility_timeout_ms: int | None = None, wait_ms: int = 0
    ) -> Call[Pulled]:
        """Lease up to `max_messages`; with `wait_ms`, wait for the first. What a lost answer had leased comes back by itself."""
        body = {"maxMessages": max_messages, "waitMs": wait_ms} | given(visibilityTimeoutMs=visibility_timeout_ms)
        return Call(method="POST", path=_path(queue, "/pull"), body=body, response=Pulled, wait_seconds=wait_ms / 1000)

    @operation
    def ack(self, queue: str, message: Leased) -> Call[Acked]:
        """The message will not be delivered again. Raises LeaseExpired, ReceiptInvalid."""
        return Call(method="POST", path=_path(queue, "/ack"), body={"receiptId": _receipt(message)}, response=Acked)

    @operation
    def ack_many(self, queue: str, messages: Sequence[Leased]) -> Call[Acked]:
        """As `ack` for many; `results` says of each receipt whether it was good."""
        return Call(method="POST", path=_path(queue, "/ack"), body={"receiptIds": _receipts(messages)}, response=Acked)

    @operation
    def nack(
        self,
        queue: str,
        message: Leased,
        *,
        action: NackAction = "retry",
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> Call[Acked]:
        """Give the message back: `retry` later, by the queue's ladder, `requeue` at once, or give it up (`dlq`).

        `delay_ms` is instead of the ladder's delay. The `reason` is kept with the job and the dead letter. A retry after the
        queue's last attempt gives it up, too. Raises LeaseExpired, ReceiptInvalid.
        """
        body = {"receiptId": _receipt(message), "action": action} | given(delayMs=delay_ms, reason=reason)
        return Call(method="POST", path=_path(queue, "/nack"), body=body, response=Acked)

    @operation
    def nack_many(
        self,
        queue: str,
        messages: Sequence[Leased],
        *,
        action: NackAction = "retry",
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> Call[Acked]:
        """As `nack` for many; `results` says of each receipt whether it was good."""
        body = {"receiptIds": _receipts(messages), "action": action} | given(delayMs=delay_ms, reason=reason)
        return Call(method="POST", path=_path(queue, "/nack"), body=body, response=Acked)

    @operation
    def extend(self, queue: str, message: Leased, visibility_timeout_ms: int) -> Call[Extended]:
        """Keep the message for this long from now. What comes back settles it from now on: the receipt before stays good until
        its own time is over, and no longer. Raises LeaseExpired, ReceiptInvalid."""
        body = {"receiptId": _receipt(message), "visibilityTimeoutMs": visibility_timeout_ms}
        return Call(method="POST", path=_path(queue, "/extend"), body=body, response=Extended)

    @operation
    def extend_many(self, queue: str, messages: Sequence[Leased], visibility_timeout_ms: int) -> Call[ExtendedMany]:
        """As `extend` for many; `results` has the new receipts, or why there is none."""
        body = {"receiptIds": _receipts(messages), "visibilityTimeoutMs": visibility_timeout_ms}
        return Call(method="POST", path=_path(queue, "/extend"), body=body, response=ExtendedMany)

    @operation
    def peek_page(
        self,
        queue: str,
        *,
        state: str | None = None,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[SeenPage]:
        """As `peek`, but one page: it says how many were looked at and fit, and, as `next_cursor`, where to go on."""
        query = {
            "state": state,
            "search": search,
            "header": header,
            "field": field,
            "messageId": message_id,
            "jobId": job_id,
            "correlationId": correlation_id,
            "from": moment(since),
            "to": moment(until),
            "bodyMax": body_max,
            "limit": page_size,
            "cursor": cursor,
        }
        return Call(method="GET", path=_path(queue, "/messages"), query=query, response=SeenPage)

    @pages
    def peek(
        self,
        queue: str,
        *,
        state: str | None = None,
        search: str | None = None,
        header: str | None = None,
        field: str | None = None,
        message_id: str | None = None,
        job_id: str | None = None,
        correlation_id: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
    ) -> Pages[SeenMessage]:
        """Look at messages without leasing them, oldest first: `ready` ones (leased ones, too) or, by `state`, `delayed` ones.

        All filters that are given must hold: `search` is a text in the payload, `header` is `name` or `name=value`, `field` is
        `path.to.field=value` in the payload. Payloads over `body_max` bytes (512) are cut. Where few fit, the server is asked
        several times before the first comes; `peek_page` shows how it goes.
        """
        call = QueueCalls.peek_page._build(
            self,
            queue,
            state=state,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            since=since,
            until=until,
            body_max=body_max,
            page_size=page_size,
        )
        return Pages(call=call, items=lambda page: page.messages, cursor=lambda page: page.next_cursor)

    @operation
    def purge(self, queue: str, *, dry_run: bool = False) -> Call[Purged]:
        """Drop all messages that wait, leased and delayed ones, too; dead letters stay. With `dry_run` they are only counted."""
        return Call(method="POST", path=_path(queue, "/purge"), body={"dryRun": dry_run}, response=Purged)

    @operation
    def pause(self, queue: str) -> Call[Queue]:
        """Deliver nothing, anywhere, until `resume`. Publishing and settling go on."""
        return Call(method="POST", path=_path(queue, "/pause"), response=Queue)

    @operation
    def resume(self, queue: str) -> Call[Queue]:
        """Deliver again."""
        return Call(method="POST", path=_path(queue, "/resume"), response=Queue)


def _receipt(leased: Leased) -> str:
    """Raises ValueError for a lease that could not be extended."""
    if isinstance(leased, str):
        return leased
    if isinstance(leased, Message):
        return leased.receipt_id
    if leased.new_receipt_id is None:
        raise ValueError("this lease was not extended, so there is no new receipt")
    return leased.new_receipt_id


def _receipts(some: Sequence[Leased]) -> list[str]:
    return [_receipt(leased) for leased in some]


class Queues(QueueCalls, SyncNamespace):
    def __init__(self, transport: "SyncTransport") -> None:
        super().__init__(transport)
        self.dead_letters = DeadLetters(transport)


class AsyncQueues(QueueCalls, AsyncNamespace):
    def __init__(self, transport: "AsyncTransport") -> None:
        super().__init__(transport)
        self.dead_letters = AsyncDeadLetters(transport)
