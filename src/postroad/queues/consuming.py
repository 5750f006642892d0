"""What a consumer does with messages: lease them, keep them, settle them. At least once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.pull_consumer import ACK, Delivery, DeliveryRef, PullConsumer, nak
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import LeaseExpired, PostroadError, QueueNotFound, ReceiptInvalid
from postroad.kernel.identity import Caller
from postroad.queues import job_events as events
from postroad.queues import metrics
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.events import JobEvent
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.rules import (
    LeasedMessage,
    QueueRecord,
    QueueState,
    Receipt,
    StoredMessage,
    as_leased,
    decode_message,
    is_spent,
    read_message,
    retry_delay_ms,
)
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_UNREADABLE_AGAIN_MS = 3_600_000
MAX_ATTEMPTS_REACHED = "maxAttempts reached"
REJECTED = "rejected by the consumer"

log = structlog.get_logger("postroad.queues")


class NackAction(StrEnum):
    """What becomes of a message that its consumer could not do."""

    REQUEUE = "requeue"
    RETRY = "retry"
    DLQ = "dlq"


@dataclass(frozen=True, slots=True)
class NackRequest:
    """`delay_ms` None: by the queue's ladder for a retry, at once for a requeue."""

    action: NackAction
    delay_ms: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Extended:
    receipt_id: str
    lease_until_ms: int


class Consumer:
    def __init__(
        self,
        connection: Connection,
        definitions: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        dead: DeadLetters,
        outbox: Outbox,
        sealer: Signer,
        rates: Throughput,
        clock: Clock,
    ) -> None:
        self._connection, self._definitions, self._dead, self._outbox = connection, definitions, dead, outbox
        self._sealer, self._rates, self._clock = sealer, rates, clock
        self._work: dict[str, PullConsumer] = {}
        table.on_change(self._queue_changed)

    # Leasing

    async def lease(
        self, context: RequestContext, queue: str, *, count: int, lease_ms: int | None, wait_ms: int
    ) -> list[LeasedMessage]:
        """Up to `count` messages, each kept from others for `lease_ms`. Raises QueueNotFound, EngineUnavailable."""
        record = self._definitions.known(context.tenant, queue) or await self._definitions.find(context.tenant, queue)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        if lease_ms is None:
            lease_ms = record.settings.visibility_timeout_ms or 0
        while True:
            delivered = await self._work_queue(record).pull(count, max(0.0, until - loop.time()))
            messages = await self._leased(record, context, delivered, lease_ms)
            if messages or not delivered:
                return messages
            # All of them were spent: whoever waits goes on waiting, and whoever does not looks once more.

    async def _leased(
        self, record: QueueRecord, context: RequestContext, delivered: Sequence[Delivery], lease_ms: int
    ) -> list[LeasedMessage]:
        """Tell the engine to keep them away from others; those that have had all their attempts go to the dead letters."""
        now = self._clock()
        messages: list[LeasedMessage] = []
        happened: list[JobEvent] = []
        verdicts: list[tuple[DeliveryRef, bytes]] = []
        spent: list[tuple[DeliveryRef, StoredMessage]] = []
        for one in delivered:
            stored = _readable(one, record)
            if stored is not None and is_spent(record.settings, one.ref.attempt - 1):
                spent.append((one.ref, stored))
                continue
            verdicts.append((one.ref, nak(lease_ms if stored else _UNREADABLE_AGAIN_MS)))
            if stored is not None:
                receipt = _receipt(one.ref, stored, now, now + lease_ms)
                messages.append(as_leased(stored, one.ref.attempt, self._sealer.sign(record.owner, receipt.to_bytes())))
                if receipt.attempt == 1:
                    metrics.queue_wait.observe(max(0, now - stored.at) / 1000)
                happened.append(events.leased(record, receipt, stored.at))
        await self._work_queue(record).send_acknowledgements(verdicts)
        self._outbox.record(context, *happened)
        metrics.leased.add(context.tenant, len(messages))
        for delivery, stored in spent:
            await self._give_up(record, context, delivery, stored, delivery.attempt - 1, MAX_ATTEMPTS_REACHED)
        return messages

    async def _give_up(
        self,
        record: QueueRecord,
        context: RequestContext,
        delivery: DeliveryRef,
        stored: StoredMessage,
        attempts: int,
        reason: str,
        last_error: str | None = None,
    ) -> None:
        """First the dead letter is durable, then the message goes: a crash between the two repeats it."""
        letter = await self._dead.bury(record, stored, delivery.stream_sequence, attempts, reason, last_error)
        await self._work_queue(record).acknowledge([(delivery, ACK)])
        metrics.dead.add(record.tenant)
        await self._outbox.commit(context, events.dead(record, stored, letter))

    def _work_queue(self, record: QueueRecord) -> PullConsumer:
        found = self._work.get(record.stream)
        if found is None or found.consumer != record.consumer:
            found = self._work[record.stream] = PullConsumer(self._connection, record.stream, record.consumer)
        return found

    # Settling

    async def acknowledge(self, context: RequestContext, queue: str, receipt_ids: Sequence[str]) -> list[PostroadError | None]:
        """Return once none of them can come back; for each receipt what is wrong with it, or None.

        Raises QueueNotFound, EngineUnavailable. Acknowledging twice is the same as once.
        """
        record, opened = await self._opened(context.caller, queue, receipt_ids)
        good = [receipt for receipt in opened if isinstance(receipt, Receipt)]
        await self._work_queue(record).acknowledge([(_delivery(receipt), ACK) for receipt in good])
        now = self._clock()
        await self._outbox.commit(context, *(events.done(record, receipt, now) for receipt in good))
        metrics.acked.add(context.tenant, len(good))
        self._rates.settled(record.stream, len(good))
        return [None if isinstance(receipt, Receipt) else receipt for receipt in opened]

    async def reject(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], verdict: NackRequest
    ) -> list[PostroadError | None]:
        """Nack: return once the engine knows what is to become of them; for each receipt what is wrong with it, or None."""
        record, opened = await self._opened(context.caller, queue, receipt_ids)
        good = [receipt for receipt in opened if isinstance(receipt, Receipt)]
        doomed = [receipt for receipt in good if _is_doomed(record, receipt, verdict)]
        for receipt in doomed:
            await self._reject_for_good(record, context, receipt, verdict)
        await self._give_back(record, context, [receipt for receipt in good if receipt not in doomed], verdict)
        return [None if isinstance(receipt, Receipt) else receipt for receipt in opened]

    async def _reject_for_good(
        self, record: QueueRecord, context: RequestContext, receipt: Receipt, verdict: NackRequest
    ) -> None:
        entry = await stream_reader.at(self._connection, record.stream, receipt.stream_sequence)
        if entry is None or entry.at_ms != receipt.stored_at_ns // 1_000_000:
            return  # it was settled before
        stored = decode_message(entry.payload)
        reason = (verdict.reason or REJECTED) if verdict.action is NackAction.DLQ else MAX_ATTEMPTS_REACHED
        await self._give_up(record, context, _delivery(receipt), stored, receipt.attempt, reason, verdict.reason)
        self._rates.settled(record.stream, 1)

    async def _give_back(
        self, record: QueueRecord, context: RequestContext, receipts: Sequence[Receipt], verdict: NackRequest
    ) -> None:
        if not receipts:
            return
        if verdict.reason is not None:
            await asyncio.gather(*(self._dead.note_failure(record, one.message_id, verdict.reason) for one in receipts))
        delays = [_delay_ms(record, one, verdict) for one in receipts]
        await self._work_queue(record).acknowledge(
            [(_delivery(one), nak(delay)) for one, delay in zip(receipts, delays, strict=True)]
        )
        now = self._clock()
        metrics.nacked.add(context.tenant, len(receipts))
        is_retry = verdict.action is NackAction.RETRY
        happened = [
            events.retried(record, one, now, now + delay, verdict.reason)
            if is_retry
            else events.requeued(record, one, now, verdict.reason)
            for one, delay in zip(receipts, delays, strict=True)
        ]
        await self._outbox.commit(context, *happened)

    async def extend(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], lease_ms: int
    ) -> list[Extended | PostroadError]:
        """Keep them for `lease_ms` from now; a new receipt for each. The old one stays good until its own deadline."""
        record, opened = await self._opened(context.caller, queue, receipt_ids)
        good = [receipt for receipt in opened if isinstance(receipt, Receipt)]
        now = self._clock()
        await self._work_queue(record).acknowledge([(_delivery(receipt), nak(lease_ms)) for receipt in good])
        self._outbox.record(context, *(events.extended(record, receipt, now, now + lease_ms) for receipt in good))
        return [
            Extended(self._sealer.sign(record.owner, _until(receipt, now + lease_ms).to_bytes()), now + lease_ms)
            if isinstance(receipt, Receipt)
            else receipt
            for receipt in opened
        ]

    async def _opened(
        self, caller: Caller, queue: str, receipt_ids: Sequence[str]
    ) -> tuple[QueueRecord, list[Receipt | PostroadError]]:
        record = self._definitions.known(caller.tenant, queue) or await self._definitions.find(caller.tenant, queue)
        return record, [self._open(record, text) for text in receipt_ids]

    def _open(self, record: QueueRecord, text: str) -> Receipt | PostroadError:
        try:
            receipt = Receipt.from_bytes(self._sealer.verify(record.owner, text))
        except (SignatureInvalid, ValueError):
            return ReceiptInvalid("this is not a receipt of this queue")
        if self._clock() > receipt.deadline_ms:
            return LeaseExpired(f"the lease ended at {rfc3339(receipt.deadline_ms)}")
        return receipt

    def _queue_changed(self, _key: str, record: QueueRecord | None) -> None:
        """A deleted queue's waiting consumers are told."""
        if record is not None and record.state is not QueueState.DELETING:
            return
        tenant, _, token = _key.partition(".")
        work = self._work.pop(f"Q_{tenant}__{token}", None)
        if work is not None:
            work.close(QueueNotFound("the queue was deleted"))


def _is_doomed(record: QueueRecord, receipt: Receipt, verdict: NackRequest) -> bool:
    return verdict.action is NackAction.DLQ or (verdict.action is NackAction.RETRY and is_spent(record.settings, receipt.attempt))


def _delay_ms(record: QueueRecord, receipt: Receipt, verdict: NackRequest) -> int:
    if verdict.delay_ms is not None:
        return verdict.delay_ms
    return retry_delay_ms(record.settings, receipt.attempt) if verdict.action is NackAction.RETRY else 0


def _until(receipt: Receipt, deadline_ms: int) -> Receipt:
    return Receipt(
        receipt.stream_sequence,
        receipt.consumer_sequence,
        receipt.attempt,
        receipt.stored_at_ns,
        receipt.leased_at_ms,
        deadline_ms,
        receipt.message_id,
        receipt.job_id,
    )


def _readable(delivered: Delivery, record: QueueRecord) -> StoredMessage | None:
    """Somebody with access to the engine may have put anything into the stream; it must not stop the queue."""
    try:
        return read_message(delivered.payload)
    except ValueError:
        log.error("message_unreadable", stream=record.stream, sequence=delivered.ref.stream_sequence)
        return None


def _receipt(delivery: DeliveryRef, stored: StoredMessage, leased_at_ms: int, deadline_ms: int) -> Receipt:
    return Receipt(
        stream_sequence=delivery.stream_sequence,
        consumer_sequence=delivery.consumer_sequence,
        attempt=delivery.attempt,
        stored_at_ns=delivery.stored_at_ns,
        leased_at_ms=leased_at_ms,
        deadline_ms=deadline_ms,
        message_id=stored.id,
        job_id=stored.job,
    )


def _delivery(receipt: Receipt) -> DeliveryRef:
    return DeliveryRef(receipt.stream_sequence, receipt.consumer_sequence, receipt.attempt, receipt.stored_at_ns)
