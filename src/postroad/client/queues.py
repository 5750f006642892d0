"""`client.queues`: every call on queues and their messages, defined once for both clients."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.parts import given, segment
from postroad.client.shapes.queues import Acked, Batch, Message, Published, Pulled, Queue, QueuePage


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
        max_messages: int | None = None,
        replicas: int | None = None,
    ) -> Call[Queue]:
        """Create the queue, or replace its settings; what is left out takes its default."""
        body = given(
            visibilityTimeoutMs=visibility_timeout_ms,
            retentionMs=retention_ms,
            dedupeWindowMs=dedupe_window_ms,
            maxMessages=max_messages,
            replicas=replicas,
        )
        return Call(method="PUT", path=_path(queue), body=body, answer=Queue)

    @operation
    def get(self, queue: str) -> Call[Queue]:
        """The queue with its settings and stats. Raises QueueNotFound."""
        return Call(method="GET", path=_path(queue), answer=Queue)

    @pages
    def list(self, *, page_size: int = 100) -> Pages[Queue]:
        """All queues of the tenant, fetched page by page as they are needed."""
        call: Call[QueuePage] = Call(method="GET", path="/v1/queues", query={"limit": page_size}, answer=QueuePage)
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
        return Call(method="POST", path=_path(queue, "/messages"), body=body, answer=Published, is_repeatable=key is not None)

    @operation
    def publish_batch(self, queue: str, messages: Sequence[Mapping[str, Any]]) -> Call[Batch]:
        """Up to 1,000 messages, each a mapping with `payload` and the API's other fields; a result for each, in order.

        Repeated only if every message has an `idempotencyKey`.
        """
        is_repeatable = all("idempotencyKey" in message for message in messages)
        body = {"messages": [dict(message) for message in messages]}
        return Call(method="POST", path=_path(queue, "/messages/batch"), body=body, answer=Batch, is_repeatable=is_repeatable)

    @operation
    def pull(
        self, queue: str, *, max_messages: int = 1, visibility_timeout_ms: int | None = None, wait_ms: int = 0
    ) -> Call[Pulled]:
        """Lease up to `max_messages`; with `wait_ms`, wait for the first. What a lost answer had leased comes back by itself."""
        body = {"maxMessages": max_messages, "waitMs": wait_ms} | given(visibilityTimeoutMs=visibility_timeout_ms)
        return Call(method="POST", path=_path(queue, "/pull"), body=body, answer=Pulled, wait_seconds=wait_ms / 1000)

    @operation
    def ack(self, queue: str, message: Message | str) -> Call[Acked]:
        """The message will not be delivered again. Raises LeaseExpired, ReceiptInvalid."""
        return Call(method="POST", path=_path(queue, "/ack"), body={"receiptId": _receipt(message)}, answer=Acked)

    @operation
    def ack_many(self, queue: str, messages: Sequence[Message | str]) -> Call[Acked]:
        """As `ack` for many; `results` says of each receipt whether it was good."""
        receipts = [_receipt(message) for message in messages]
        return Call(method="POST", path=_path(queue, "/ack"), body={"receiptIds": receipts}, answer=Acked)


def _receipt(message: Message | str) -> str:
    return message if isinstance(message, str) else message.receipt_id


class Queues(QueueCalls, SyncNamespace):
    pass


class AsyncQueues(QueueCalls, AsyncNamespace):
    pass
