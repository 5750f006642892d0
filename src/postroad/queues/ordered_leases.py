"""Leases of messages in ordered queues: pull, ack, nack, extend. The dispatcher of the queue decides; any process can ask it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from postroad.api.queues import AlreadySettled, JobWasCancelled, LeaseExpired, ReceiptInvalid
from postroad.api.receipts import NackRequest
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.spans import Tracer
from postroad.queues import job_events, metrics
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.dispatch_routing import (
    WAIT_SECONDS,
    CountsCall,
    DispatchRouting,
    PullCall,
    PurgeCall,
    operate_call,
)
from postroad.queues.group_state import Action, Operation, OperationResult, OperationStatus
from postroad.queues.group_turns import DispatchCounts, LeasedMessage
from postroad.queues.lease_spans import record_received, record_settled, started_ns
from postroad.queues.lease_states import Step
from postroad.queues.records import MAX_ATTEMPTS_REACHED, QueueRecord, Receipt, StoredMessage, decode_message, trace_of
from postroad.queues.rules import delay_after_nack_ms, group_token, is_final_nack
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

REJECTED = "rejected by the consumer"
_DEAD_LETTER_MS = 30_000  # how long the group is held while a dead letter is stored
_ACTIONS = {"retry": Action.RETRY, "requeue": Action.REQUEUE}
_RETURNED_BY = {Step.RETRIED: "nack `retry`", Step.REQUEUED: "nack `requeue`", Step.PROMOTED: "nack `retry`"}

T = TypeVar("T")
MakeMessage = Callable[[StoredMessage, int, str, int, "int | None"], T]


class OrderedLeases:
    def __init__(
        self,
        connection: Connection,
        routing: DispatchRouting,
        dead_letters: DeadLetters,
        cancelled: CancelledMessages,
        outbox: Outbox,
        signer: Signer,
        throughput: Throughput,
        clock: Clock,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._connection, self._routing, self._dead_letters, self._cancelled = connection, routing, dead_letters, cancelled
        self._outbox, self._signer, self._throughput, self._clock = outbox, signer, throughput, clock
        self._waiting: dict[str, int] = {}

    def waiting_pulls(self) -> dict[str, int]:
        """Pulls of this process that wait for a message, by stream."""
        return dict(self._waiting)

    async def pull(
        self,
        make: "MakeMessage[T]",
        context: RequestContext,
        record: QueueRecord,
        *,
        count: int,
        lease_ms: int,
        wait_ms: int,
        per_group: int | None,
        receive_id: str | None,
    ) -> list[T]:
        """Lease up to `count` messages. Raises QueueNotFound, EngineUnavailable, Overloaded."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        receive = "" if receive_id is None else group_token(f"{context.caller.key_id}\0{receive_id}")
        self._waiting[record.stream] = self._waiting.get(record.stream, 0) + 1
        try:
            while True:
                call = PullCall(
                    tenant=record.tenant,
                    queue=record.name,
                    incarnation=record.incarnation,
                    count=count,
                    lease_ms=lease_ms,
                    wait_seconds=max(0.0, min(WAIT_SECONDS, until - loop.time())),
                    per_group=per_group or count,
                    receive=receive,
                )
                reply = await self._routing.call(record, call)
                if reply.messages or loop.time() >= until:
                    return await self._received(make, context, record, reply.messages)
        finally:
            left = self._waiting.pop(record.stream) - 1
            if left:
                self._waiting[record.stream] = left

    async def _received(
        self, make: "MakeMessage[T]", context: RequestContext, record: QueueRecord, leased: Sequence[LeasedMessage]
    ) -> list[T]:
        start_ns = started_ns(self._tracer)
        messages: list[T] = []
        events, receipts = [], list[Receipt]()
        for one in leased:
            payload = one.payload
            if not payload:  # too large for the reply
                entry = await stream_reader.at(self._connection, record.stream, one.lease.sequence)
                if entry is None:
                    continue
                payload = entry.payload
            stored, lease = decode_message(payload), one.lease
            receipt = Receipt(
                stream_sequence=lease.sequence,
                consumer_sequence=0,
                attempt=lease.attempt,
                stored_at_ns=one.stored_at_ms * 1_000_000,
                leased_at_ms=lease.leased_ms,
                deadline_ms=lease.until_ms,
                message_id=stored.id,
                job_id=stored.job,
                group=one.group,
                trace=trace_of(self._tracer, stored),
            )
            signed = self._signer.sign(record.owner, receipt.to_bytes())
            messages.append(make(stored, lease.attempt, signed, lease.first_ms, lease.sequence))
            if lease.attempt == 1:
                metrics.queue_wait.observe(max(0, lease.leased_ms - stored.at) / 1000)
            events.append(job_events.leased(record, receipt, stored.at))
            receipts.append(receipt)
        self._outbox.record(context, *events)
        metrics.leased.add(context.tenant, len(messages))
        record_received(self._tracer, context, record, receipts, start_ns)
        return messages

    # Receipts

    def _verify(self, record: QueueRecord, receipt_id: str, *, checks_deadline: bool = True) -> Receipt | PostroadError:
        try:
            receipt = Receipt.from_bytes(self._signer.verify(record.owner, receipt_id))
        except (SignatureInvalid, ValueError):
            return ReceiptInvalid("this is not a receipt of this queue")
        if not receipt.group:
            return ReceiptInvalid("this is not a receipt of an ordered queue")
        if checks_deadline and self._clock() > receipt.deadline_ms:
            return LeaseExpired(f"the lease ended at {rfc3339(receipt.deadline_ms)}")
        return receipt

    async def _operate(
        self, record: QueueRecord, receipts: Sequence[Receipt], action: Action, until_ms: Sequence[int] | int = 0
    ) -> list[OperationResult]:
        if not receipts:
            return []
        untils = [until_ms] * len(receipts) if isinstance(until_ms, int) else until_ms
        operations = [
            Operation(one.group, one.stream_sequence, one.attempt, action, until)
            for one, until in zip(receipts, untils, strict=True)
        ]
        return (await self._routing.call(record, operate_call(record, operations))).results

    async def ack(
        self,
        context: RequestContext,
        record: QueueRecord,
        receipt_ids: Sequence[str],
        *,
        ends_jobs: bool = True,
        follows_extensions: bool = False,
    ) -> list[PostroadError | None]:
        """Settle messages; the error of each receipt that does not hold its message any more. Idempotent until it expires.

        `follows_extensions`: a receipt is accepted as long as the lease lasts, as extended with another receipt of it.
        """
        start_ns = started_ns(self._tracer)
        receipts = [self._verify(record, one, checks_deadline=not follows_extensions) for one in receipt_ids]
        valid = [one for one in receipts if isinstance(one, Receipt)]
        results = await self._operate(record, valid, Action.ACK)
        now = self._clock()
        # Of a lease that ended on the way, the message may have been settled by another consumer.
        errors = {
            receipt: await self._error_of(record, receipt, result, is_ack=follows_extensions or now < receipt.deadline_ms)
            for receipt, result in zip(valid, results, strict=True)
        }
        done = [receipt for receipt in valid if errors[receipt] is None]
        if ends_jobs:
            await self._outbox.commit(context, *(job_events.done(record, receipt, now) for receipt in done))
            metrics.acked.add(context.tenant, len(done))
            record_settled(self._tracer, context, record, "ack", done, start_ns)
        self._throughput.add_completed(record, len(done), context.caller.key_id if ends_jobs else "")
        return [errors[one] if isinstance(one, Receipt) else one for one in receipts]

    async def _error_of(
        self, record: QueueRecord, receipt: Receipt, result: OperationResult, *, is_ack: bool = False
    ) -> PostroadError | None:
        if result.status is OperationStatus.DONE:
            return None
        if result.status is OperationStatus.EXPIRED:
            return LeaseExpired("the lease has ended; the message is or will be delivered again")
        if result.status is OperationStatus.RETURNED:
            return AlreadySettled(f"the lease was ended with {_RETURNED_BY.get(Step(result.step), 'a nack')}")
        if is_ack and not await self._dead_letters.has(record, receipt.message_id):
            return None  # acknowledged before
        return await self.gone(record, receipt)

    async def gone(self, record: QueueRecord, receipt: Receipt) -> PostroadError:
        """The error for a receipt whose message is not in the queue any more."""
        cancelled = await self._cancelled.find(record, receipt.message_id)
        if cancelled is not None and cancelled.letter.cancelled_at >= receipt.leased_at_ms:
            return JobWasCancelled(f"the job was cancelled at {rfc3339(cancelled.letter.cancelled_at)}")
        return AlreadySettled(
            f"the message {receipt.message_id} is not in the queue any more: it was acknowledged, dead-lettered or purged"
        )

    async def nack(
        self, context: RequestContext, record: QueueRecord, receipt_ids: Sequence[str], request: NackRequest
    ) -> list[PostroadError | None]:
        """Requeue, retry or dead-letter messages; the error of each receipt that does not hold its message any more."""
        start_ns = started_ns(self._tracer)
        receipts = [self._verify(record, one) for one in receipt_ids]
        outcomes: list[PostroadError | None] = [None if isinstance(one, Receipt) else one for one in receipts]
        returned: list[tuple[int, Receipt]] = []
        for index, receipt in enumerate(receipts):
            if not isinstance(receipt, Receipt):
                continue
            if is_final_nack(record.settings, receipt.attempt, request.action):
                outcomes[index] = await self._reject(context, record, receipt, request)
            else:
                returned.append((index, receipt))
        for (index, _), error in zip(
            returned, await self._return(context, record, [one for _, one in returned], request), strict=True
        ):
            outcomes[index] = error
        settled = [one for one, error in zip(receipts, outcomes, strict=True) if error is None and isinstance(one, Receipt)]
        record_settled(self._tracer, context, record, "nack", settled, start_ns)
        return outcomes

    async def _return(
        self, context: RequestContext, record: QueueRecord, receipts: Sequence[Receipt], request: NackRequest
    ) -> list[PostroadError | None]:
        if not receipts:
            return []
        reason = request.reason or None
        if reason is not None:
            await asyncio.gather(*(self._dead_letters.record_failure(record, one.message_id, reason) for one in receipts))
        now = self._clock()
        untils = [now + delay_after_nack_ms(record.settings, one.attempt, request.action, request.delay_ms) for one in receipts]
        results = await self._operate(record, receipts, _ACTIONS[request.action], untils)
        errors = [await self._error_of(record, one, result) for one, result in zip(receipts, results, strict=True)]
        is_retry, events = request.action == "retry", []
        for receipt, result, error in zip(receipts, results, errors, strict=True):
            if error is None:
                events.append(
                    job_events.retried(record, receipt, now, result.until_ms, reason)
                    if is_retry
                    else job_events.requeued(record, receipt, now, reason)
                )
        await self._outbox.commit(context, *events)
        metrics.nacked.add(context.tenant, len(events))
        return errors

    async def _reject(
        self, context: RequestContext, record: QueueRecord, receipt: Receipt, request: NackRequest
    ) -> PostroadError | None:
        """Dead-letter a message: it stays leased until the dead letter is stored. A crash in between only repeats it."""
        [held] = await self._operate(record, [receipt], Action.EXTEND, self._clock() + _DEAD_LETTER_MS)
        if held.status is OperationStatus.SETTLED and await self._dead_letters.has(record, receipt.message_id):
            return None
        error = await self._error_of(record, receipt, held)
        if error is not None:
            return error
        entry = await self._stored(record, receipt)
        if entry is None:
            return await self.gone(record, receipt)
        stored = decode_message(entry.payload)
        reason = (request.reason or REJECTED) if request.action == "dlq" else MAX_ATTEMPTS_REACHED
        letter = await self._dead_letters.store(
            record, stored, receipt.stream_sequence, receipt.attempt, reason, request.reason or None
        )
        await self._operate(record, [receipt], Action.ACK)
        metrics.dead.add(record.tenant)
        await self._outbox.commit(context, job_events.dead(record, stored, letter))
        self._throughput.add_completed(record, 1, context.caller.key_id, failed=1)
        return None

    async def dead_letter_exhausted(self, record: QueueRecord, stored: StoredMessage, entry: Entry, attempts: int) -> None:
        """Store the dead letter of a message that has failed too often, for the dispatcher, which settles it then."""
        letter = await self._dead_letters.store(record, stored, entry.sequence, attempts, MAX_ATTEMPTS_REACHED)
        metrics.dead.add(record.tenant)
        await self._outbox.commit(None, job_events.dead(record, stored, letter))
        self._throughput.add_completed(record, 1)

    async def extend(
        self,
        context: RequestContext,
        record: QueueRecord,
        receipt_ids: Sequence[str],
        visibility_timeout_ms: int,
        *,
        follows_extensions: bool,
    ) -> list[tuple[str, int] | PostroadError]:
        """Extend leases; a new receipt and its deadline, or the error, for each receipt."""
        receipts = [self._verify(record, one, checks_deadline=not follows_extensions) for one in receipt_ids]
        valid = [one for one in receipts if isinstance(one, Receipt)]
        entries = await asyncio.gather(*(self._stored(record, one) for one in valid))
        present = [one for one, entry in zip(valid, entries, strict=True) if entry is not None]
        now = self._clock()
        deadline = now + visibility_timeout_ms
        results = dict(zip(present, await self._operate(record, present, Action.EXTEND, deadline), strict=True))
        extended: list[tuple[str, int] | PostroadError] = []
        events = []
        for receipt in receipts:
            if not isinstance(receipt, Receipt):
                extended.append(receipt)
                continue
            result = results.get(receipt)
            error = await (self.gone(record, receipt) if result is None else self._error_of(record, receipt, result))
            if error is None:
                signed = self._signer.sign(record.owner, replace(receipt, deadline_ms=deadline).to_bytes())
                extended.append((signed, deadline))
                events.append(job_events.extended(record, receipt, now, deadline))
            else:
                extended.append(error)
        self._outbox.record(context, *events)
        return extended

    async def held_lease(self, record: QueueRecord, receipt_id: str) -> Receipt:
        """The lease of a receipt, while it lasts. Raises ReceiptInvalid, LeaseExpired, AlreadySettled, JobWasCancelled."""
        receipt = self._verify(record, receipt_id)
        if not isinstance(receipt, Receipt):
            raise receipt
        if await self._stored(record, receipt) is None:
            raise await self.gone(record, receipt)
        [result] = await self._operate(record, [receipt], Action.CHECK)
        error = await self._error_of(record, receipt, result)
        if error is not None:
            raise error
        return receipt

    async def _stored(self, record: QueueRecord, receipt: Receipt) -> Entry | None:
        entry = await stream_reader.at(self._connection, record.stream, receipt.stream_sequence)
        return entry if entry is not None and entry.at_ms == receipt.stored_at_ns // 1_000_000 else None

    # By message

    async def promote(self, record: QueueRecord, entry: Entry) -> None:
        """Make a message due that waits for its next attempt."""
        await self._routing.call(record, operate_call(record, [_by_message(entry, Action.PROMOTE)]))

    async def remove(self, record: QueueRecord, entry: Entry) -> bool:
        """Settle a message that is taken out of the queue, before it is deleted; false if it was settled before."""
        reply = await self._routing.call(record, operate_call(record, [_by_message(entry, Action.REMOVE)]))
        return reply.results[0].status is OperationStatus.DONE

    # Whole queue

    async def counts(self, record: QueueRecord) -> DispatchCounts:
        """Raises EngineUnavailable, QueueNotFound."""
        call = CountsCall(tenant=record.tenant, queue=record.name, incarnation=record.incarnation)
        reply = await self._routing.call(record, call)
        return reply.counts or DispatchCounts(0, 0, 0, 0, 0, 0)

    async def purge(self, record: QueueRecord) -> int:
        """Delete all messages and leases; return the number of messages."""
        call = PurgeCall(tenant=record.tenant, queue=record.name, incarnation=record.incarnation)
        return (await self._routing.call(record, call)).purged


def _by_message(entry: Entry, action: Action) -> Operation:
    return Operation(entry.subject.rpartition(".")[2], entry.sequence, 0, action)
