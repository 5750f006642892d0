"""HTTP routes of a topic's messages: publish, publish a batch, replay."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.cloudevents import topic_message
from postroad.api.queues import IdempotencyKey, IdempotencyMismatch, SchemaMismatch, SchemaTooSlow
from postroad.api.topics import (
    LoopDetected,
    NewTopicBatch,
    NewTopicMessage,
    PublishedTopicMessage,
    TopicBatchItem,
    TopicBatchResult,
    TopicFed,
    TopicMessagePage,
    TopicMessagesQuery,
    TopicNotFound,
)
from postroad.http.cloudevents import EventBody
from postroad.http.problems import problem_of
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Respond, Route, Start
from postroad.kernel.clock import epoch_ms
from postroad.kernel.cloudevents import CloudEvent
from postroad.kernel.errors import (
    EngineFull,
    EngineUnavailable,
    InvalidParameter,
    Overloaded,
    PostroadError,
    StorageQuotaExceeded,
    TooLarge,
)
from postroad.kernel.identity import Scope
from postroad.kernel.json import at_field, invalid_field
from postroad.topics import metrics
from postroad.topics.hops import HOPS_HEADER, request_hops
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.publishing import SinglePublish, TopicPublisher
from postroad.topics.reading import SequenceRange, TopicReader
from postroad.topics.records import TopicRecord, message_of
from postroad.topics.rules import check_subject, query_patterns

_TAG = "Topics"
_STORE_ERRORS = (TooLarge, EngineFull, StorageQuotaExceeded, Overloaded, EngineUnavailable)
_TRACE_HEADERS = (
    ("traceparent", Annotated[str, Meta(description="W3C trace context; readers receive it with the message.")]),
    HOPS_HEADER,
)


class TopicMessageRoutes:
    def __init__(self, lifecycle: TopicLifecycle, publisher: TopicPublisher, reader: TopicReader, *, batch_max: int) -> None:
        self._lifecycle, self._publisher, self._reader, self._batch_max = lifecycle, publisher, reader, batch_max

    def table(self) -> Sequence[Route]:
        messages = "/v1/topics/{topic}/messages"
        return [
            Route(
                "POST",
                messages,
                self.publish_to_topic,
                Scope.PUBLISH,
                "Publish a message to a topic",
                _TAG,
                body=NewTopicMessage,
                response=PublishedTopicMessage,
                status=201,
                errors=(
                    *(TopicNotFound, TopicFed, LoopDetected, IdempotencyMismatch, SchemaMismatch, SchemaTooSlow),
                    *_STORE_ERRORS,
                ),
                description="The message is stored durably before the response. A CloudEvents 1.0 event is accepted in its "
                "place, in structured mode or, with headers `ce-…` and data of any type, in binary mode; its `source` and `id` "
                "are the idempotency key, and its `type` is the subject.",
                events=EventBody(_of_event),
                headers=(
                    (
                        "Idempotency-Key",
                        Annotated[IdempotencyKey, Meta(description="The same as `idempotencyKey` in the body.")],
                    ),
                    *_TRACE_HEADERS,
                ),
                prepare=self.prepare_publish,
            ),
            Route(
                "POST",
                f"{messages}/batch",
                self.publish_batch_to_topic,
                Scope.PUBLISH,
                "Publish up to 1,000 messages to a topic",
                _TAG,
                body=NewTopicBatch,
                response=TopicBatchResult,
                errors=(TopicNotFound, TopicFed, LoopDetected, *_STORE_ERRORS),
                description="The response has a result for each message, in order. A failed message does not affect the others. "
                "A batch of CloudEvents 1.0 events is accepted in place of messages.",
                headers=_TRACE_HEADERS,
                events=EventBody(_of_events, is_batch=True),
            ),
            Route(
                "GET",
                messages,
                self.read_topic_messages,
                Scope.READ,
                "Read messages of a topic",
                _TAG,
                query=TopicMessagesQuery,
                response=TopicMessagePage,
                errors=(TopicNotFound, EngineUnavailable),
                description="Oldest first, from a sequence or a time, by subject patterns. Reading does not change the topic. "
                "One request searches some thousands of messages; `nextCursor` continues the search.",
            ),
        ]

    async def publish_to_topic(self, request: Request) -> Response:
        message, hops = _with_idempotency_key(request, request.body), request_hops(request)
        published = await self._publisher.publish(request.context, request.parameters["topic"], message, hops=hops)
        return Response(published, status=201)

    def prepare_publish(self, request: Request) -> Start | None:
        message, hops = _with_idempotency_key(request, request.body), request_hops(request)
        single = self._publisher.prepare_single(request.context, request.parameters["topic"], message, hops=hops)
        return None if single is None else partial(self._start_publish, single)

    def _start_publish(self, single: SinglePublish, respond: Respond) -> None:
        self._publisher.store_single(
            single, lambda outcome: respond(outcome if isinstance(outcome, Exception) else Response(outcome, status=201))
        )

    async def publish_batch_to_topic(self, request: Request) -> Response:
        batch: NewTopicBatch = request.body
        if len(batch.messages) > self._batch_max:
            raise invalid_field("$.messages", f"{len(batch.messages)} messages; at most {self._batch_max} are allowed")
        outcomes = await self._publisher.publish_batch(
            request.context, request.parameters["topic"], batch.messages, hops=request_hops(request)
        )
        results = [_batch_item(outcome) for outcome in outcomes]
        failed = sum(1 for result in results if result.problem is not None)
        return Response(TopicBatchResult(published=len(results) - failed, failed=failed, results=results))

    async def read_topic_messages(self, request: Request) -> Response:
        query: TopicMessagesQuery = request.query
        patterns = query_patterns(query.subject, "subject")
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["topic"])
        whole = await self._reader.resolve_range(
            record,
            from_sequence=query.from_sequence,
            to_sequence=query.to_sequence,
            from_ms=epoch_ms(query.from_time),
            to_ms=epoch_ms(query.to_time),
        )
        start = whole.start if query.cursor is None else _cursor_sequence(record, query.cursor)
        found = await self._reader.read(record, patterns, SequenceRange(start, max(start, whole.end)), limit=query.limit)
        count = await self._reader.count(record, patterns, whole) if query.count else None
        metrics.replayed.add(record.tenant, len(found.messages))
        cursor = None if found.next_sequence is None else f"{record.incarnation[-12:]}.{found.next_sequence}"
        return Response(TopicMessagePage(items=[message_of(one) for one in found.messages], next_cursor=cursor, count=count))


def _of_event(event: CloudEvent, path: str = "$") -> NewTopicMessage:
    """Raises BodyInvalid if its type cannot be a subject."""
    with at_field(f"{path}.type"):
        check_subject(str(event.attributes["type"]))
    return topic_message(event)


def _of_events(events: Sequence[CloudEvent]) -> NewTopicBatch:
    return NewTopicBatch([_of_event(one, f"$[{index}]") for index, one in enumerate(events)])


def _cursor_sequence(record: TopicRecord, cursor: str) -> int:
    """Raises InvalidParameter if the cursor is of an earlier topic with this name."""
    incarnation, _, sequence = cursor.partition(".")
    if incarnation != record.incarnation[-12:]:
        raise InvalidParameter("query parameter: the cursor is of a topic that was deleted; start again without one")
    return max(1, int(sequence))


def _with_idempotency_key(request: Request, message: NewTopicMessage) -> NewTopicMessage:
    """The message with the key of the request header. Raises BodyInvalid if the two differ."""
    key = request.header(b"idempotency-key")
    if key is None or key == message.idempotency_key:
        return message
    if message.idempotency_key is not None:
        raise invalid_field("$.idempotencyKey", "differs from the header Idempotency-Key")
    if not 1 <= len(key) <= 256:
        raise invalid_field("$.idempotencyKey", "the header Idempotency-Key has 1 to 256 characters")
    return msgspec.structs.replace(message, idempotency_key=key)


def _batch_item(outcome: PublishedTopicMessage | PostroadError) -> TopicBatchItem:
    if isinstance(outcome, PostroadError):
        return TopicBatchItem(problem=problem_of(outcome))
    return TopicBatchItem(
        sequence=outcome.sequence,
        timestamp=outcome.timestamp,
        subject=outcome.subject,
        nats_subject=outcome.nats_subject,
        duplicate=outcome.duplicate,
    )
