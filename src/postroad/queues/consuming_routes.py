"""Consuming over HTTP: pull, ack, nack, extend."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.problems import Problem
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.http.problems import problem_of
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import Draining, EngineUnavailable, LeaseExpired, PostroadError, QueueNotFound, ReceiptInvalid
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.consuming import Consumer, Extended, NackAction, NackRequest
from postroad.queues.rules import Delay, LeasedMessage, LeaseMs


class Pull(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    max_messages: Annotated[int, Meta(ge=1, le=1000, description="The tenant's limit (`pullMax`) may be lower.")] = 1
    visibility_timeout_ms: LeaseMs | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="Wait this long for a message if none is ready.")] = 0


class Pulled(msgspec.Struct, frozen=True):
    messages: list[LeasedMessage]


ReceiptId = Annotated[str, Meta(min_length=1, max_length=512)]


class _Receipts(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Either one receipt or several."""

    receipt_id: ReceiptId | UnsetType = UNSET
    receipt_ids: Annotated[list[ReceiptId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET

    def several(self) -> list[str]:
        """Raises BodyInvalid unless one of the two is there."""
        one = [] if self.receipt_id is UNSET else [self.receipt_id]
        many = [] if self.receipt_ids is UNSET else self.receipt_ids
        if bool(one) == bool(many):
            raise invalid_field("$", "send either `receiptId` or `receiptIds`")
        return one or many


class Ack(_Receipts, frozen=True, kw_only=True):
    pass


class Nack(_Receipts, frozen=True, kw_only=True):
    action: Annotated[
        NackAction, Meta(description="`requeue`: deliver again at once. `retry`: later, by the queue's ladder. `dlq`: give up.")
    ]
    delay_ms: Annotated[Delay | None, Meta(description="Instead of the ladder's delay; for `requeue`, of none.")] = None
    reason: Annotated[str, Meta(max_length=1000, description="Kept with the job and the dead letter.")] | None = None


class Extend(_Receipts, frozen=True, kw_only=True):
    visibility_timeout_ms: Annotated[LeaseMs, Meta(description="From now on.")]


_EITHER: dict[str, Any] = {"oneOf": [{"required": ["receiptId"]}, {"required": ["receiptIds"]}]}
AckBody = Annotated[Ack, Meta(extra_json_schema=_EITHER)]
NackBody = Annotated[Nack, Meta(extra_json_schema=_EITHER)]
ExtendBody = Annotated[Extend, Meta(extra_json_schema=_EITHER)]


class SettleResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    receipt_id: str
    ok: bool
    problem: Problem | UnsetType = UNSET


class Settled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`results` is there when several receipts were sent; `ok` is true when all of them were good."""

    ok: bool
    results: list[SettleResult] | UnsetType = UNSET


class ExtendResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """`newReceiptId` settles the message from now on."""

    receipt_id: str
    ok: bool
    new_receipt_id: str | UnsetType = UNSET
    lease_until: Timestamp | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class ExtendedAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """With one receipt, `newReceiptId` settles the message from now on; with several, see `results`."""

    ok: bool
    new_receipt_id: str | UnsetType = UNSET
    lease_until: Timestamp | UnsetType = UNSET
    results: list[ExtendResult] | UnsetType = UNSET


_SETTLING = (QueueNotFound, ReceiptInvalid, LeaseExpired, EngineUnavailable)


class LeaseRoutes:
    def __init__(self, leases: Consumer, tenant_settings: TenantSettingsStore, *, wait_ms_max: int) -> None:
        self._leases, self._tenant_settings, self._wait_ms_max = leases, tenant_settings, wait_ms_max

    def table(self) -> Sequence[Route]:
        one, tag, scope = "/v1/queues/{queue}", "Messages", Scope.CONSUME
        return [
            Route(
                "POST",
                f"{one}/pull",
                self.pull,
                scope,
                "Lease messages",
                tag,
                body=Pull,
                response=Pulled,
                errors=(QueueNotFound, EngineUnavailable, Draining),
                description="Each is kept from others for its visibility timeout; acknowledge it before. At least once.",
            ),
            Route(
                "POST",
                f"{one}/ack",
                self.ack,
                scope,
                "Acknowledge messages",
                tag,
                body=AckBody,
                response=Settled,
                errors=_SETTLING,
                description="The answer means: not delivered again. Acknowledging twice is the same as once.",
            ),
            Route(
                "POST",
                f"{one}/nack",
                self.nack,
                scope,
                "Give messages back",
                tag,
                body=NackBody,
                response=Settled,
                errors=_SETTLING,
                description="To be delivered again at once or later, or given up. After `maxAttempts` a retry is the end, too.",
            ),
            Route(
                "POST",
                f"{one}/extend",
                self.extend,
                scope,
                "Keep messages for longer",
                tag,
                body=ExtendBody,
                response=ExtendedAnswer,
                errors=_SETTLING,
                description="Each gets a new receipt; the one before stays good until its own deadline.",
            ),
        ]

    async def pull(self, request: Request) -> Response:
        wanted: Pull = request.body
        chosen = self._tenant_settings.of(request.caller.tenant)
        if wanted.max_messages > chosen.pull_max:
            raise invalid_field("$.maxMessages", f"at most {chosen.pull_max} are allowed")
        if wanted.wait_ms > self._wait_ms_max:
            raise invalid_field("$.waitMs", f"at most {self._wait_ms_max} are allowed")
        self._check_lease(request, wanted.visibility_timeout_ms)
        leasing = self._leases.lease(
            request.context,
            request.parameters["queue"],
            count=wanted.max_messages,
            lease_ms=wanted.visibility_timeout_ms,
            wait_ms=wanted.wait_ms,
        )
        messages = await request.cancel_on_disconnect(leasing) if wanted.wait_ms else await leasing
        return Response(Pulled(messages))

    def _check_lease(self, request: Request, lease_ms: int | None) -> None:
        most = self._tenant_settings.of(request.caller.tenant).receipt_ttl_max_ms
        if lease_ms is not None and lease_ms > most:
            raise invalid_field("$.visibilityTimeoutMs", f"at most {most} are allowed")

    async def ack(self, request: Request) -> Response:
        body: Ack = request.body
        receipts = body.several()
        faults = await self._leases.acknowledge(request.context, request.parameters["queue"], receipts)
        return _settled(body, receipts, faults)

    async def nack(self, request: Request) -> Response:
        body: Nack = request.body
        receipts = body.several()
        verdict = NackRequest(body.action, body.delay_ms, body.reason or None)
        faults = await self._leases.reject(request.context, request.parameters["queue"], receipts, verdict)
        return _settled(body, receipts, faults)

    async def extend(self, request: Request) -> Response:
        body: Extend = request.body
        receipts = body.several()
        self._check_lease(request, body.visibility_timeout_ms)
        outcomes = await self._leases.extend(request.context, request.parameters["queue"], receipts, body.visibility_timeout_ms)
        if body.receipt_id is not UNSET:
            if isinstance(outcomes[0], PostroadError):
                raise outcomes[0]
            return Response(
                ExtendedAnswer(ok=True, new_receipt_id=outcomes[0].receipt_id, lease_until=rfc3339(outcomes[0].lease_until_ms))
            )
        results = [_extend_result(receipt, outcome) for receipt, outcome in zip(receipts, outcomes, strict=True)]
        return Response(ExtendedAnswer(ok=all(result.ok for result in results), results=results))


def _settled(body: _Receipts, receipts: Sequence[str], faults: Sequence[PostroadError | None]) -> Response:
    if body.receipt_id is not UNSET:
        if faults[0] is not None:
            raise faults[0]
        return Response(Settled(ok=True))
    results = [
        SettleResult(receipt_id=receipt, ok=fault is None, problem=UNSET if fault is None else problem_of(fault))
        for receipt, fault in zip(receipts, faults, strict=True)
    ]
    return Response(Settled(ok=not any(faults), results=results))


def _extend_result(receipt: str, outcome: Extended | PostroadError) -> ExtendResult:
    if isinstance(outcome, PostroadError):
        return ExtendResult(receipt_id=receipt, ok=False, problem=problem_of(outcome))
    return ExtendResult(
        receipt_id=receipt, ok=True, new_receipt_id=outcome.receipt_id, lease_until=rfc3339(outcome.lease_until_ms)
    )
