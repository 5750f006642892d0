"""Receipts of leased messages: ack, nack, extend, progress."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.problems import Problem
from postroad.api.queues import RetryDelayMs, VisibilityTimeoutMs
from postroad.kernel.clock import Timestamp
from postroad.kernel.json import invalid_field

ReceiptId = Annotated[str, Meta(min_length=1, max_length=512)]
NackAction = Literal["requeue", "retry", "dlq"]


class ReceiptsRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One receipt or a list of receipts."""

    receipt_id: ReceiptId | UnsetType = UNSET
    receipt_ids: Annotated[list[ReceiptId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET

    def receipt_list(self) -> list[str]:
        """Raises BodyInvalid unless exactly one of the two fields is present."""
        one = [] if self.receipt_id is UNSET else [self.receipt_id]
        many = [] if self.receipt_ids is UNSET else self.receipt_ids
        if bool(one) == bool(many):
            raise invalid_field("$", "send either `receiptId` or `receiptIds`")
        return one or many


class AckRequest(ReceiptsRequest, frozen=True, kw_only=True):
    expired: Annotated[
        bool,
        Meta(description="Accept receipts whose lease has ended, too: the message is removed although it may be leased again."),
    ] = False


class NackRequest(ReceiptsRequest, frozen=True, kw_only=True):
    action: Annotated[
        NackAction,
        Meta(
            description="`requeue`: deliver again at once. `retry`: deliver again after the queue's retry delay. "
            "`dlq`: move to the dead letters."
        ),
    ]
    delay_ms: Annotated[RetryDelayMs | None, Meta(description="Replaces the retry delay; for `requeue`, 0 if left out.")] = None
    reason: Annotated[str, Meta(max_length=1000, description="Stored with the job and the dead letter.")] | None = None


class ExtendRequest(ReceiptsRequest, frozen=True, kw_only=True):
    visibility_timeout_ms: Annotated[VisibilityTimeoutMs, Meta(description="New visibility timeout, from now.")]


class ProgressRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    receipt_id: ReceiptId
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    note: Annotated[str, Meta(max_length=500, description="What is being done.")] | None = None


class ProgressReported(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The report was accepted. The lease is not extended."""

    ok: bool
    lease_until: Timestamp


class ReceiptResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Outcome for one receipt of a list."""

    receipt_id: str
    ok: bool
    problem: Problem | None = None


class Acked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome of an ack or nack. `results` is present for a list of receipts; `ok` is true if none of them failed."""

    ok: bool
    results: list[ReceiptResult] = []


class Extended(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The lease after an extension: `new_receipt_id` replaces the receipt, which stays valid until its own deadline."""

    ok: bool
    new_receipt_id: str
    lease_until: Timestamp


class ExtendedItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Outcome for one receipt of a list: the new receipt, or the problem."""

    receipt_id: str
    ok: bool
    new_receipt_id: str | None = None
    lease_until: Timestamp | None = None
    problem: Problem | None = None


class ExtendedMany(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes for a list of receipts, in order."""

    ok: bool
    results: list[ExtendedItem]
