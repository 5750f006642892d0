"""HTTP routes of messages: publish, publish a batch, peek."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.api.cloudevents import queue_message
from postroad.api.message_search import MessageSearchPage, MessageSearchQuery
from postroad.api.queues import (
    BODY_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    BackendCannot,
    BackendUnavailable,
    BatchItem,
    BatchResult,
    IdempotencyKey,
    IdempotencyMismatch,
    MessageNotFound,
    NewBatch,
    NewMessage,
    PeekedMessage,
    PeekPage,
    PeekQuery,
    Published,
    QueueNotFound,
    SchemaMismatch,
    SchemaTooSlow,
)
from postroad.http.cloudevents import EventBody
from postroad.http.problems import problem_of
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Respond, Route, Start
from postroad.kernel.errors import (
    EngineFull,
    EngineUnavailable,
    Overloaded,
    PostroadError,
    StorageQuotaExceeded,
    TooLarge,
)
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.browsing import QueueBrowser
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_removal import MessageRemoval
from postroad.queues.message_search import MessageSearch
from postroad.queues.message_writes import SinglePublish
from postroad.queues.publishing import Publisher
from postroad.queues.responses import peeked_message_of

_TAG = "Messages"
_STORE_ERRORS = (TooLarge, EngineFull, StorageQuotaExceeded, Overloaded, EngineUnavailable, BackendUnavailable)
_PUBLISH_HEADERS = (
    ("Idempotency-Key", Annotated[IdempotencyKey, Meta(description="The same as `idempotencyKey` in the body.")]),
    ("traceparent", Annotated[str, Meta(description="W3C trace context; consumers receive it with the message.")]),
)
_RUN_AT_AND_DELAY = {
    "required": ["runAt", "delayMs"],
    "properties": {"runAt": {"type": "string"}, "delayMs": {"type": "integer", "exclusiveMinimum": 0}},
}
# With the constraint that the JSON Schema of the struct does not express. In a batch it refuses one message, not the request.
_MESSAGE_BODY: Any = Annotated[NewMessage, Meta(extra_json_schema={"not": _RUN_AT_AND_DELAY})]
_BATCH_HEADERS = (
    (
        "Idempotency-Key",
        Annotated[
            IdempotencyKey,
            Meta(description="For messages without `idempotencyKey`: their keys are this one and their position in the batch."),
        ],
    ),
    _PUBLISH_HEADERS[1],
)


class MessageRoutes:
    def __init__(
        self,
        lifecycle: QueueLifecycle,
        publisher: Publisher,
        browser: QueueBrowser,
        removal: MessageRemoval,
        search: MessageSearch,
        *,
        batch_max: int,
    ) -> None:
        self._lifecycle, self._publisher, self._browser, self._batch_max = lifecycle, publisher, browser, batch_max
        self._removal, self._search = removal, search

    def table(self) -> Sequence[Route]:
        messages = "/v1/queues/{queue}/messages"
        return [
            Route(
                "POST",
                messages,
                self.publish,
                Scope.PUBLISH,
                "Publish a message",
                _TAG,
                body=_MESSAGE_BODY,
                response=Published,
                status=201,
                errors=(QueueNotFound, IdempotencyMismatch, SchemaMismatch, SchemaTooSlow, *_STORE_ERRORS),
                description="The message is stored durably before the response. A CloudEvents 1.0 event is accepted in its "
                "place, in structured mode or, with headers `ce-…` and data of any type, in binary mode; its `source` and `id` "
                "are the idempotency key.",
                headers=_PUBLISH_HEADERS,
                events=EventBody(queue_message),
                prepare=self.prepare_publish,
            ),
            Route(
                "POST",
                f"{messages}/batch",
                self.publish_batch,
                Scope.PUBLISH,
                "Publish up to 1,000 messages",
                _TAG,
                body=NewBatch,
                response=BatchResult,
                errors=(QueueNotFound, *_STORE_ERRORS),
                description="The response has a result for each message, in order. A failed message does not affect the others. "
                "A batch of CloudEvents 1.0 events is accepted in place of messages.",
                headers=_BATCH_HEADERS,
                events=EventBody(lambda events: NewBatch([queue_message(one) for one in events]), is_batch=True),
            ),
            Route(
                "GET",
                messages,
                self.peek,
                Scope.READ,
                "Peek at messages without leasing them",
                _TAG,
                query=PeekQuery,
                response=PeekPage,
                errors=(QueueNotFound, BackendCannot, EngineUnavailable),
                description="Oldest first, or with `order=newest` newest first. One request searches some thousands of messages; "
                "`nextCursor` continues the search.",
                sdk="queues.peek",
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{messages}/{{message}}",
                self.get_message,
                Scope.READ,
                "Show a message of a queue with its payload",
                _TAG,
                response=PeekedMessage,
                errors=(QueueNotFound, MessageNotFound, BackendCannot, Overloaded, EngineUnavailable),
                description="In any state but dead. Its id begins with the time, so the search begins there.",
                sdk="queues.get_message",
                cli=Command("queues message"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                f"{messages}/{{message}}",
                self.delete_message,
                Scope.WRITE,
                "Remove a message from a queue",
                _TAG,
                status=204,
                errors=(QueueNotFound, MessageNotFound, BackendCannot, Overloaded, EngineUnavailable),
                description="Its job is cancelled, and can be retried for a week. A consumer that has leased it learns of it "
                "when it extends the lease.",
                sdk="queues.delete_message",
                cli=Command("queues remove", confirm="Remove the message {message} of {queue}?", done="removed {message}"),
                allows_admin=True,
            ),
            Route(
                "GET",
                "/v1/messages",
                self.search_messages,
                Scope.READ,
                "Search messages over all queues",
                _TAG,
                query=MessageSearchQuery,
                response=MessageSearchPage,
                errors=(EngineUnavailable,),
                description="Waiting, leased, delayed and dead messages of all queues that the key may use, queue by queue. One "
                "request takes less than a second; it returns what it found and how much it searched; `nextCursor` continues.",
                sdk="queues.search",
                sdk_page="queues.search_page",
                cli=Command("queues search", ("queue", "state", "message_id", "enqueued_at", "payload_bytes", "last_error")),
                allows_admin=True,
            ),
        ]

    async def publish(self, request: Request) -> Response:
        message = _with_idempotency_key(request, request.body)
        return Response(await self._publisher.publish(request.context, request.parameters["queue"], message), status=201)

    def prepare_publish(self, request: Request) -> Start | None:
        message = _with_idempotency_key(request, request.body)
        single = self._publisher.prepare_single(request.context, request.parameters["queue"], message)
        return None if single is None else partial(self._start_publish, single)

    def _start_publish(self, single: SinglePublish, respond: Respond) -> None:
        self._publisher.store_single(
            single, lambda outcome: respond(outcome if isinstance(outcome, Exception) else Response(outcome, status=201))
        )

    async def publish_batch(self, request: Request) -> Response:
        batch: NewBatch = request.body
        if len(batch.messages) > self._batch_max:
            raise invalid_field("$.messages", f"{len(batch.messages)} messages; at most {self._batch_max} are allowed")
        messages = _with_idempotency_keys(request, batch.messages)
        outcomes = await self._publisher.publish_batch(request.context, request.parameters["queue"], messages)
        results = [_batch_item(outcome) for outcome in outcomes]
        failed = sum(1 for result in results if result.problem is not None)
        return Response(BatchResult(published=len(results) - failed, failed=failed, results=results))

    async def peek(self, request: Request) -> Response:
        query: PeekQuery = request.query
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        found = await self._browser.peek(
            record,
            query,
            limit=query.limit,
            from_sequence=query.cursor or (0 if query.order == "newest" else 1),
            is_delayed=query.state == "delayed",
            since_ms=epoch_ms(query.since),
            until_ms=epoch_ms(query.until),
            is_newest_first=query.order == "newest",
        )
        messages = [peeked_message_of(one.message, one.state, query.body_max, one.until_ms, one.sequence) for one in found.items]
        page = PeekPage(items=messages, scanned=found.scanned, matched=len(messages), next_cursor=found.next_cursor)
        return Response(page, list_field="items")

    async def get_message(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        found = await self._browser.browsed(record, await self._removal.find(record, request.parameters["message"]))
        return Response(peeked_message_of(found.message, found.state, BODY_MAX, found.until_ms, found.sequence))

    async def delete_message(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        await self._removal.remove(request.context, record, request.parameters["message"])
        return Response(status=204)

    async def search_messages(self, request: Request) -> Response:
        return Response(await self._search.page(request.caller, request.query), list_field="items")


def _idempotency_key(request: Request) -> str | None:
    """The key of the request header. Raises BodyInvalid."""
    key = request.header(b"idempotency-key")
    if key is not None and not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise invalid_field("$.idempotencyKey", f"the header Idempotency-Key has 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters")
    return key


def _with_idempotency_key(request: Request, message: NewMessage) -> NewMessage:
    """The message with the key of the request header. Raises BodyInvalid if the two differ."""
    key = _idempotency_key(request)
    if key is None or key == message.idempotency_key:
        return message
    if message.idempotency_key is not None:
        raise invalid_field("$.idempotencyKey", "differs from the header Idempotency-Key")
    return msgspec.structs.replace(message, idempotency_key=key)


def _with_idempotency_keys(request: Request, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """The messages of a batch; those without a key get that of the request header and their position."""
    key = _idempotency_key(request)
    if key is None:
        return messages
    return [
        message if message.idempotency_key is not None else msgspec.structs.replace(message, idempotency_key=f"{key}\0{position}")
        for position, message in enumerate(messages)
    ]


def _batch_item(outcome: Published | PostroadError) -> BatchItem:
    if isinstance(outcome, PostroadError):
        return BatchItem(problem=problem_of(outcome))
    return BatchItem(
        message_id=outcome.message_id,
        job_id=outcome.job_id,
        enqueued_at=outcome.enqueued_at,
        duplicate=outcome.duplicate,
        sequence=outcome.sequence,
    )


def epoch_ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)
