"""Pulling: deliveries become leases. Delivery is at least once."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import structlog

from postroad.api.queues import Message, Priority
from postroad.jetstream.deliveries import Delivery, DeliveryRef
from postroad.kernel.context import RequestContext
from postroad.kernel.json import invalid_field
from postroad.queues import job_events, metrics
from postroad.queues.backend import Settlement
from postroad.queues.events import JobEvent
from postroad.queues.lease_operations import LeaseOperations, transition_of
from postroad.queues.lease_spans import record_received, started_ns
from postroad.queues.lease_states import Step, Transition
from postroad.queues.ordered_leases import MakeMessage
from postroad.queues.records import (
    MAX_ATTEMPTS_REACHED,
    QueueRecord,
    Receipt,
    StoredMessage,
    TokenRef,
    read_message,
    trace_of,
)
from postroad.queues.responses import message_of
from postroad.queues.rules import is_last_attempt

_UNREADABLE_RETRY_MS = 3_600_000
_SLICE_BYTES_MAX = 256 * 1024  # of payloads that are decoded without a pause

T = TypeVar("T")

log = structlog.get_logger("postroad.queues")


class Consumer(LeaseOperations):
    """Pulls messages, and ends or extends their leases."""

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
        """Lease up to `count` messages; wait up to `wait_ms` for the first. Raises QueueNotFound, EngineUnavailable, and
        BodyInvalid for a lease that is too long for the backend.

        Of an ordered queue, at most `per_group` of each group; a repeated `receive_id` returns the same messages.
        Raises BodyInvalid if these are given for another queue.
        """
        return await self.pull_as(
            message_of,
            context,
            queue,
            count=count,
            visibility_timeout_ms=visibility_timeout_ms,
            wait_ms=wait_ms,
            per_group=per_group,
            receive_id=receive_id,
        )

    async def pull_as(
        self,
        make: "MakeMessage[T]",
        context: RequestContext,
        queue: str,
        *,
        count: int,
        visibility_timeout_ms: int | None,
        wait_ms: int,
        per_group: int | None = None,
        receive_id: str | None = None,
    ) -> list[T]:
        """Like `pull`, with messages made of the stored one, the attempt, the receipt, the time of the first lease and, in an
        ordered queue, the sequence."""
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        if self.reports is not None:
            self.reports.record_pull(record.stream, context.caller.key_id, self._clock())
        self._lifecycle.check_lease(record, visibility_timeout_ms)
        if visibility_timeout_ms is None:
            visibility_timeout_ms = record.settings.visibility_timeout_ms or 0
        if record.is_ordered:
            return await self._ordered.pull(
                make,
                context,
                record,
                count=count,
                lease_ms=visibility_timeout_ms,
                wait_ms=wait_ms,
                per_group=per_group,
                receive_id=receive_id,
            )
        if per_group is not None or receive_id is not None:
            field = "receiveId" if per_group is None else "maxPerGroup"
            raise invalid_field(f"$.{field}", f"the queue {record.name!r} is not ordered")
        while not record.has_priority:
            [(_, deliveries)] = await self._backend.receive(record, count, max(0.0, until - loop.time()))
            messages = await self._lease(make, record, context, deliveries, visibility_timeout_ms)
            if len(deliveries) < count:
                self._shares.consumers_wait(record)
            if messages:
                return messages
            # Nothing, although there is time left: all deliveries became dead letters or were expired, or the queue has changed.
            record = self._lifecycle.cached(context.tenant, queue) or record
            if not deliveries and (not record.has_priority or loop.time() >= until):
                return messages
        return await self._pull_in_order(make, record, context, count, visibility_timeout_ms, until)

    async def _pull_in_order(
        self,
        make: "MakeMessage[T]",
        record: QueueRecord,
        context: RequestContext,
        count: int,
        visibility_timeout_ms: int,
        until: float,
    ) -> list[T]:
        """Lease messages in the order of their priorities."""
        loop = asyncio.get_running_loop()
        while True:
            groups = list(await self._backend.receive(record, count, until - loop.time()))
            messages: list[T] = []
            while groups:
                priority, deliveries = groups.pop(0)
                try:
                    messages += await self._lease(make, record, context, deliveries, visibility_timeout_ms, priority)
                except BaseException:
                    await self._backend.release(record, groups)
                    raise
                if not groups and messages:
                    return messages
            if loop.time() >= until:
                return messages

    async def _lease(
        self,
        make: "MakeMessage[T]",
        record: QueueRecord,
        context: RequestContext,
        deliveries: Sequence[Delivery],
        visibility_timeout_ms: int,
        priority: Priority = "normal",
    ) -> list[T]:
        """Lease the deliveries. Messages without attempts left become dead letters; expired ones are deleted."""
        now, start_ns = self._clock(), started_ns(self._tracer)
        messages: list[T] = []
        receipts: list[Receipt] = []
        retention_ms = record.settings.retention_ms
        leased: list[JobEvent] = []
        leases: list[tuple[Delivery, int]] = []
        transitions: list[Transition] = []
        exhausted: list[tuple[DeliveryRef, StoredMessage]] = []
        unread_bytes = 0
        expired: list[Settlement] = []
        for one in deliveries:
            unread_bytes += len(one.payload)
            if unread_bytes > _SLICE_BYTES_MAX:
                unread_bytes = 0
                await self._let_others_run(record, priority, deliveries)
            stored = _readable(one, record)
            if stored is not None and (
                0 < stored.expires <= now or (retention_ms and one.ref.stored_at_ns // 1_000_000 + retention_ms <= now)
            ):
                expired.append((one.ref, None))
                continue
            if stored is not None and is_last_attempt(record.settings, one.ref.attempt - 1):
                exhausted.append((one.ref, stored))
                continue
            leases.append((one, visibility_timeout_ms if stored else _UNREADABLE_RETRY_MS))
            if stored is None:
                transitions.append(transition_of(one.ref, Step.RETRIED, now, now + _UNREADABLE_RETRY_MS))
            else:
                first_ms = now if one.ref.attempt == 1 else self._lease_log.first_lease_ms(record, one.ref.stream_sequence) or now
                transitions.append(transition_of(one.ref, Step.LEASED, now, now + visibility_timeout_ms, first_ms=first_ms))
                trace = trace_of(self._tracer, stored)
                receipt = _receipt(one.ref, stored, now, now + visibility_timeout_ms, priority, trace)
                signed = self._signer.sign(record.owner, receipt.to_bytes())
                messages.append(make(stored, one.ref.attempt, signed, first_ms, None))
                if receipt.attempt == 1:
                    metrics.queue_wait.observe(max(0, now - stored.at) / 1000)
                leased.append(job_events.leased(record, receipt, stored.at))
                receipts.append(receipt)
        await self._backend.lease(record, priority, leases)
        self._lease_log.record(record, transitions)
        if self.reports is not None:
            self.reports.record_leases(record.stream, record.incarnation, context.caller.key_id, transitions)
        self._outbox.record(context, *leased)
        metrics.leased.add(context.tenant, len(messages))
        record_received(self._tracer, context, record, receipts, start_ns)
        if expired:
            await self._backend.settle(record, priority, expired)
            self._lease_log.record(record, [transition_of(ref, Step.ACKED, now) for ref, _ in expired])
        for delivery, stored in exhausted:
            letter = await self._dead_letters.store(
                record, stored, delivery.stream_sequence, delivery.attempt - 1, MAX_ATTEMPTS_REACHED
            )
            await self._remove_dead(record, context, delivery, priority, stored, letter)
            self._lease_log.record(record, [transition_of(delivery, Step.ACKED, now)])
        return messages

    async def _let_others_run(self, record: QueueRecord, priority: Priority, deliveries: Sequence[Delivery]) -> None:
        """If the caller is cancelled meanwhile, its deliveries return to the queue."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self._backend.release(record, [(priority, deliveries)])
            raise


def _readable(delivery: Delivery, record: QueueRecord) -> StoredMessage | None:
    """None for a message that another client of the NATS server wrote: it must not block the queue."""
    try:
        return read_message(delivery.payload)
    except ValueError:
        log.error("message_unreadable", stream=record.stream, sequence=delivery.ref.stream_sequence)
        return None


def _receipt(
    delivery: DeliveryRef, stored: StoredMessage, leased_at_ms: int, deadline_ms: int, priority: Priority, trace: bytes
) -> Receipt:
    return Receipt(
        stream_sequence=delivery.stream_sequence,
        consumer_sequence=delivery.consumer_sequence,
        attempt=delivery.attempt,
        stored_at_ns=delivery.stored_at_ns,
        leased_at_ms=leased_at_ms,
        deadline_ms=deadline_ms,
        message_id=stored.id,
        job_id=stored.job,
        priority=priority,
        token=delivery.token if isinstance(delivery, TokenRef) else b"",
        trace=trace,
    )
