"""Pulling: deliveries become leases. Delivery is at least once."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from postroad.api.queues import Message, Priority
from postroad.jetstream.deliveries import Delivery
from postroad.kernel.context import RequestContext
from postroad.kernel.json import invalid_field
from postroad.queues import metrics
from postroad.queues.backend import CallbackBackend
from postroad.queues.lease_operations import LeaseOperations
from postroad.queues.lease_plan import LeasePlan, transition_of
from postroad.queues.lease_spans import record_received, started_ns
from postroad.queues.lease_states import Step
from postroad.queues.ordered_leases import MakeMessage
from postroad.queues.records import MAX_ATTEMPTS_REACHED, QueueRecord
from postroad.queues.responses import message_of

_SLICE_BYTES_MAX = 256 * 1024  # of payloads that are decoded without a pause

T = TypeVar("T")
OnPulled = Callable[[list[Any] | Exception], None]  # messages as `make` of the pull makes them


class Pull(NamedTuple):
    """A pull without waiting of a queue without order and priorities. `make`: of messages, as in `pull_as`."""

    context: RequestContext
    record: QueueRecord
    size: int  # messages at most
    lease_ms: int
    make: MakeMessage[Any]


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
        visibility_timeout_ms = _lease_ms(record, visibility_timeout_ms)
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
        plan, start_ns = self._plan(make, record, visibility_timeout_ms, priority), started_ns(self._tracer)
        unread_bytes = 0
        for one in deliveries:
            unread_bytes += len(one.payload)
            if unread_bytes > _SLICE_BYTES_MAX:
                unread_bytes = 0
                await self._let_others_run(record, priority, deliveries)
            plan.add(one)
        await self._backend.lease(record, priority, plan.leases)
        self._record_leases(context, plan, start_ns)
        if plan.expired:
            await self._backend.settle(record, priority, plan.expired)
            self._lease_log.record(record, [transition_of(ref, Step.ACKED, plan.now) for ref, _ in plan.expired])
        for delivery, stored in plan.exhausted:
            letter = await self._dead_letters.store(
                record, stored, delivery.stream_sequence, delivery.attempt - 1, MAX_ATTEMPTS_REACHED
            )
            await self._remove_dead(record, context, delivery, priority, stored, letter)
            self._lease_log.record(record, [transition_of(delivery, Step.ACKED, plan.now)])
        return plan.messages

    def _plan(self, make: "MakeMessage[T]", record: QueueRecord, lease_ms: int, priority: Priority) -> LeasePlan[T]:
        first_lease_ms = self._lease_log.first_lease_ms
        return LeasePlan(make, record, priority, self._signer, self._tracer, first_lease_ms, now=self._clock(), lease_ms=lease_ms)

    def _record_leases(self, context: RequestContext, plan: LeasePlan[T], start_ns: int) -> None:
        """Record that the messages of the plan are leased."""
        record = plan.record
        for waited_ms in plan.waits_ms:
            metrics.queue_wait.observe(waited_ms / 1000)
        self._lease_log.record(record, plan.transitions)
        if self.reports is not None:
            self.reports.record_leases(record.stream, record.incarnation, context.caller.key_id, plan.transitions)
        self._outbox.record(context, *plan.events)
        metrics.leased.add(context.tenant, len(plan.messages))
        record_received(self._tracer, context, record, plan.receipts, start_ns)

    # Without a task

    def prepare_pull(
        self,
        context: RequestContext,
        queue: str,
        *,
        count: int,
        visibility_timeout_ms: int | None,
        make: MakeMessage[Any] = message_of,
    ) -> Pull | None:
        """A pull of what is ready now that needs no task, of a queue without order and priorities; else None. No effect.

        Raises BodyInvalid.
        """
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None or record.is_ordered or record.has_priority or self._backend.callbacks_of(record) is None:
            return None
        self._lifecycle.check_lease(record, visibility_timeout_ms)
        return Pull(context, record, count, _lease_ms(record, visibility_timeout_ms), make)

    def start_pull(self, pull: Pull, on_pulled: OnPulled) -> None:
        """Call `on_pulled` with the messages, or with the error. Raises Maintenance."""
        backend = self._backend.callbacks_of(pull.record)
        if backend is None:
            raise TypeError("prepared for a backend without callbacks")
        if self.reports is not None:
            self.reports.record_pull(pull.record.stream, pull.context.caller.key_id, self._clock())
        backend.receive_callback(pull.record, pull.size, partial(self._on_received, backend, pull, on_pulled))

    def _on_received(
        self, backend: CallbackBackend, pull: Pull, on_pulled: OnPulled, received: Sequence[Delivery] | Exception
    ) -> None:
        if isinstance(received, Exception):
            on_pulled(received)
            return
        outcome: list[Any] | Exception
        try:
            leased = self._lease_now(backend, pull, received)
            if leased is None:
                task = asyncio.get_running_loop().create_task(self._finish_pull(pull, on_pulled, received))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            if len(received) < pull.size:
                self._shares.consumers_wait(pull.record)
            outcome = leased
        except Exception as error:  # bugs, too: the caller must not wait for ever
            outcome = error
        on_pulled(outcome)

    def _lease_now(self, backend: CallbackBackend, pull: Pull, deliveries: Sequence[Delivery]) -> list[Any] | None:
        """Lease the deliveries; None without effect if that needs a task."""
        if sum(len(one.payload) for one in deliveries) > _SLICE_BYTES_MAX:
            return None
        record, start_ns = pull.record, started_ns(self._tracer)
        plan = self._plan(pull.make, record, pull.lease_ms, "normal")
        for one in deliveries:
            plan.add(one)
        if not plan.is_ordinary:
            return None
        if deliveries:
            backend.lease_now(record, "normal", plan.leases)
            self._record_leases(pull.context, plan, start_ns)
        return plan.messages

    async def _finish_pull(self, pull: Pull, on_pulled: OnPulled, deliveries: Sequence[Delivery]) -> None:
        context, record, size, lease_ms, make = pull
        outcome: list[Any] | Exception
        try:
            outcome = await self._lease(make, record, context, deliveries, lease_ms)
            if len(deliveries) < size:
                self._shares.consumers_wait(record)
            if not outcome:  # all became dead letters or were expired, and there may be others
                outcome = await self.pull_as(make, context, record.name, count=size, visibility_timeout_ms=lease_ms, wait_ms=0)
        except Exception as error:
            outcome = error
        on_pulled(outcome)

    async def _let_others_run(self, record: QueueRecord, priority: Priority, deliveries: Sequence[Delivery]) -> None:
        """If the caller is cancelled meanwhile, its deliveries return to the queue."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self._backend.release(record, [(priority, deliveries)])
            raise


def _lease_ms(record: QueueRecord, visibility_timeout_ms: int | None) -> int:
    return record.settings.visibility_timeout_ms or 0 if visibility_timeout_ms is None else visibility_timeout_ms
