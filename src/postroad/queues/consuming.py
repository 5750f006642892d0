"""Leases of messages: pull, ack, nack, extend. Delivery is at least once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from postroad.api.queues import LeaseExpired, Message, NackRequest, QueueNotFound, ReceiptInvalid
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Delivery, DeliveryRef, nak
from postroad.jetstream.management import consumer_state
from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.queues import job_events, metrics
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.events import JobEvent
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord, QueueState, Receipt, StoredMessage, decode_message, message_of, read_message
from postroad.queues.rules import is_last_attempt, retry_delay_ms
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

MAX_ATTEMPTS_REACHED = "maxAttempts reached"
REJECTED = "rejected by the consumer"
_UNREADABLE_RETRY_MS = 3_600_000

log = structlog.get_logger("postroad.queues")


@dataclass(frozen=True, slots=True)
class ExtendedLease:
    receipt_id: str
    deadline_ms: int


class Consumer:
    def __init__(
        self,
        connection: Connection,
        lifecycle: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        dead_letters: DeadLetters,
        outbox: Outbox,
        signer: Signer,
        throughput: Throughput,
        clock: Clock,
    ) -> None:
        self._connection, self._lifecycle, self._dead_letters, self._outbox = connection, lifecycle, dead_letters, outbox
        self._signer, self._throughput, self._clock = signer, throughput, clock
        self._pull_consumers: dict[str, PullConsumer] = {}
        table.on_change(self._queue_changed)

    async def pull(
        self, context: RequestContext, queue: str, *, count: int, visibility_timeout_ms: int | None, wait_ms: int
    ) -> list[Message]:
        """Lease up to `count` messages; wait up to `wait_ms` for the first. Raises QueueNotFound, EngineUnavailable."""
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        if visibility_timeout_ms is None:
            visibility_timeout_ms = record.settings.visibility_timeout_ms or 0
        while True:
            deliveries = await self._pull_consumer(record).pull(count, max(0.0, until - loop.time()))
            messages = await self._lease(record, context, deliveries, visibility_timeout_ms)
            if messages or not deliveries:
                return messages
            # All deliveries became dead letters: pull again, for the rest of the wait.

    async def _lease(
        self, record: QueueRecord, context: RequestContext, deliveries: Sequence[Delivery], visibility_timeout_ms: int
    ) -> list[Message]:
        """Lease the deliveries. Messages without attempts left become dead letters."""
        now = self._clock()
        messages: list[Message] = []
        leased: list[JobEvent] = []
        leases: list[tuple[DeliveryRef, bytes]] = []
        exhausted: list[tuple[DeliveryRef, StoredMessage]] = []
        for one in deliveries:
            stored = _readable(one, record)
            if stored is not None and is_last_attempt(record.settings, one.ref.attempt - 1):
                exhausted.append((one.ref, stored))
                continue
            leases.append((one.ref, nak(visibility_timeout_ms if stored else _UNREADABLE_RETRY_MS)))
            if stored is not None:
                receipt = _receipt(one.ref, stored, now, now + visibility_timeout_ms)
                messages.append(message_of(stored, one.ref.attempt, self._signer.sign(record.owner, receipt.to_bytes())))
                if receipt.attempt == 1:
                    metrics.queue_wait.observe(max(0, now - stored.at) / 1000)
                leased.append(job_events.leased(record, receipt, stored.at))
        await self._pull_consumer(record).send_acknowledgements(leases)
        self._outbox.record(context, *leased)
        metrics.leased.add(context.tenant, len(messages))
        for delivery, stored in exhausted:
            await self._dead_letter(record, context, delivery, stored, delivery.attempt - 1, MAX_ATTEMPTS_REACHED)
        return messages

    async def _dead_letter(
        self,
        record: QueueRecord,
        context: RequestContext,
        delivery: DeliveryRef,
        stored: StoredMessage,
        attempts: int,
        reason: str,
        last_error: str | None = None,
    ) -> None:
        """Store the dead letter, then delete the message: a crash in between only repeats the operation."""
        letter = await self._dead_letters.store(record, stored, delivery.stream_sequence, attempts, reason, last_error)
        await self._pull_consumer(record).acknowledge([(delivery, ACK)])
        metrics.dead.add(record.tenant)
        await self._outbox.commit(context, job_events.dead(record, stored, letter))

    def _pull_consumer(self, record: QueueRecord) -> PullConsumer:
        found = self._pull_consumers.get(record.stream)
        if found is None or found.consumer != record.consumer:
            found = self._pull_consumers[record.stream] = PullConsumer(self._connection, record.stream, record.consumer)
        return found

    async def ack(self, context: RequestContext, queue: str, receipt_ids: Sequence[str]) -> list[PostroadError | None]:
        """Return once none of the messages can be delivered again; the error of each invalid receipt. Idempotent.

        Raises QueueNotFound, EngineUnavailable.
        """
        record, receipts = await self._verify(context, queue, receipt_ids)
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        await self._pull_consumer(record).acknowledge([(_delivery(receipt), ACK) for receipt in valid])
        now = self._clock()
        await self._outbox.commit(context, *(job_events.done(record, receipt, now) for receipt in valid))
        metrics.acked.add(context.tenant, len(valid))
        self._throughput.add_completed(record.stream, len(valid))
        return [None if isinstance(receipt, Receipt) else receipt for receipt in receipts]

    async def nack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], request: NackRequest
    ) -> list[PostroadError | None]:
        """Requeue, retry or dead-letter the messages; the error of each invalid receipt.

        A retry after the last attempt dead-letters the message. Raises QueueNotFound, EngineUnavailable.
        """
        record, receipts = await self._verify(context, queue, receipt_ids)
        redelivered = []
        for receipt in receipts:
            if isinstance(receipt, Receipt):
                if _is_final(record, receipt, request):
                    await self._reject(record, context, receipt, request)
                else:
                    redelivered.append(receipt)
        if redelivered:
            await self._redeliver(record, context, redelivered, request)
        return [None if isinstance(receipt, Receipt) else receipt for receipt in receipts]

    async def _reject(self, record: QueueRecord, context: RequestContext, receipt: Receipt, request: NackRequest) -> None:
        entry = await stream_reader.at(self._connection, record.stream, receipt.stream_sequence)
        if entry is None or entry.at_ms != receipt.stored_at_ns // 1_000_000:
            return  # acknowledged or dead-lettered before
        stored = decode_message(entry.payload)
        reason = (request.reason or REJECTED) if request.action == "dlq" else MAX_ATTEMPTS_REACHED
        await self._dead_letter(record, context, _delivery(receipt), stored, receipt.attempt, reason, request.reason or None)
        self._throughput.add_completed(record.stream, 1)

    async def _redeliver(
        self, record: QueueRecord, context: RequestContext, receipts: Sequence[Receipt], request: NackRequest
    ) -> None:
        reason = request.reason or None
        if reason is not None:
            await asyncio.gather(*(self._dead_letters.record_failure(record, one.message_id, reason) for one in receipts))
        delays = [_delay_ms(record, one, request) for one in receipts]
        naks = [(_delivery(one), nak(delay)) for one, delay in zip(receipts, delays, strict=True)]
        await self._pull_consumer(record).acknowledge(naks)
        now = self._clock()
        metrics.nacked.add(context.tenant, len(receipts))
        is_retry = request.action == "retry"
        events = [
            job_events.retried(record, one, now, now + delay, reason)
            if is_retry
            else job_events.requeued(record, one, now, reason)
            for one, delay in zip(receipts, delays, strict=True)
        ]
        await self._outbox.commit(context, *events)

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        """Deliver a message at once that waits for its next attempt. Raises EngineUnavailable, QueueNotFound."""
        state = await consumer_state(self._connection, record.stream, record.consumer)
        if state is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        # The server identifies the delivery by the message, and accepts the number of any later delivery.
        ref = DeliveryRef(entry.sequence, state.delivered.consumer_seq, max(1, attempt), entry.at_ms * 1_000_000)
        await self._pull_consumer(record).acknowledge([(ref, nak(0))])

    async def extend(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], visibility_timeout_ms: int
    ) -> list[ExtendedLease | PostroadError]:
        """Extend the leases to `visibility_timeout_ms` from now; a new receipt, or the error, for each receipt.

        The old receipt stays valid until its own deadline. Raises QueueNotFound, EngineUnavailable.
        """
        record, receipts = await self._verify(context, queue, receipt_ids)
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        now = self._clock()
        deadline = now + visibility_timeout_ms
        await self._pull_consumer(record).acknowledge([(_delivery(receipt), nak(visibility_timeout_ms)) for receipt in valid])
        self._outbox.record(context, *(job_events.extended(record, receipt, now, deadline) for receipt in valid))
        return [
            ExtendedLease(self._signer.sign(record.owner, replace(receipt, deadline_ms=deadline).to_bytes()), deadline)
            if isinstance(receipt, Receipt)
            else receipt
            for receipt in receipts
        ]

    async def _verify(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str]
    ) -> tuple[QueueRecord, list[Receipt | PostroadError]]:
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        return record, [self._verify_receipt(record, receipt_id) for receipt_id in receipt_ids]

    def _verify_receipt(self, record: QueueRecord, receipt_id: str) -> Receipt | PostroadError:
        try:
            receipt = Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        except (SignatureInvalid, ValueError):
            return ReceiptInvalid("this is not a receipt of this queue")
        if self._clock() > receipt.deadline_ms:
            return LeaseExpired(f"the lease ended at {rfc3339(receipt.deadline_ms)}")
        return receipt

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        """Fail the waiting pulls of a deleted queue."""
        if record is not None and record.state is not QueueState.DELETING:
            return
        tenant, _, token = key.partition(".")
        pull_consumer = self._pull_consumers.pop(f"Q_{tenant}__{token}", None)
        if pull_consumer is not None:
            pull_consumer.close(QueueNotFound("the queue was deleted"))


def _is_final(record: QueueRecord, receipt: Receipt, request: NackRequest) -> bool:
    return request.action == "dlq" or (request.action == "retry" and is_last_attempt(record.settings, receipt.attempt))


def _delay_ms(record: QueueRecord, receipt: Receipt, request: NackRequest) -> int:
    if request.delay_ms is not None:
        return request.delay_ms
    return retry_delay_ms(record.settings, receipt.attempt) if request.action == "retry" else 0


def _readable(delivery: Delivery, record: QueueRecord) -> StoredMessage | None:
    """None for a message that another client of the NATS server wrote: it must not block the queue."""
    try:
        return read_message(delivery.payload)
    except ValueError:
        log.error("message_unreadable", stream=record.stream, sequence=delivery.ref.stream_sequence)
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
