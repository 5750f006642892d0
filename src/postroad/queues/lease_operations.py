"""Ends and extensions of leases: ack, nack, extend. Any process can do it for any lease."""

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from postroad.api.queues import AlreadySettled, JobWasCancelled, LeaseExpired, Priority, ReceiptInvalid
from postroad.api.receipts import NackRequest
from postroad.crypto.signing import Signer
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import DeliveryRef
from postroad.jetstream.management import delete_message
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import BodyInvalid, PostroadError
from postroad.kernel.futures import resolve
from postroad.kernel.spans import Tracer
from postroad.queues import job_events, metrics
from postroad.queues.backend import QueueBackend, Settlement
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.consumer_activity import ConsumerReports
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.deferred_messages import DeferredMessages, is_deferred_entry
from postroad.queues.group_shares import GroupShares
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_plan import PreparedAck, transition_of
from postroad.queues.lease_spans import record_settled, started_ns
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
)
from postroad.queues.rules import delay_after_nack_ms, is_final_nack
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_NACK_STEPS = {"retry": Step.RETRIED, "requeue": Step.REQUEUED, "dlq": Step.DEAD_LETTERED}

Verified = Receipt | PostroadError | None  # None: the operation was done before


OnAcked = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class ExtendedLease:
    receipt_id: str
    deadline_ms: int


class LeaseOperations(ReceiptVerification):
    """Operations with receipts, and on the deliveries of a queue."""

    def __init__(
        self,
        connection: Connection,
        backend: QueueBackend,
        lifecycle: QueueLifecycle,
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
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._backend, self._ordered, self._deferred, self._shares = backend, ordered, deferred, shares
        self._connection, self._lifecycle, self._dead_letters, self._outbox = connection, lifecycle, dead_letters, outbox
        self._cancelled, self._lease_log = cancelled, lease_log
        self._signer, self._throughput, self._clock = signer, throughput, clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.reports: ConsumerReports | None = None  # set where activity is reported by key

    def waiting_pulls(self) -> dict[str, int]:
        """Pulls of this process that wait for a message, by stream."""
        return {**self._backend.waiting_pulls(), **self._ordered.waiting_pulls()}

    async def ack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], *, accepts_expired: bool = False
    ) -> list[PostroadError | None]:
        """Return once none of the messages can be delivered again; the error of each invalid receipt. Idempotent.

        `accepts_expired`: any receipt of a message removes it, also after its lease has ended; in an ordered queue, any receipt
        of a lease that lasts. Raises QueueNotFound, EngineUnavailable.
        """
        prepared = self.prepare_ack(context, queue, receipt_ids)
        if prepared is None:
            return await self._ack(context, queue, receipt_ids, accepts_expired=accepts_expired)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.start_ack(prepared, partial(resolve, future))
        await future
        return [None] * len(receipt_ids)

    async def _ack(
        self, context: RequestContext, queue: str, receipt_ids: Sequence[str], *, accepts_expired: bool
    ) -> list[PostroadError | None]:
        """Acknowledge with receipts some of which are not valid, or of a queue without callbacks."""
        record, start_ns = await self._record(context.tenant, queue), started_ns(self._tracer)
        if record.is_ordered:
            return await self._ordered.ack(context, record, receipt_ids, follows_extensions=accepts_expired)
        receipts = self._verify(record, receipt_ids, Step.ACKED)
        if accepts_expired:
            receipts = [
                await self._expired_receipt(record, text) if isinstance(one, LeaseExpired | AlreadySettled) else one
                for one, text in zip(receipts, receipt_ids, strict=True)
            ]
        receipts = await self._settle(record, receipts, [None] * len(receipts), is_synced=False)
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._record_acks(PreparedAck(context, record, valid, start_ns), partial(resolve, future))
        await future
        return [receipt if isinstance(receipt, PostroadError) else None for receipt in receipts]

    def prepare_ack(self, context: RequestContext, queue: str, receipt_ids: Sequence[str]) -> PreparedAck | None:
        """Acknowledgements that need no task: of leases that last, of messages with one priority. Else None. No effect."""
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None or record.is_ordered or self._backend.callbacks_of(record) is None:
            return None
        start_ns, receipts = started_ns(self._tracer), list[Receipt]()
        for receipt_id in receipt_ids:
            receipt = self._verify_receipt(record, receipt_id, Step.ACKED)
            if not isinstance(receipt, Receipt) or (receipts and receipt.priority != receipts[0].priority):
                return None
            receipts.append(receipt)
        return PreparedAck(context, record, receipts, start_ns)

    def start_ack(self, prepared: PreparedAck, on_acked: OnAcked) -> None:
        """Call `on_acked` once none of the messages can be delivered again and their events are durable, or with the error.

        Raises EngineUnavailable, Maintenance: then nothing is sent.
        """
        record, receipts = prepared.record, prepared.receipts
        backend = self._backend.callbacks_of(record)
        if backend is None:
            raise TypeError("prepared for a backend without callbacks")
        settlements: list[Settlement] = [(one.ref, None) for one in receipts]
        backend.settle_callback(record, receipts[0].priority, settlements, partial(self._on_settled, prepared, on_acked))

    def _on_settled(self, prepared: PreparedAck, on_acked: OnAcked, problem: Exception | None) -> None:
        if problem is not None:
            on_acked(problem)
            return
        try:
            self._record_acks(prepared, on_acked)
        except Exception as error:  # a bug: the caller must not wait for ever
            on_acked(error)

    def _record_acks(self, acks: PreparedAck, on_acked: OnAcked) -> None:
        """Record that these messages are done. Calls `on_acked` once the events are durable, and what the engine has written."""
        record, now = acks.record, self._clock()
        self._lease_log.record(record, [transition_of(one, Step.ACKED, now) for one in acks.receipts])
        events = [job_events.done(record, one, now) for one in acks.receipts]
        written = (record.stream, 0) if acks.receipts else None
        self._outbox.commit_callback(acks.context, events, partial(self._on_acks_recorded, acks, now, on_acked), written)

    def _on_acks_recorded(self, acks: PreparedAck, now: int, on_acked: OnAcked, problem: Exception | None) -> None:
        context, record, receipts, start_ns = acks
        try:
            if problem is None:
                metrics.acked.add(context.tenant, len(receipts))
                self._throughput.add_completed(record, len(receipts), context.caller.key_id)
                if self.reports is not None:
                    leased_at_ms = [one.leased_at_ms for one in receipts]
                    self.reports.record_acks(record.stream, context.caller.key_id, now, leased_at_ms)
                record_settled(self._tracer, context, record, "ack", receipts, start_ns)
        except Exception as error:
            problem = error
        on_acked(problem)

    async def remove(self, context: RequestContext, queue: str, receipt_ids: Sequence[str]) -> None:
        """Remove messages that were stored elsewhere: their jobs have not ended. Raises QueueNotFound, EngineUnavailable."""
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            await self._ordered.ack(context, record, receipt_ids, ends_jobs=False)
            return
        verified = self._verify(record, receipt_ids, Step.ACKED)
        receipts = await self._settle(record, verified, [None] * len(verified))
        valid = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
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
        record, start_ns = await self._record(context.tenant, queue), started_ns(self._tracer)
        if record.is_ordered:
            return await self._ordered.nack(context, record, receipt_ids, request)
        receipts = self._verify(record, receipt_ids, step)
        outcomes = [receipt if isinstance(receipt, PostroadError) else None for receipt in receipts]
        valid = [(index, receipt) for index, receipt in enumerate(receipts) if isinstance(receipt, Receipt)]
        entries = await self._backend.fetch(record, [receipt for _, receipt in valid])
        redelivered, transitions = dict[int, Receipt](), list[Transition]()
        for (index, receipt), entry in zip(valid, entries, strict=True):
            if isinstance(entry, PostroadError):
                outcomes[index] = entry
            elif is_final_nack(record.settings, receipt.attempt, request.action):
                outcomes[index] = await self._reject(record, context, receipt, entry, request)
                if outcomes[index] is None:
                    transitions.append(transition_of(receipt, step, now := self._clock(), now, receipt.deadline_ms))
            elif entry is None:
                outcomes[index] = _gone(receipt)
            else:
                redelivered[index] = receipt
        if redelivered:
            delays, failed = await self._redeliver(record, context, list(redelivered.values()), request)
            for index, receipt in redelivered.items():
                outcomes[index] = failed.get(receipt)
            now = self._clock()
            transitions += [
                transition_of(receipt, step, now, now + delay, receipt.deadline_ms) for receipt, delay in delays.items()
            ]
        await self._lease_log.commit(record, transitions)
        if self.reports is not None:
            self.reports.record_failures(record.stream, context.caller.key_id, len(transitions))
        settled = [receipt for index, receipt in valid if outcomes[index] is None]
        record_settled(self._tracer, context, record, "nack", settled, start_ns)
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
        await self._remove_dead(record, context, receipt.ref, receipt.priority, stored, letter)
        self._throughput.add_completed(record, 1, context.caller.key_id, failed=1)
        return None

    async def _redeliver(
        self, record: QueueRecord, context: RequestContext, receipts: Sequence[Receipt], request: NackRequest
    ) -> tuple[dict[Receipt, int], dict[Receipt, PostroadError]]:
        """Return the messages to the queue; their delays, and the errors of those whose lease is gone."""
        reason = request.reason or None
        if reason is not None:
            await asyncio.gather(*(self._dead_letters.record_failure(record, one.message_id, reason) for one in receipts))
        delays = [delay_after_nack_ms(record.settings, one.attempt, request.action, request.delay_ms) for one in receipts]
        settled = await self._settle(record, receipts, delays)
        returned = [(one, delay) for one, delay in zip(settled, delays, strict=True) if isinstance(one, Receipt)]
        now = self._clock()
        metrics.nacked.add(context.tenant, len(returned))
        self._throughput.add_completed(record, 0, context.caller.key_id, failed=len(returned))
        is_retry = request.action == "retry"
        events = [
            job_events.retried(record, one, now, now + delay, reason)
            if is_retry
            else job_events.requeued(record, one, now, reason)
            for one, delay in returned
        ]
        await self._outbox.commit(context, *events)
        failed = {one: why for one, why in zip(receipts, settled, strict=True) if isinstance(why, PostroadError)}
        return dict(returned), failed

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        """Deliver a message at once that waits for its next attempt. Raises EngineUnavailable, QueueNotFound."""
        if record.is_ordered:
            await self._ordered.promote(record, entry)
            return
        await self._backend.redeliver_now(record, entry, max(1, attempt))
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
        Raises QueueNotFound, EngineUnavailable, and BodyInvalid for a lease that is too long for the backend.
        """
        record = await self._record(context.tenant, queue)
        if record.is_ordered:
            outcomes = await self._ordered.extend(
                context, record, receipt_ids, visibility_timeout_ms, follows_extensions=follows_extensions
            )
            return [one if isinstance(one, PostroadError) else ExtendedLease(*one) for one in outcomes]
        self._lifecycle.check_lease(record, visibility_timeout_ms)
        receipts = self._verify(record, receipt_ids, Step.EXTENDED)
        if follows_extensions:
            receipts = [
                self._extended_receipt(record, text) or one if isinstance(one, LeaseExpired) else one
                for one, text in zip(receipts, receipt_ids, strict=True)
            ]
        receipts = [self._checked_extension(record, one, visibility_timeout_ms) for one in receipts]
        verified = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
        stored = await self._backend.fetch(record, verified)
        present = {receipt for receipt, entry in zip(verified, stored, strict=True) if isinstance(entry, Entry)}
        now = self._clock()
        deadline = now + visibility_timeout_ms
        failed = await self._extend(record, present, visibility_timeout_ms)
        failed |= {receipt: one for receipt, one in zip(verified, stored, strict=True) if isinstance(one, PostroadError)}
        present -= failed.keys()
        await self._record_extensions(record, present, now, deadline)
        self._outbox.record(context, *(job_events.extended(record, receipt, now, deadline) for receipt in present))
        extended: list[ExtendedLease | PostroadError] = []
        for receipt in receipts:
            if not isinstance(receipt, Receipt):
                extended.append(receipt or ReceiptInvalid("this is not a receipt of this queue"))
            elif receipt in failed:
                extended.append(failed[receipt])
            elif receipt not in present:
                extended.append(await self._gone(record, receipt))
            else:
                signed = self._signer.sign(record.owner, replace(receipt, deadline_ms=deadline).to_bytes())
                extended.append(ExtendedLease(signed, deadline))
        return extended

    def _checked_extension(self, record: QueueRecord, receipt: Verified, lease_ms: int) -> Verified:
        """The error of an extension with which the lease would last longer than the backend can keep it."""
        if isinstance(receipt, Receipt):
            try:
                self._lifecycle.check_lease(record, lease_ms, max(0, self._clock() - receipt.leased_at_ms))
            except BodyInvalid as problem:
                return problem
        return receipt

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
        [entry] = await self._backend.fetch(record, [receipt])
        if not isinstance(entry, Entry):
            raise entry or await self._gone(record, receipt)
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
        await self._backend.discard(record, priority, delivery)
        metrics.dead.add(record.tenant)
        await self._outbox.commit(context, job_events.dead(record, stored, letter))

    async def _settle(
        self, record: QueueRecord, receipts: Sequence[Verified], delays_ms: Sequence[int | None], *, is_synced: bool = True
    ) -> list[Verified]:
        """End leases: the messages are done, or delivered again after a delay. What is no receipt is left as it is, and each
        receipt whose lease is gone becomes its error. Raises EngineUnavailable. `is_synced`: as of `QueueBackend.settle`."""
        by_priority: dict[Priority, list[Settlement]] = {}
        for receipt, delay_ms in zip(receipts, delays_ms, strict=True):
            if isinstance(receipt, Receipt):
                by_priority.setdefault(receipt.priority, []).append((receipt.ref, delay_ms))
        failed: dict[DeliveryRef, PostroadError] = {}
        for priority, of_priority in by_priority.items():
            failed.update(await self._backend.settle(record, priority, of_priority, is_synced=is_synced))
        if not failed:
            return list(receipts)
        return [failed.get(one.ref, one) if isinstance(one, Receipt) else one for one in receipts]

    async def _extend(self, record: QueueRecord, receipts: Set[Receipt], lease_ms: int) -> dict[Receipt, PostroadError]:
        """Extend leases; the errors of those that are gone. Raises EngineUnavailable."""
        failed: dict[Receipt, PostroadError] = {}
        for priority in {one.priority for one in receipts}:
            refs = {one.ref: one for one in receipts if one.priority == priority}
            errors = await self._backend.extend(record, priority, list(refs), lease_ms)
            failed |= {refs[ref]: error for ref, error in errors.items()}
        return failed


def _gone(receipt: Receipt) -> AlreadySettled:
    return AlreadySettled(f"the message {receipt.message_id} is not in the queue any more: it was acknowledged or purged")
