"""HTTP routes of consumers: pull, ack, nack, extend."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from msgspec import UNSET, Meta

from postroad.api.cloudevents import leased_event
from postroad.api.queues import (
    AlreadySettled,
    BackendUnavailable,
    JobWasCancelled,
    LeaseExpired,
    Message,
    Pulled,
    PullRequest,
    QueueNotFound,
    ReceiptInvalid,
)
from postroad.api.receipts import (
    Acked,
    AckRequest,
    Extended,
    ExtendedItem,
    ExtendedMany,
    ExtendRequest,
    NackRequest,
    ProgressReported,
    ProgressRequest,
    ReceiptResult,
    ReceiptsRequest,
)
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.http.cloudevents import accepted_events
from postroad.http.problems import problem_of
from postroad.http.request import Request
from postroad.http.response import SLICE_BYTES_MAX, Response
from postroad.http.routing import Respond, Route, Start
from postroad.kernel.clock import rfc3339
from postroad.kernel.cloudevents import BATCH, EVENT
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Draining, EngineUnavailable, PostroadError
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.consuming import Consumer, Pull
from postroad.queues.lease_operations import ExtendedLease
from postroad.queues.lease_plan import PreparedAck
from postroad.queues.progress import ProgressReports

_RECEIPT_ERRORS = (QueueNotFound, ReceiptInvalid, LeaseExpired, AlreadySettled, EngineUnavailable, BackendUnavailable)


class LeasedQueue(Protocol):
    """A queue with a reserved name that is not a stream of its own. The methods are those of `Consumer`."""

    async def pull(
        self,
        context: RequestContext,
        queue: str,
        *,
        count: int,
        visibility_timeout_ms: int | None,
        wait_ms: int,
        per_group: int | None = None,
        receive_id: str | None = None,
    ) -> list[Message]: ...

    async def ack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], *, accepts_expired: bool = False
    ) -> list[PostroadError | None]: ...

    async def nack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], request: NackRequest
    ) -> list[PostroadError | None]: ...

    async def extend(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], visibility_timeout_ms: int
    ) -> list[ExtendedLease | PostroadError]: ...


class ConsumingRoutes:
    """`reserved` are queues by name that other capabilities serve."""

    def __init__(
        self,
        consumer: Consumer,
        progress: ProgressReports,
        tenant_settings: TenantSettingsStore,
        reserved: Mapping[str, LeasedQueue],
        *,
        wait_ms_max: int,
    ) -> None:
        self._consumer, self._progress, self._reserved = consumer, progress, reserved
        self._tenant_settings, self._wait_ms_max = tenant_settings, wait_ms_max

    def table(self) -> Sequence[Route]:
        one, tag, scope = "/v1/queues/{queue}", "Messages", Scope.CONSUME
        return [
            Route(
                "POST",
                f"{one}/pull",
                self.pull,
                scope,
                "Pull messages",
                tag,
                body=PullRequest,
                empty_body=PullRequest(),
                response=Pulled,
                event_media=(BATCH, EVENT),
                errors=(QueueNotFound, EngineUnavailable, BackendUnavailable, Draining),
                description="Leases messages: each is hidden from other consumers for its visibility timeout and delivered again "
                "if it is not acknowledged by then. Delivery is at least once. By the header `Accept` messages are CloudEvents "
                "1.0 events, whose attribute `postroadreceipt` is the receipt; as one event only with `maxMessages` 1, and then "
                "the status is 204 if there is no message.",
                other_statuses=(204,),
                prepare=self.prepare_pull,
            ),
            Route(
                "POST",
                f"{one}/ack",
                self.ack,
                scope,
                "Acknowledge messages",
                tag,
                body=_one_or_many(AckRequest),
                response=Acked,
                errors=_RECEIPT_ERRORS,
                prepare=self.prepare_ack,
                description="After the response a message is not delivered again. Acknowledging twice has no further effect. "
                "After a nack with the same receipt the status is 409.",
            ),
            Route(
                "POST",
                f"{one}/nack",
                self.nack,
                scope,
                "Reject messages",
                tag,
                body=_one_or_many(NackRequest),
                response=Acked,
                errors=_RECEIPT_ERRORS,
                description="Requeues, retries or dead-letters messages. "
                "A retry after `maxAttempts` deliveries dead-letters the message. Repeating the same action has no further "
                "effect; after an ack, or with another action, the status is 409.",
            ),
            Route(
                "POST",
                f"{one}/extend",
                self.extend,
                scope,
                "Extend leases",
                tag,
                body=_one_or_many(ExtendRequest),
                response=Extended | ExtendedMany,
                errors=(JobWasCancelled, *_RECEIPT_ERRORS),
                description="Each message gets a new receipt; the previous one stays valid until its own deadline, "
                "or until the new one if that is earlier.",
            ),
            Route(
                "POST",
                f"{one}/progress",
                self.report_progress,
                scope,
                "Report progress",
                tag,
                body=ProgressRequest,
                response=ProgressReported,
                errors=(JobWasCancelled, *_RECEIPT_ERRORS),
                description="The job shows the latest report. One a second of a message is recorded; the lease is not extended.",
            ),
        ]

    async def report_progress(self, request: Request) -> Response:
        body: ProgressRequest = request.body
        if body.percent is None and body.note is None:
            raise invalid_field("$", "send `percent`, `note` or both")
        until = await self._progress.report(
            request.context, request.parameters["queue"], body.receipt_id, body.percent, body.note
        )
        return Response(ProgressReported(ok=True, lease_until=rfc3339(until)))

    def _check_pull(self, request: Request, body: PullRequest) -> None:
        """Raises BodyInvalid."""
        limit = self._tenant_settings.of(request.caller.tenant).pull_max
        if body.max_messages > limit:
            raise invalid_field("$.maxMessages", f"at most {limit} are allowed")
        if body.wait_ms > self._wait_ms_max:
            raise invalid_field("$.waitMs", f"at most {self._wait_ms_max} are allowed")
        self._check_visibility_timeout(request, body.visibility_timeout_ms)

    async def pull(self, request: Request) -> Response:
        body: PullRequest = request.body
        self._check_pull(request, body)
        form = accepted_events(request)
        if form == "event" and body.max_messages != 1:
            raise invalid_field("$.maxMessages", f"is 1 with `Accept: {EVENT}`; several events are `{BATCH}`")
        queue = request.parameters["queue"]
        pulling = self._queue(queue).pull(
            request.context,
            queue,
            count=body.max_messages,
            visibility_timeout_ms=body.visibility_timeout_ms,
            wait_ms=body.wait_ms,
            per_group=body.max_per_group,
            receive_id=body.receive_id,
        )
        messages = await request.cancel_on_disconnect(pulling) if body.wait_ms else await pulling
        if form is not None:
            return await _event_response(messages, queue, form)
        return _pulled_response(messages)

    def prepare_pull(self, request: Request) -> Start | None:
        body: PullRequest = request.body
        self._check_pull(request, body)
        queue = request.parameters["queue"]
        is_plain = not body.wait_ms and body.max_per_group is None and body.receive_id is None
        if not is_plain or queue.startswith("_") or accepted_events(request) is not None:
            return None
        count, lease_ms = body.max_messages, body.visibility_timeout_ms
        pull = self._consumer.prepare_pull(request.context, queue, count=count, visibility_timeout_ms=lease_ms)
        return None if pull is None else partial(self._start_pull, pull)

    def _start_pull(self, pull: Pull, respond: Respond) -> None:
        self._consumer.start_pull(
            pull, lambda outcome: respond(outcome if isinstance(outcome, Exception) else _pulled_response(outcome))
        )

    def _queue(self, name: str) -> LeasedQueue:
        return self._reserved.get(name, self._consumer) if name.startswith("_") else self._consumer

    def _check_visibility_timeout(self, request: Request, timeout_ms: int | None) -> None:
        limit = self._tenant_settings.of(request.caller.tenant).receipt_ttl_max_ms
        if timeout_ms is not None and timeout_ms > limit:
            raise invalid_field("$.visibilityTimeoutMs", f"at most {limit} are allowed")

    async def ack(self, request: Request) -> Response:
        body: AckRequest = request.body
        receipts = body.receipt_list()
        queue = request.parameters["queue"]
        errors = await self._queue(queue).ack(request.context, queue, receipts, accepts_expired=body.expired)
        return _ack_response(body, receipts, errors)

    def prepare_ack(self, request: Request) -> Start | None:
        body: AckRequest = request.body
        queue = request.parameters["queue"]
        if queue.startswith("_"):
            return None
        acks = self._consumer.prepare_ack(request.context, queue, body.receipt_list())
        return None if acks is None else partial(self._start_ack, acks, body)

    def _start_ack(self, acks: PreparedAck, body: AckRequest, respond: Respond) -> None:
        def on_acked(problem: Exception | None) -> None:
            if problem is None:
                receipts = body.receipt_list()
                respond(_ack_response(body, receipts, [None] * len(receipts)))
            else:
                respond(problem)

        self._consumer.start_ack(acks, on_acked)

    async def nack(self, request: Request) -> Response:
        body: NackRequest = request.body
        if body.action == "dlq" and body.delay_ms is not None:
            raise invalid_field("$.delayMs", "a dead letter has no delay; leave it out with the action dlq")
        receipts = body.receipt_list()
        queue = request.parameters["queue"]
        errors = await self._queue(queue).nack(request.context, queue, receipts, body)
        return _ack_response(body, receipts, errors)

    async def extend(self, request: Request) -> Response:
        body: ExtendRequest = request.body
        receipts = body.receipt_list()
        self._check_visibility_timeout(request, body.visibility_timeout_ms)
        queue = request.parameters["queue"]
        leases = await self._queue(queue).extend(request.context, queue, receipts, body.visibility_timeout_ms)
        if body.receipt_id is UNSET:
            results = [_extended_item(receipt, lease) for receipt, lease in zip(receipts, leases, strict=True)]
            return Response(ExtendedMany(ok=all(result.ok for result in results), results=results))
        [lease] = leases
        if isinstance(lease, PostroadError):
            raise lease
        return Response(Extended(ok=True, new_receipt_id=lease.receipt_id, lease_until=rfc3339(lease.deadline_ms)))


def _pulled_response(messages: list[Message]) -> Response:
    return Response(Pulled(messages), list_field="messages")


async def _event_response(messages: Sequence[Message], queue: str, form: Literal["event", "batch"]) -> Response:
    events = list[bytes]()
    unpaused = 0
    for message in messages:
        events.append(leased_event(message, queue))
        unpaused += len(events[-1])
        if unpaused > SLICE_BYTES_MAX:  # other requests go on in between
            unpaused = 0
            await asyncio.sleep(0)
    if form == "batch":
        return Response(b"[" + b",".join(events) + b"]", media=BATCH.encode())
    return Response(events[0], media=EVENT.encode()) if events else Response(status=204)


def _one_or_many(kind: type[ReceiptsRequest]) -> Any:
    """The body type, with the constraint that the JSON Schema of the struct does not express."""
    either = {"oneOf": [{"required": ["receiptId"]}, {"required": ["receiptIds"]}]}
    return Annotated[kind, Meta(extra_json_schema=either)]


def _ack_response(body: ReceiptsRequest, receipts: Sequence[str], errors: Sequence[PostroadError | None]) -> Response:
    if body.receipt_id is not UNSET:
        if errors[0] is not None:
            raise errors[0]
        return Response(Acked(ok=True))
    results = [
        ReceiptResult(receipt_id=receipt, ok=error is None, problem=None if error is None else problem_of(error))
        for receipt, error in zip(receipts, errors, strict=True)
    ]
    return Response(Acked(ok=not any(errors), results=results))


def _extended_item(receipt: str, lease: ExtendedLease | PostroadError) -> ExtendedItem:
    if isinstance(lease, PostroadError):
        return ExtendedItem(receipt_id=receipt, ok=False, problem=problem_of(lease))
    return ExtendedItem(receipt_id=receipt, ok=True, new_receipt_id=lease.receipt_id, lease_until=rfc3339(lease.deadline_ms))
