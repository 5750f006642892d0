"""Pull, ack, nack and extend of the telemetry queue. One message is one frame: its payload is a list of events.

A lease is a delayed nak, as in other queues, and any worker can end it. Receipts are encrypted, since the sequences in them would
reveal how much other tenants send. That a receipt was rejected before is known to the worker that did it only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from postroad.api.queues import AlreadySettled, LeaseExpired, Message, QueueNotFound, ReceiptInvalid
from postroad.api.receipts import NackRequest
from postroad.crypto.position_encryption import PositionCipher, PositionInvalid
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.deliveries import ACK, Acknowledgement, Delivery, DeliveryRef, nak
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineNoResponders, Forbidden, PostroadError
from postroad.kernel.json import invalid_field
from postroad.queues.lease_operations import ExtendedLease
from postroad.telemetry.frames import unpack
from postroad.telemetry_queue import metrics
from postroad.telemetry_queue.activity import HourlyActivity
from postroad.telemetry_queue.frame_consumer import FrameConsumer, FrameConsumers
from postroad.telemetry_queue.records import ReadRecord
from postroad.telemetry_queue.rules import EventFilter

NAME = "_telemetry"
_RETRY_MS, _RETRY_MS_MAX = 1000, 60_000
_NACKED_MAX = 10_000
_FILTERED_SECONDS = 5.0  # for which a pull goes on over frames without events for the tenant
_READ_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Receipt:
    ref: DeliveryRef
    leased_at_ms: int
    deadline_ms: int


class TelemetryQueue:
    """`exists` returns whether a tenant has the queue."""

    def __init__(
        self,
        consumers: FrameConsumers,
        tenant_settings: TenantSettingsStore,
        reads: ReplicatedTable[ReadRecord],
        activity: HourlyActivity,
        cipher: PositionCipher,
        clock: Clock,
        exists: Callable[[str], bool],
    ) -> None:
        self._consumers, self._tenant_settings, self._reads = consumers, tenant_settings, reads
        self._activity, self._cipher, self._clock, self.exists = activity, cipher, clock, exists
        self._filters: dict[tuple[str, ...], EventFilter] = {}
        self._nacked: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    def filter_of(self, tenant: str) -> EventFilter:
        changes = self._tenant_settings.of(tenant).telemetry_events
        found = self._filters.get(changes)
        if found is None:
            if len(self._filters) > 1000:
                self._filters.clear()
            found = self._filters[changes] = EventFilter(changes)
        return found

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
    ) -> list[Message]:
        """Lease up to `count` frames; wait up to `wait_ms` for the first. Raises QueueNotFound, Forbidden, EngineUnavailable."""
        self._check(context)
        if per_group is not None or receive_id is not None:
            raise invalid_field("$.maxPerGroup" if receive_id is None else "$.receiveId", "the queue is not ordered")
        tenant, loop = context.tenant, asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        if visibility_timeout_ms is None:
            visibility_timeout_ms = self._tenant_settings.of(tenant).visibility_timeout_ms
        consumer = await self._consumers.of(tenant)
        while True:
            try:
                deliveries = await consumer.pull(count, max(0.0, until - loop.time()))
            except EngineNoResponders:
                self._consumers.forget(tenant)  # perhaps it was deleted
                raise
            messages = await self._lease(tenant, consumer, deliveries, visibility_timeout_ms)
            if messages or not deliveries or loop.time() > until + _FILTERED_SECONDS:
                break
        if messages:
            await self._record_read(tenant)
        return messages

    def _check(self, context: RequestContext) -> None:
        if not self.exists(context.tenant):
            raise QueueNotFound(f"there is no queue {NAME!r}: it exists from the first service on")
        if context.caller.is_restricted("service"):
            raise Forbidden(f"the queue {NAME!r} has the events of all services, and the key is restricted to some of them")

    async def _lease(
        self, tenant: str, consumer: FrameConsumer, deliveries: Sequence[Delivery], visibility_timeout_ms: int
    ) -> list[Message]:
        """Lease the frames that have events for the tenant, and acknowledge the others."""
        now, chosen = self._clock(), self.filter_of(tenant)
        messages: list[Message] = []
        leases: list[Acknowledgement] = []
        empty: list[Acknowledgement] = []
        events = 0
        for one in deliveries:
            lines = chosen.select(unpack(one.payload))
            if not lines:
                empty.append((one.ref, ACK))
                continue
            leases.append((one.ref, nak(visibility_timeout_ms)))
            receipt = self._receipt_id(tenant, _Receipt(one.ref, now, now + visibility_timeout_ms))
            messages.append(_message(one, lines, receipt))
            events += len(lines)
        consumer.send_acknowledgements(leases)
        if empty:
            await consumer.acknowledge(empty)
        self._activity.add_delivered(tenant, events)
        metrics.delivered.add(tenant, events)
        return messages

    async def ack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], *, accepts_expired: bool = False
    ) -> list[PostroadError | None]:
        """Return once none of the frames can be delivered again; the error of each invalid receipt. Idempotent."""
        self._check(context)
        tenant = context.tenant
        receipts = [self._receipt(tenant, one, "ack", accepts_expired=accepts_expired) for one in receipt_ids]
        valid = [one for one in receipts if isinstance(one, _Receipt)]
        await self._consumers.existing(tenant).acknowledge([(one.ref, ACK) for one in valid])
        self._activity.add_acknowledged(tenant, len(valid))
        metrics.acknowledged.add(tenant, len(valid))
        return [one if isinstance(one, PostroadError) else None for one in receipts]

    async def nack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], request: NackRequest
    ) -> list[PostroadError | None]:
        """Requeue or retry the frames; the error of each invalid receipt. Raises BodyInvalid: there are no dead letters."""
        self._check(context)
        if request.action == "dlq":
            raise invalid_field("$.action", f"the queue {NAME!r} has no dead letters; acknowledge the message instead")
        tenant, acks = context.tenant, list[Acknowledgement]()
        receipts = [self._receipt(tenant, one, request.action) for one in receipt_ids]
        for one in receipts:
            if isinstance(one, _Receipt):
                acks.append((one.ref, nak(_delay_ms(request, one.ref.attempt))))
        await self._consumers.existing(tenant).acknowledge(acks)
        for ref, _ in acks:
            self._nacked[tenant, ref.stream_sequence, ref.attempt] = request.action
        while len(self._nacked) > _NACKED_MAX:
            self._nacked.popitem(last=False)
        return [one if isinstance(one, PostroadError) else None for one in receipts]

    async def extend(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], visibility_timeout_ms: int
    ) -> list[ExtendedLease | PostroadError]:
        """Extend the leases to `visibility_timeout_ms` from now; a new receipt, or the error, for each receipt."""
        self._check(context)
        tenant = context.tenant
        receipts = [self._receipt(tenant, one, "extend") for one in receipt_ids]
        valid = [one for one in receipts if isinstance(one, _Receipt)]
        await self._consumers.existing(tenant).acknowledge([(one.ref, nak(visibility_timeout_ms)) for one in valid])
        now = self._clock()
        deadline = now + visibility_timeout_ms
        return [
            ExtendedLease(self._receipt_id(tenant, _Receipt(one.ref, one.leased_at_ms, deadline)), deadline)
            if isinstance(one, _Receipt)
            else one or ReceiptInvalid(f"this is not a receipt of the queue {NAME!r}")
            for one in receipts
        ]

    # Receipts

    def _receipt_id(self, tenant: str, receipt: _Receipt) -> str:
        ref = receipt.ref
        numbers = (ref.stream_sequence, ref.consumer_sequence, ref.attempt, ref.stored_at_ns)
        return self._cipher.encrypt(tenant, *numbers, receipt.leased_at_ms, receipt.deadline_ms)

    def _receipt(self, tenant: str, text: str, action: str, *, accepts_expired: bool = False) -> _Receipt | PostroadError | None:
        """The receipt; None if that action was done with it before."""
        try:
            sequence, consumer_sequence, attempt, stored_at_ns, leased_at_ms, deadline_ms = self._cipher.decrypt(tenant, text)
        except (PositionInvalid, ValueError):
            return ReceiptInvalid(f"this is not a receipt of the queue {NAME!r}")
        if self._clock() > deadline_ms and not accepts_expired:
            return LeaseExpired(f"the lease ended at {rfc3339(deadline_ms)}")
        nacked = self._nacked.get((tenant, sequence, attempt))
        if nacked is not None:
            return None if nacked == action else AlreadySettled(f"the lease was ended with nack `{nacked}`")
        return _Receipt(DeliveryRef(sequence, consumer_sequence, attempt, stored_at_ns), leased_at_ms, deadline_ms)

    async def _record_read(self, tenant: str) -> None:
        """Remember, at most once a minute, that events were received."""
        known, record = self._reads.get(tenant), ReadRecord(at_ms=self._clock())
        if known is not None and abs(record.at_ms - known.at_ms) < _READ_MS:
            return
        try:
            if known is None:
                await self._reads.create(tenant, record)
            else:
                await self._reads.update(tenant, record, self._reads.revision(tenant))
        except Conflict:  # another worker has just done it
            return


def _delay_ms(request: NackRequest, attempt: int) -> int:
    if request.delay_ms is not None:
        return request.delay_ms
    return min(_RETRY_MS << min(attempt - 1, 16), _RETRY_MS_MAX) if request.action == "retry" else 0


class _Identity(msgspec.Struct, frozen=True):
    event_id: str = ""


_decode_identity = msgspec.json.Decoder(_Identity).decode


def _message(delivery: Delivery, lines: Sequence[bytes], receipt: str) -> Message:
    """The frame as a message. Its id is that of its first event, which is the same at every delivery."""
    identity = _decode_identity(lines[0]).event_id
    return Message(
        receipt_id=receipt,
        message_id=identity,
        job_id=identity,
        raw_payload=msgspec.Raw(b"[" + b",".join(lines) + b"]"),
        headers={"Postroad-Events": str(len(lines))},
        attempt=delivery.ref.attempt,
        enqueued_at=rfc3339(delivery.ref.stored_at_ns // 1_000_000),
    )
