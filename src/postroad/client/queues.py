"""`client.queues`: queues and their messages."""

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from postroad.api.queues import BatchResult, Message, PeekPage, Priority, Published, Pulled
from postroad.api.receipts import Acked, Extended, ExtendedItem, ExtendedMany, NackAction, ProgressReported
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.cloudevents import one_event, some_events
from postroad.client.dead_letters import AsyncDeadLetters, DeadLetters
from postroad.client.encoding import Moment, given, moment, segment
from postroad.client.generated.queues import QueuesCalls

if TYPE_CHECKING:
    from postroad.client.transport import AsyncTransport, SyncTransport

Leased = Message | Extended | ExtendedItem | str  # a leased message, the result of an extension, or a receipt


def _path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{segment(queue)}{rest}"


class QueueCalls(QueuesCalls):
    @operation
    def publish(
        self,
        queue: str,
        payload: Any,
        *,
        headers: Mapping[str, str] | None = None,
        header_types: Mapping[str, str] | None = None,
        delay_ms: int | None = None,
        run_at: Moment | None = None,
        expires_at: Moment | None = None,
        unique_key: str | None = None,
        priority: Priority = "normal",
        group_id: str | None = None,
        dedupe_id: str | None = None,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        is_repeatable: bool = True,
    ) -> Call[Published]:
        """Publish a message; return once it is stored durably.

        It is delivered after `delay_ms` (the queue's if left out), or at the time `run_at`, but not at `expires_at` or later.
        `header_types` are those of headers that are not strings for SQS clients. While the queue has a message with the same
        `unique_key`, nothing is stored: the result has the ids of that message, and `duplicate` is true.
        Pulls get messages with the `priority` `high` first and with `low` last. An ordered queue delivers the messages of a
        group in order; a repeated `dedupe_id` stores nothing there, and returns the first message.
        Without an idempotency key one is generated, so that a retry after a lost response does not publish a second message.
        With `is_repeatable=False` no key is generated, and the call is not retried.
        """
        key = idempotency_key or (str(uuid.uuid4()) if is_repeatable else None)
        body = {"payload": payload, "headers": dict(headers or {})}
        body |= given(delayMs=delay_ms, headerTypes=None if header_types is None else dict(header_types))
        body |= given(runAt=moment(run_at), expiresAt=moment(expires_at), uniqueKey=unique_key)
        body |= given(correlationId=correlation_id, idempotencyKey=key, groupId=group_id, dedupeId=dedupe_id)
        if priority != "normal":  # servers of earlier versions do not know it
            body["priority"] = priority
        return Call(method="POST", path=_path(queue, "/messages"), body=body, response=Published, is_repeatable=key is not None)

    @operation
    def publish_batch(
        self,
        queue: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> Call[BatchResult]:
        """Publish up to 1,000 messages, each a mapping with `payload` and the other fields of the API.

        The result has an item for each message, in order. Messages without `idempotencyKey` have `idempotency_key` and their
        position as keys. The call is retried only with that, or if every message has a key of its own.
        """
        has_keys = all("idempotencyKey" in message for message in messages)
        return Call(
            method="POST",
            path=_path(queue, "/messages/batch"),
            body={"messages": [dict(message) for message in messages]},
            headers={"Idempotency-Key": idempotency_key} if idempotency_key else {},
            response=BatchResult,
            is_repeatable=has_keys or idempotency_key is not None,
        )

    @operation
    def publish_event(self, queue: str, event: Mapping[str, Any]) -> Call[Published]:
        """Publish a CloudEvents 1.0 event, a mapping in its JSON format: `specversion`, `id`, `source`, `type` and more.

        Its `source` and `id` are the idempotency key. Consumers get its attributes as headers `ce-…`;
        `postroad.client.cloudevents.cloud_event` makes the event of a message. Raises BodyInvalid, IdempotencyMismatch.
        """
        return Call(method="POST", path=_path(queue, "/messages"), body=one_event(event), response=Published)

    @operation
    def publish_events(self, queue: str, events: Sequence[Mapping[str, Any]]) -> Call[BatchResult]:
        """Publish up to 1,000 CloudEvents; the result has an item for each, in order."""
        return Call(method="POST", path=_path(queue, "/messages/batch"), body=some_events(events), response=BatchResult)

    @operation
    def pull(
        self,
        queue: str,
        *,
        max_messages: int = 1,
        visibility_timeout_ms: int | None = None,
        wait_ms: int = 0,
        max_per_group: int | None = None,
        receive_id: str | None = None,
    ) -> Call[Pulled]:
        """Lease up to `max_messages`; wait up to `wait_ms` for the first. Messages of a lost response are delivered again.

        Of an ordered queue, at most `max_per_group` of each group; a pull that repeats a `receive_id` gets the same messages.
        """
        body = {"maxMessages": max_messages, "waitMs": wait_ms} | given(visibilityTimeoutMs=visibility_timeout_ms)
        body |= given(maxPerGroup=max_per_group, receiveId=receive_id)
        return Call(method="POST", path=_path(queue, "/pull"), body=body, response=Pulled, wait_seconds=wait_ms / 1000)

    @operation
    def ack(self, queue: str, message: Leased, *, expired: bool = False) -> Call[Acked]:
        """Acknowledge a message: it is not delivered again. With `expired` also if its lease has ended.

        Raises LeaseExpired, AlreadySettled, ReceiptInvalid.
        """
        body = {"receiptId": _receipt(message)} | given(expired=expired or None)
        return Call(method="POST", path=_path(queue, "/ack"), body=body, response=Acked)

    @operation
    def ack_many(self, queue: str, messages: Sequence[Leased], *, expired: bool = False) -> Call[Acked]:
        """Acknowledge messages; `results` has the outcome for each."""
        body = {"receiptIds": _receipts(messages)} | given(expired=expired or None)
        return Call(method="POST", path=_path(queue, "/ack"), body=body, response=Acked)

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
        """Reject a message: `retry` after the queue's retry delay, `requeue` at once, or move to the dead letters (`dlq`).

        `delay_ms` replaces the retry delay. The `reason` is stored with the job and the dead letter. A retry after the last
        attempt dead-letters the message. Raises LeaseExpired, AlreadySettled, ReceiptInvalid.
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
        """Reject messages; `results` has the outcome for each."""
        body = {"receiptIds": _receipts(messages), "action": action} | given(delayMs=delay_ms, reason=reason)
        return Call(method="POST", path=_path(queue, "/nack"), body=body, response=Acked)

    @operation
    def extend(self, queue: str, message: Leased, visibility_timeout_ms: int) -> Call[Extended]:
        """Extend the lease of a message to `visibility_timeout_ms` from now. Raises LeaseExpired, ReceiptInvalid.

        Use the result in place of the message from now on; the previous receipt stays valid until its own deadline.
        """
        body = {"receiptId": _receipt(message), "visibilityTimeoutMs": visibility_timeout_ms}
        return Call(method="POST", path=_path(queue, "/extend"), body=body, response=Extended)

    @operation
    def extend_many(self, queue: str, messages: Sequence[Leased], visibility_timeout_ms: int) -> Call[ExtendedMany]:
        """Extend the leases of messages; `results` has the new receipt, or the problem, of each."""
        body = {"receiptIds": _receipts(messages), "visibilityTimeoutMs": visibility_timeout_ms}
        return Call(method="POST", path=_path(queue, "/extend"), body=body, response=ExtendedMany)

    @operation
    def report_progress(
        self, queue: str, message: Leased, *, percent: float | None = None, note: str | None = None
    ) -> Call[ProgressReported]:
        """Report the progress of a leased message, which its job shows. Raises JobWasCancelled, LeaseExpired, ReceiptInvalid."""
        body = {"receiptId": _receipt(message)} | given(percent=percent, note=note)
        return Call(method="POST", path=_path(queue, "/progress"), body=body, response=ProgressReported)

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
        priority: Priority | None = None,
        group_id: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[PeekPage]:
        """Like `peek`, but return one page, with the number of messages searched and the next cursor."""
        query = {
            "state": state,
            "search": search,
            "header": header,
            "field": field,
            "messageId": message_id,
            "jobId": job_id,
            "correlationId": correlation_id,
            "priority": priority,
            "groupId": group_id,
            "from": moment(since),
            "to": moment(until),
            "bodyMax": body_max,
            "order": order,
            "limit": page_size,
            "cursor": cursor,
        }
        return Call(method="GET", path=_path(queue, "/messages"), query=query, response=PeekPage)


def _receipt(leased: Leased) -> str:
    """The receipt of a lease. Raises ValueError if the lease could not be extended."""
    if isinstance(leased, str):
        return leased
    if isinstance(leased, Message):
        return leased.receipt_id
    if leased.new_receipt_id is None:
        raise ValueError("the lease was not extended, so there is no new receipt")
    return leased.new_receipt_id


def _receipts(leases: Sequence[Leased]) -> list[str]:
    return [_receipt(leased) for leased in leases]


class Queues(QueueCalls, SyncNamespace):
    def __init__(self, transport: "SyncTransport") -> None:
        super().__init__(transport)
        self.dead_letters = DeadLetters(transport)


class AsyncQueues(QueueCalls, AsyncNamespace):
    def __init__(self, transport: "AsyncTransport") -> None:
        super().__init__(transport)
        self.dead_letters = AsyncDeadLetters(transport)
