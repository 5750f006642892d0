"""Ends and extensions of leases: ack, nack, extend. Any process can do it for any lease."""

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from postroad.api.queues import AlreadySettled, JobWasCancelled, LeaseExpired, Priority, QueueNotFound, ReceiptInvalid
from postroad.api.receipts import NackRequest
from postroad.crypto.signing import Signer
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Acknowledgement, DeliveryRef, nak
from postroad.jetstream.management import consumer_state, delete_message
from postroad.jetstream.ordered_pull import OrderedPull
from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.queues import job_events, metrics
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.consumer_activity import ConsumerReports
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.deferred_messages import DeferredMessages, is_deferred_entry
from postroad.queues.group_shares import GroupShares
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_states import Step, Transition
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.ordered_leases import REJECTED, OrderedLeases
from postroad.queues.receipt_verification import ReceiptVerification
from postroad.queues.records import (
    MAX_ATTEMPTS_REACHED,
    DeadLetter,
    QueueRecord,
    Receipt,
    StoredMessage,
    decode_message,
    priority_of,
)
from postroad.queues.rules import PULL_ORDERS, delay_after_nack_ms, is_final_nack
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_NACK_STEPS = {"retry": Step.RETRIED, "requeue": Step.REQUEUED, "dlq": Step.DEAD_LETTERED}


@dataclass(frozen=True, slots=True)
class ExtendedLease:
    receipt_id: str
    deadline_ms: int


class LeaseOperations(ReceiptVerification):
    """Operations with receipts, and on the deliveries of a queue."""

    def __init__(
        self,
        connection: Connection,
        lifecycle: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        dead_letters: DeadLetters,
        cancelled: CancelledMessages,
        lease_log: LeaseLog,
        outbox: Outbox,
        signer: Signer,
        throughput: Throughput,
        clock: Clock,
        ordered: OrderedLeases,
        deferred: DeferredMessages,
        shares: GroupShares,
    ) -> None:
        self._ordered, self._deferred, self._shares = ordered, deferred, shares
        self._connection, self._lifecycle, self._dead_letters, self._outbox = connection, lifecycle, dead_letters, outbox
        self._cancelled, self._lease_log = cancelled, lease_log
        self._signer, self._throughput, self._clock = signer, throughput, clock
        self._pull_consumers: dict[str, PullConsumer] = {}  # of the priority `normal`, by stream
        self._ordered_pulls: dict[str, OrderedPull[Priority]] = {}  # of queues with different priorities, by stream
        self.reports: ConsumerReports | None = None  # set where activity is reported by key
        table.on_change(self._queue_changed)

    def waiting_pulls(self) -> dict[str, int]:
        """Pulls of this process that wait for a message, by stream."""
        waiting = {stream: count for stream, one in self._pull_consumers.items() if (count := one.waiting)}
        for stream, ordered in self._ordered_pulls.items():
            if ordered.waiting:
                waiting[stream] = waiting.get(stream, 0) + ordered.waiting
        return waiting | self._ordered.waiting_pulls()

    async def ack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], *, accepts_expired: bool = False
    ) -> list[PostroadError | None]:
        """Return once none of the messages can be delivered again; the error of each invalid receipt. Idempotent.

        `accepts_expired`: any receipt of a message removes it, also after its lease has ended; in an ordered queue, any receipt
        of a lease that lasts. Raises QueueNotFound, EngineUnavailable.
        """
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            return await self._ordered.ack(context, record, receipt_ids, follows_extensions=accepts_expired)
        receipts = self._verify(record, receipt_ids, Step.ACKED)
        if accepts_expired:
            receipts = [
                await self._expired_receipt(record, text) if isinstance(one, LeaseExpired | AlreadySettled) else one
                for one, text in zip(receipts, receipt_ids, strict=True)
            ]
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        await self._acknowledge(record, [(receipt, ACK) for receipt in valid])
        now = self._clock()
        self._lease_log.record(record, [transition_of(receipt, Step.ACKED, now) for receipt in valid])
        await self._outbox.commit(context, *(job_events.done(record, receipt, now) for receipt in valid))
        metrics.acked.add(context.tenant, len(valid))
        self._throughput.add_completed(record, len(valid), context.caller.key_id)
        if self.reports is not None:
            leased_at_ms = [receipt.leased_at_ms for receipt in valid]
            self.reports.record_acks(record.stream, context.caller.key_id, now, leased_at_ms)
        return [receipt if isinstance(receipt, PostroadError) else None for receipt in receipts]

    async def remove(self, context: RequestContext, queue: str, receipt_ids: Sequence[str]) -> None:
        """Remove messages that were stored elsewhere: their jobs have not ended. Raises QueueNotFound, EngineUnavailable."""
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            await self._ordered.ack(context, record, receipt_ids, ends_jobs=False)
            return
        receipts = self._verify(record, receipt_ids, Step.ACKED)
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        await self._acknowledge(record, [(receipt, ACK) for receipt in valid])
        now = self._clock()
        self._lease_log.record(record, [transition_of(receipt, Step.ACKED, now) for receipt in valid])
        self._throughput.add_completed(record, len(valid))

    async def nack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], request: NackRequest
    ) -> list[PostroadError | None]:
        """Requeue, retry or dead-letter the messages; the error of each invalid receipt. Idempotent.

        A retry after the last attempt dead-letters the message. Raises QueueNotFound, EngineUnavailable.
        """
        step = _NACK_STEPS[request.action]
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            return await self._ordered.nack(context, record, receipt_ids, request)
        receipts = self._verify(record, receipt_ids, step)
        outcomes = [receipt if isinstance(receipt, PostroadError) else None for receipt in receipts]
        valid = [(index, receipt) for index, receipt in enumerate(receipts) if isinstance(receipt, Receipt)]
        entries = await self._stored(record, [receipt for _, receipt in valid])
        redelivered, transitions = [], []
        for (index, receipt), entry in zip(valid, entries, strict=True):
            if is_final_nack(record.settings, receipt.attempt, request.action):
                outcomes[index] = await self._reject(record, context, receipt, entry, request)
                if outcomes[index] is None:
                    transitions.append(transition_of(receipt, step, now := self._clock(), now, receipt.deadline_ms))
            elif entry is None:
                outcomes[index] = _gone(receipt)
            else:
                redelivered.append(receipt)
        if redelivered:
            delays = await self._redeliver(record, context, redelivered, request)
            now = self._clock()
            transitions += [
                transition_of(receipt, step, now, now + delay, receipt.deadline_ms)
                for receipt, delay in zip(redelivered, delays, strict=True)
            ]
        await self._lease_log.commit(record, transitions)
        if self.reports is not None:
            self.reports.record_failures(record.stream, context.caller.key_id, len(transitions))
        return outcomes

    async def _reject(
        self, record: QueueRecord, context: RequestContext, receipt: Receipt, entry: Entry | None, request: NackRequest
    ) -> PostroadError | None:
        if entry is None:  # dead-lettered before, by a request without a response, or gone in another way
            is_dead = await self._dead_letters.has(record, receipt.message_id)
            return None if is_dead else _gone(receipt)
        stored = decode_message(entry.payload)
        reason = (request.reason or REJECTED) if request.action == "dlq" else MAX_ATTEMPTS_REACHED
        letter = await self._dead_letters.store(
            record, stored, receipt.stream_sequence, receipt.attempt, reason, request.reason or None
        )
        await self._remove_dead(record, context, _delivery(receipt), receipt.priority, stored, letter)
        self._throughput.add_completed(record, 1, context.caller.key_id, failed=1)
        return None

    async def _redeliver(
        self, record: QueueRecord, context: RequestContext, receipts: Sequence[Receipt], request: NackRequest
    ) -> list[int]:
        """Return the messages to the queue; the delay of each."""
        reason = request.reason or None
        if reason is not None:
            await asyncio.gather(*(self._dead_letters.record_failure(record, one.message_id, reason) for one in receipts))
        delays = [delay_after_nack_ms(record.settings, one.attempt, request.action, request.delay_ms) for one in receipts]
        await self._acknowledge(record, [(one, nak(delay)) for one, delay in zip(receipts, delays, strict=True)])
        now = self._clock()
        metrics.nacked.add(context.tenant, len(receipts))
        self._throughput.add_completed(record, 0, context.caller.key_id, failed=len(receipts))
        is_retry = request.action == "retry"
        events = [
            job_events.retried(record, one, now, now + delay, reason)
            if is_retry
            else job_events.requeued(record, one, now, reason)
            for one, delay in zip(receipts, delays, strict=True)
        ]
        await self._outbox.commit(context, *events)
        return delays

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        """Deliver a message at once that waits for its next attempt. Raises EngineUnavailable, QueueNotFound."""
        if record.is_ordered:
            await self._ordered.promote(record, entry)
            return
        priority = priority_of(entry.subject)
        state = await consumer_state(self._connection, record.stream, record.consumer_of(priority))
        if state is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        # The server identifies the delivery by the message, and accepts the number of any later delivery.
        ref = DeliveryRef(entry.sequence, state.delivered.consumer_seq, max(1, attempt), entry.at_ms * 1_000_000)
        await self._pull_consumer(record, priority).acknowledge([(ref, nak(0))])
        now = self._clock()
        await self._lease_log.commit(record, [Transition(entry.sequence, max(1, attempt), Step.PROMOTED, now, now)])

    async def delete(self, record: QueueRecord, entry: Entry, attempt: int) -> bool:
        """Delete a message from the queue, whether it is leased or not; false if it is not there any more."""
        if record.is_ordered and not await self._ordered.remove(record, entry):
            return False
        if is_deferred_entry(record, entry):
            return await self._deferred.remove(record, entry)
        if not await delete_message(self._connection, record.stream, entry.sequence):
            return False
        if not record.is_ordered:
            self._forget(record, entry.sequence, attempt)
        return True

    def _forget(self, record: QueueRecord, sequence: int, attempt: int) -> None:
        """Count a message as gone that was deleted from the queue."""
        self._lease_log.record(record, [Transition(sequence, max(1, attempt), Step.ACKED, self._clock())])

    async def extend(
        self,
        context: RequestContext,
        queue: str,
        receipt_ids: Sequence[str],
        visibility_timeout_ms: int,
        *,
        follows_extensions: bool = False,
    ) -> list[ExtendedLease | PostroadError]:
        """Extend the leases to `visibility_timeout_ms` from now; a new receipt, or the error, for each receipt.

        The old receipt stays valid until its own deadline, or until the new one if that is earlier. With `follows_extensions` it
        is accepted as long as the lease lasts, as extended with another receipt of the same delivery.
        Raises QueueNotFound, EngineUnavailable.
        """
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            outcomes = await self._ordered.extend(
                context, record, receipt_ids, visibility_timeout_ms, follows_extensions=follows_extensions
            )
            return [one if isinstance(one, PostroadError) else ExtendedLease(*one) for one in outcomes]
        receipts = self._verify(record, receipt_ids, Step.EXTENDED)
        if follows_extensions:
            receipts = [
                self._extended_receipt(record, text) or one if isinstance(one, LeaseExpired) else one
                for one, text in zip(receipts, receipt_ids, strict=True)
            ]
        verified = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        present = {
            receipt for receipt, entry in zip(verified, await self._stored(record, verified), strict=True) if entry is not None
        }
        now = self._clock()
        deadline = now + visibility_timeout_ms
        await self._acknowledge(record, [(one, nak(visibility_timeout_ms)) for one in present])
        await self._record_extensions(record, present, now, deadline)
        self._outbox.record(context, *(job_events.extended(record, receipt, now, deadline) for receipt in present))
        extended: list[ExtendedLease | PostroadError] = []
        for receipt in receipts:
            if not isinstance(receipt, Receipt):
                extended.append(receipt or ReceiptInvalid("this is not a receipt of this queue"))
            elif receipt not in present:
                extended.append(await self._gone(record, receipt))
            else:
                signed = self._signer.sign(record.owner, replace(receipt, deadline_ms=deadline).to_bytes())
                extended.append(ExtendedLease(signed, deadline))
        return extended

    async def held_lease(self, context: RequestContext, queue: str, receipt_id: str) -> tuple[QueueRecord, Receipt]:
        """The queue and the lease of a receipt, while the lease lasts and the message is there.

        Raises QueueNotFound, ReceiptInvalid, LeaseExpired, AlreadySettled, JobWasCancelled, EngineUnavailable.
        """
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            return record, await self._ordered.held_lease(record, receipt_id)
        [receipt] = self._verify(record, [receipt_id], Step.EXTENDED)
        if not isinstance(receipt, Receipt):
            raise receipt or ReceiptInvalid("this is not a receipt of this queue")
        if await self._stored(record, [receipt]) == [None]:
            raise await self._gone(record, receipt)
        return record, receipt

    async def _gone(self, record: QueueRecord, receipt: Receipt) -> PostroadError:
        """The error for a receipt whose message is not in the queue any more."""
        cancelled = await self._cancelled.find(record, receipt.message_id)
        if cancelled is not None and cancelled.letter.cancelled_at >= receipt.leased_at_ms:
            return JobWasCancelled(f"the job was cancelled at {rfc3339(cancelled.letter.cancelled_at)}")
        return _gone(receipt)

    async def _record_extensions(self, record: QueueRecord, receipts: Set[Receipt], now: int, deadline: int) -> None:
        """A lease that ends before the deadline of an earlier receipt must end for that receipt, too, on every worker."""
        extended, shortened = [], []
        for one in receipts:
            known = self._lease_log.nack_of(record, one.stream_sequence, one.attempt)
            if deadline < one.deadline_ms or known is not None:
                latest = max(one.deadline_ms, known.receipt_until_ms if known else 0)
                shortened.append(transition_of(one, Step.SHORTENED, now, deadline, latest))
            else:
                extended.append(transition_of(one, Step.EXTENDED, now, deadline))
        self._lease_log.record(record, extended)
        if shortened:
            await self._lease_log.commit(record, shortened)

    async def _remove_dead(
        self,
        record: QueueRecord,
        context: RequestContext,
        delivery: DeliveryRef,
        priority: Priority,
        stored: StoredMessage,
        letter: DeadLetter,
    ) -> None:
        """Delete a message whose dead letter is stored: a crash in between only repeats the operation."""
        await self._pull_consumer(record, priority).acknowledge([(delivery, ACK)])
        metrics.dead.add(record.tenant)
        await self._outbox.commit(context, job_events.dead(record, stored, letter))

    async def _acknowledge(self, record: QueueRecord, acks: Sequence[tuple[Receipt, bytes]]) -> None:
        """Raises EngineUnavailable."""
        by_priority: dict[Priority, list[Acknowledgement]] = {}
        for receipt, ack in acks:
            by_priority.setdefault(receipt.priority, []).append((_delivery(receipt), ack))
        for priority, of_priority in by_priority.items():
            await self._pull_consumer(record, priority).acknowledge(of_priority)

    def _pull_consumer(self, record: QueueRecord, priority: Priority = "normal") -> PullConsumer:
        if priority != "normal":
            return self._ordered_pull(record).consumers[priority]
        found = self._pull_consumers.get(record.stream)
        if found is None or found.consumer != record.consumer:
            found = self._pull_consumers[record.stream] = PullConsumer(self._connection, record.stream, record.consumer)
        found.is_limited = record.settings.max_in_flight > 0
        return found

    def _ordered_pull(self, record: QueueRecord) -> OrderedPull[Priority]:
        """The consumers of a queue that has messages with different priorities."""
        normal, found = self._pull_consumer(record), self._ordered_pulls.get(record.stream)
        if found is None or found.consumers["normal"] is not normal:
            consumers: dict[Priority, PullConsumer] = {"normal": normal}
            for priority in ("high", "low"):
                consumers[priority] = PullConsumer(self._connection, record.stream, record.consumer_of(priority))
            found = self._ordered_pulls[record.stream] = OrderedPull(self._connection, record.stream, consumers, PULL_ORDERS)
        return found

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        """Fail the waiting pulls of a deleted queue. When a queue gets its first priority, they must wait for all of them."""
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        if record is not None and record.state is not RecordState.DELETING:
            known = self._pull_consumers.get(stream)
            if known is not None and record.has_priority and stream not in self._ordered_pulls:
                known.end_waits()
            return
        closed = QueueNotFound("the queue was deleted")
        ordered, normal = self._ordered_pulls.pop(stream, None), self._pull_consumers.pop(stream, None)
        if ordered is not None:
            ordered.close(closed)
        for one in ordered.consumers.values() if ordered is not None else [normal]:
            if one is not None:
                one.close(closed)


def transition_of(
    delivery: DeliveryRef | Receipt, step: Step, at_ms: int, until_ms: int = 0, receipt_until_ms: int = 0, *, first_ms: int = 0
) -> Transition:
    first_ms = 0 if first_ms == at_ms else first_ms
    return Transition(delivery.stream_sequence, delivery.attempt, step, at_ms, until_ms, receipt_until_ms, first_ms)


def _gone(receipt: Receipt) -> AlreadySettled:
    return AlreadySettled(f"the message {receipt.message_id} is not in the queue any more: it was acknowledged or purged")


def _delivery(receipt: Receipt) -> DeliveryRef:
    return DeliveryRef(receipt.stream_sequence, receipt.consumer_sequence, receipt.attempt, receipt.stored_at_ns)
