"""Receipts: which lease they are of, and whether it still lasts."""

from collections.abc import Sequence

from msgspec.structs import replace

from postroad.api.queues import AlreadySettled, LeaseExpired, ReceiptInvalid
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import PostroadError
from postroad.queues.backend import QueueBackend
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_states import LIVE, Step
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord, Receipt

_SETTLED_BY = {Step.RETRIED: "nack `retry`", Step.REQUEUED: "nack `requeue`", Step.DEAD_LETTERED: "nack `dlq`"}


class ReceiptVerification:
    """Verifies receipts with the signature and the lease log."""

    _backend: QueueBackend
    _lifecycle: QueueLifecycle
    _lease_log: LeaseLog
    _signer: Signer
    _clock: Clock

    async def _record(self, tenant: str, queue: str) -> QueueRecord:
        """Raises QueueNotFound."""
        return self._lifecycle.cached(tenant, queue) or await self._lifecycle.find(tenant, queue)

    def _verify(self, record: QueueRecord, receipt_ids: Sequence[str], step: Step) -> list[Receipt | PostroadError | None]:
        """The receipts of a request for `step`: None for each for which that was done before, or its error."""
        return [self._verify_receipt(record, receipt_id, step) for receipt_id in receipt_ids]

    def _verify_receipt(self, record: QueueRecord, receipt_id: str, step: Step) -> Receipt | PostroadError | None:
        try:
            receipt = Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        except (SignatureInvalid, ValueError):
            return ReceiptInvalid("this is not a receipt of this queue")
        deadline = receipt.deadline_ms
        leases = self._lease_log.queue(record)
        nacked = None if leases is None else leases.nack_of(receipt.stream_sequence, receipt.attempt)
        if nacked is not None and nacked.step == Step.SHORTENED:
            deadline = min(deadline, nacked.until_ms)
        if self._clock() > deadline:
            return LeaseExpired(f"the lease ended at {rfc3339(deadline)}")
        if nacked is not None and nacked.step != Step.SHORTENED:
            if nacked.step == step:
                return None
            return AlreadySettled(f"the lease was ended with {_SETTLED_BY[Step(nacked.step)]} at {rfc3339(nacked.at_ms)}")
        if leases is not None and leases.is_delivered_again(receipt.stream_sequence, receipt.attempt):
            return LeaseExpired("the message was delivered again")
        return receipt

    def receipt(self, record: QueueRecord, receipt_id: str) -> Receipt:
        """The contents of a receipt, whether its lease has ended or not. Raises ReceiptInvalid."""
        try:
            return Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        except (SignatureInvalid, ValueError) as exc:
            raise ReceiptInvalid("this is not a receipt of this queue") from exc

    async def _expired_receipt(self, record: QueueRecord, receipt_id: str) -> Receipt | None:
        """The receipt with the numbers of the latest delivery of its message; None if the message is gone."""
        receipt = Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        leases = self._lease_log.queue(record)
        attempt = max(receipt.attempt, 0 if leases is None else leases.latest_attempt(receipt.stream_sequence))
        return await self._backend.latest_delivery(record, receipt, attempt)

    def _extended_receipt(self, record: QueueRecord, receipt_id: str) -> Receipt | None:
        """The receipt with the present end of its lease, None if the lease has ended."""
        receipt = Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        lease = self._lease_log.lease_of(record, receipt.stream_sequence)
        if lease is None or lease.attempt != receipt.attempt or lease.step not in LIVE:
            return None
        return replace(receipt, deadline_ms=lease.until_ms)
