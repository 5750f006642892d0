"""Queues over HTTP: JSON in, one service call, JSON out."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.http.messages import Request, Response
from postroad.http.problems import Problem, problem_of
from postroad.http.routing import Route
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import (
    Conflict,
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    IdempotencyMismatch,
    Overloaded,
    PostroadError,
    QueueNotFound,
    SchemaMismatch,
    TooLarge,
)
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.rules import NewMessage, Origin, Published, QueueRecord, QueueSettings
from postroad.queues.stats import QueueStats, QueueStatsReader


class QueueCounts(msgspec.Struct, frozen=True, rename="camel"):
    ready: Annotated[int, Meta(description="Can be pulled now.")]
    leased: Annotated[int, Meta(description="With a consumer, or waiting for its next delivery.")]
    delayed: Annotated[int, Meta(description="Not due yet.")]
    dead: Annotated[int, Meta(description="Given up; see the dead letters.")]
    oldest_age_ms: Annotated[
        int | None, Meta(description="Of the oldest message that is ready or leased; null if there is none.")
    ]
    in_per_second: Annotated[float, Meta(description="Published, over the last seconds.")]
    out_per_second: Annotated[float, Meta(description="Settled for good, over the last seconds.")]


class QueueView(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A queue, its settings and, where one queue is asked for or `stats` is wanted, what is in it."""

    name: str
    settings: QueueSettings
    paused: bool
    created_at: Timestamp
    updated_at: Timestamp
    stats: QueueCounts | UnsetType = UNSET


class QueueList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    queues: list[QueueView]
    next_cursor: str | None


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stats: Annotated[bool, Meta(description="With what is in each, as of at most a second ago.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=1000)]


class BatchResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A message's ids, or the problem that kept it from being stored."""

    message_id: str | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    enqueued_at: Timestamp | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchPublished(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    published: int
    failed: int
    results: list[BatchResult]


_STORING = (TooLarge, EngineFull, Overloaded, EngineUnavailable)


class QueueRoutes:
    def __init__(self, definitions: QueueLifecycle, queues: Publisher, meter: QueueStatsReader, *, batch_max: int) -> None:
        self._definitions, self._queues, self._meter, self._batch_max = definitions, queues, meter, batch_max

    def table(self) -> Sequence[Route]:
        one = "/v1/queues/{queue}"
        return [
            Route("GET", "/v1/queues", self.list_queues, Scope.READ, "List queues", "Queues", query=ListQuery, answer=QueueList),
            Route(
                "PUT",
                one,
                self.put_queue,
                Scope.ADMIN,
                "Create a queue, or replace its settings",
                "Queues",
                body=QueueSettings,
                answer=QueueView,
                more_statuses=(201,),
                errors=(EngineUnavailable, EngineRefused),
                description="Settings that the body leaves out take their defaults. 201 if the queue is new.",
            ),
            Route(
                "GET",
                one,
                self.get_queue,
                Scope.READ,
                "Show a queue and what is in it",
                "Queues",
                answer=QueueView,
                errors=(QueueNotFound, EngineUnavailable),
            ),
            Route(
                "DELETE",
                one,
                self.delete_queue,
                Scope.ADMIN,
                "Delete a queue and all that is in it",
                "Queues",
                status=204,
                errors=(QueueNotFound, Conflict, EngineUnavailable),
            ),
            Route(
                "POST",
                f"{one}/messages",
                self.publish,
                Scope.PUBLISH,
                "Publish a message",
                "Messages",
                body=NewMessage,
                answer=Published,
                status=201,
                errors=(QueueNotFound, IdempotencyMismatch, SchemaMismatch, *_STORING),
                description="The answer means: stored durably.",
                headers=(
                    (
                        "Idempotency-Key",
                        Annotated[
                            str, Meta(min_length=1, max_length=256, description="The same as the body's `idempotencyKey`.")
                        ],
                    ),
                    (
                        "traceparent",
                        Annotated[str, Meta(description="The message's W3C trace; it comes back with the message.")],
                    ),
                ),
            ),
            Route(
                "POST",
                f"{one}/messages/batch",
                self.publish_batch,
                Scope.PUBLISH,
                "Publish up to 1,000 messages",
                "Messages",
                body=NewBatch,
                answer=BatchPublished,
                errors=(QueueNotFound, *_STORING),
                description="A result for each message, in order; one that fails does not keep the others from being stored.",
            ),
        ]

    async def list_queues(self, request: Request) -> Response:
        query: ListQuery = request.query
        page = self._definitions.page(request.caller, query.limit, query.cursor)
        if query.stats:
            counted = await asyncio.gather(*map(self._meter.stats, page.records), return_exceptions=True)
            views = [
                queue_view(record, stats if isinstance(stats, QueueStats) else None)
                for record, stats in zip(page.records, counted, strict=True)
            ]
        else:
            views = [queue_view(record) for record in page.records]
        return Response(QueueList(queues=views, next_cursor=page.next_cursor))

    async def put_queue(self, request: Request) -> Response:
        record, is_new = await self._definitions.put(request.context, request.parameters["queue"], request.body)
        return Response(queue_view(record), status=201 if is_new else 200)

    async def get_queue(self, request: Request) -> Response:
        record = await self._definitions.find(request.caller.tenant, request.parameters["queue"])
        return Response(queue_view(record, await self._meter.stats(record, is_fresh=True)))

    async def delete_queue(self, request: Request) -> Response:
        await self._definitions.delete(request.context, request.parameters["queue"])
        return Response(status=204)

    async def publish(self, request: Request) -> Response:
        published = await self._queues.publish(
            request.caller, request.parameters["queue"], _with_header_key(request, request.body), origin_of(request)
        )
        return Response(published, status=201)

    async def publish_batch(self, request: Request) -> Response:
        batch: NewBatch = request.body
        if len(batch.messages) > self._batch_max:
            raise invalid_field("$.messages", f"{len(batch.messages)} messages; at most {self._batch_max} are allowed")
        outcomes = await self._queues.publish_batch(
            request.caller, request.parameters["queue"], batch.messages, origin_of(request)
        )
        results = [_batch_result(outcome) for outcome in outcomes]
        failed = sum(1 for result in results if result.problem is not UNSET)
        return Response(BatchPublished(published=len(results) - failed, failed=failed, results=results))


def origin_of(request: Request) -> Origin:
    return Origin(request.request_id, request.traceparent, request.client)


def _with_header_key(request: Request, message: NewMessage) -> NewMessage:
    key = request.header(b"idempotency-key")
    if key is None or key == message.idempotency_key:
        return message
    if message.idempotency_key is not None:
        raise invalid_field("$.idempotencyKey", "differs from the header Idempotency-Key")
    if not 1 <= len(key) <= 256:
        raise invalid_field("$.idempotencyKey", "the header Idempotency-Key has 1 to 256 characters")
    return msgspec.structs.replace(message, idempotency_key=key)


def queue_view(record: QueueRecord, stats: QueueStats | None = None) -> QueueView:
    return QueueView(
        name=record.name,
        settings=record.settings,
        paused=record.is_paused,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        stats=_counts(stats) if stats else UNSET,
    )


def _counts(stats: QueueStats) -> QueueCounts:
    return QueueCounts(
        stats.ready,
        stats.leased,
        stats.delayed,
        stats.dead,
        stats.oldest_age_ms,
        stats.in_per_second,
        stats.out_per_second,
    )


def _batch_result(outcome: Published | PostroadError) -> BatchResult:
    if isinstance(outcome, PostroadError):
        return BatchResult(problem=problem_of(outcome))
    return BatchResult(message_id=outcome.message_id, job_id=outcome.job_id, enqueued_at=outcome.enqueued_at)
