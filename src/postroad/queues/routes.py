"""Queues over HTTP: JSON in, one service call, JSON out."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.access.preferences import PreferenceStore
from postroad.http.messages import Reply, Request
from postroad.http.problems import Problem, problem_of
from postroad.http.routing import Route
from postroad.kernel.caller import Scope
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import (
    Conflict,
    Draining,
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    IdempotencyMismatch,
    LeaseExpired,
    Overloaded,
    PostroadError,
    QueueNotFound,
    ReceiptInvalid,
    TooLarge,
)
from postroad.kernel.json import invalid_field
from postroad.queues.definitions import Definitions, QueueStats
from postroad.queues.rules import LeasedMessage, LeaseMs, NewMessage, Published, QueueRecord, QueueSettings
from postroad.queues.service import Origin, Queues


class QueueCounts(msgspec.Struct, frozen=True):
    ready: Annotated[int, Meta(description="Can be pulled now.")]
    leased: Annotated[int, Meta(description="With a consumer, or waiting for its next delivery.")]
    delayed: Annotated[int, Meta(description="Not due yet.")]


class QueueView(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A queue, its settings and, where one queue is asked for, what is in it."""

    name: str
    settings: QueueSettings
    created_at: Timestamp
    updated_at: Timestamp
    stats: QueueCounts | UnsetType = UNSET


class QueueList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    queues: list[QueueView]
    next_cursor: str | None


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Pull(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    max_messages: Annotated[int, Meta(ge=1, le=1000, description="The tenant's limit (`pullMax`) may be lower.")] = 1
    visibility_timeout_ms: LeaseMs | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="Wait this long for a message if none is ready.")] = 0


class Pulled(msgspec.Struct, frozen=True):
    messages: list[LeasedMessage]


ReceiptId = Annotated[str, Meta(min_length=1, max_length=512)]


class Ack(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Either one receipt or several."""

    receipt_id: ReceiptId | UnsetType = UNSET
    receipt_ids: Annotated[list[ReceiptId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET


OneOrSeveral = Annotated[Ack, Meta(extra_json_schema={"oneOf": [{"required": ["receiptId"]}, {"required": ["receiptIds"]}]})]


class AckResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    receipt_id: str
    ok: bool
    problem: Problem | UnsetType = UNSET


class Acked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`results` is there when several receipts were sent; `ok` is true when all of them were good."""

    ok: bool
    results: list[AckResult] | UnsetType = UNSET


_STORING = (TooLarge, EngineFull, Overloaded, EngineUnavailable)


class QueueRoutes:
    def __init__(
        self, definitions: Definitions, queues: Queues, preferences: PreferenceStore, *, batch_max: int, wait_ms_max: int
    ) -> None:
        self._definitions, self._queues, self._preferences = definitions, queues, preferences
        self._batch_max, self._wait_ms_max = batch_max, wait_ms_max

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
                errors=(QueueNotFound, IdempotencyMismatch, *_STORING),
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
            Route(
                "POST",
                f"{one}/pull",
                self.pull,
                Scope.CONSUME,
                "Lease messages",
                "Messages",
                body=Pull,
                answer=Pulled,
                errors=(QueueNotFound, EngineUnavailable, Draining),
                description="Each is kept from others for its visibility timeout; acknowledge it before. At least once.",
            ),
            Route(
                "POST",
                f"{one}/ack",
                self.ack,
                Scope.CONSUME,
                "Acknowledge messages",
                "Messages",
                body=OneOrSeveral,
                answer=Acked,
                errors=(QueueNotFound, ReceiptInvalid, LeaseExpired, EngineUnavailable),
                description="The answer means: not delivered again. Acknowledging twice is the same as once.",
            ),
        ]

    async def list_queues(self, request: Request) -> Reply:
        query: ListQuery = request.query
        page = self._definitions.page(request.caller, query.limit, query.cursor)
        return Reply(QueueList(queues=[_view(record) for record in page.records], next_cursor=page.next_cursor))

    async def put_queue(self, request: Request) -> Reply:
        record, is_new = await self._definitions.put(request.actor, request.parameters["queue"], request.body)
        return Reply(_view(record), status=201 if is_new else 200)

    async def get_queue(self, request: Request) -> Reply:
        record = await self._definitions.find(request.caller.tenant, request.parameters["queue"])
        return Reply(_view(record, await self._definitions.stats(record)))

    async def delete_queue(self, request: Request) -> Reply:
        await self._definitions.delete(request.actor, request.parameters["queue"])
        return Reply(status=204)

    async def publish(self, request: Request) -> Reply:
        published = await self._queues.publish(
            request.caller, request.parameters["queue"], _with_header_key(request, request.body), _origin(request)
        )
        return Reply(published, status=201)

    async def publish_batch(self, request: Request) -> Reply:
        batch: NewBatch = request.body
        if len(batch.messages) > self._batch_max:
            raise invalid_field("$.messages", f"{len(batch.messages)} messages; at most {self._batch_max} are allowed")
        outcomes = await self._queues.publish_batch(request.caller, request.parameters["queue"], batch.messages, _origin(request))
        results = [_batch_result(outcome) for outcome in outcomes]
        failed = sum(1 for result in results if result.problem is not UNSET)
        return Reply(BatchPublished(published=len(results) - failed, failed=failed, results=results))

    async def pull(self, request: Request) -> Reply:
        wanted: Pull = request.body
        chosen = self._preferences.of(request.caller.tenant)
        if wanted.max_messages > chosen.pull_max:
            raise invalid_field("$.maxMessages", f"at most {chosen.pull_max} are allowed")
        if wanted.visibility_timeout_ms is not None and wanted.visibility_timeout_ms > chosen.receipt_ttl_max_ms:
            raise invalid_field("$.visibilityTimeoutMs", f"at most {chosen.receipt_ttl_max_ms} are allowed")
        if wanted.wait_ms > self._wait_ms_max:
            raise invalid_field("$.waitMs", f"at most {self._wait_ms_max} are allowed")
        leasing = self._queues.lease(
            request.caller,
            request.parameters["queue"],
            _origin(request),
            count=wanted.max_messages,
            lease_ms=wanted.visibility_timeout_ms,
            wait_ms=wanted.wait_ms,
        )
        messages = await request.while_wanted(leasing) if wanted.wait_ms else await leasing
        return Reply(Pulled(messages))

    async def ack(self, request: Request) -> Reply:
        body: Ack = request.body
        if isinstance(body.receipt_id, str) == isinstance(body.receipt_ids, list):
            raise invalid_field("$", "send either `receiptId` or `receiptIds`")
        receipts = [body.receipt_id] if isinstance(body.receipt_id, str) else body.receipt_ids
        if receipts is UNSET:
            raise TypeError("one of the two is there")
        faults = await self._queues.acknowledge(request.caller, request.parameters["queue"], receipts, _origin(request))
        if isinstance(body.receipt_id, str):
            if faults[0] is not None:
                raise faults[0]
            return Reply(Acked(ok=True))
        results = [_ack_result(receipt, fault) for receipt, fault in zip(receipts, faults, strict=True)]
        return Reply(Acked(ok=not any(faults), results=results))


def _origin(request: Request) -> Origin:
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


def _view(record: QueueRecord, stats: QueueStats | None = None) -> QueueView:
    return QueueView(
        name=record.name,
        settings=record.settings,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        stats=QueueCounts(stats.ready, stats.leased, stats.delayed) if stats else UNSET,
    )


def _batch_result(outcome: Published | PostroadError) -> BatchResult:
    if isinstance(outcome, PostroadError):
        return BatchResult(problem=problem_of(outcome))
    return BatchResult(message_id=outcome.message_id, job_id=outcome.job_id, enqueued_at=outcome.enqueued_at)


def _ack_result(receipt: str, fault: PostroadError | None) -> AckResult:
    return AckResult(receipt_id=receipt, ok=fault is None, problem=UNSET if fault is None else problem_of(fault))
