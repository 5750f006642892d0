"""The deliveries that this process received from RabbitMQ and holds: their leases, and what requests do with them."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

import msgspec

from postroad.api.queues import LeaseExpired, QueueNotFound
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_states import Step, Transition
from postroad.queues.rabbitmq import metrics
from postroad.queues.rabbitmq.connection import RabbitConnection
from postroad.queues.rabbitmq.leases import HeldLease, LeaseItem, LeaseReply, LeaseRequest, Leases, MessageKey
from postroad.queues.rabbitmq.markers import AckMarkers
from postroad.queues.rabbitmq.messages import ReceivedMessage, returned, sequence_of
from postroad.queues.rabbitmq.names import main_queue
from postroad.queues.rabbitmq.receiving import QueueReceiver, RawDelivery
from postroad.queues.records import QueueRecord, StoredMessage, encode_message

_OK, _EXPIRED = ("", ""), (LeaseExpired.code, "the lease has ended: the message is or will be delivered again")


class Publish(Protocol):
    """Return once the queue in RabbitMQ has the message. Raises BackendUnavailable."""

    def __call__(self, record: QueueRecord, message: StoredMessage) -> Awaitable[None]: ...


class LeaseOwner:
    def __init__(
        self,
        rabbit: RabbitConnection,
        publish: Publish,
        markers: AckMarkers,
        table: ReplicatedTable[QueueRecord],
        lease_log: LeaseLog,
        clock: Clock,
        *,
        prefix: str,
        held_max: int,
    ) -> None:
        self._rabbit, self._publish, self._markers, self._lease_log, self._clock = rabbit, publish, markers, lease_log, clock
        self._prefix, self._held_max = prefix, held_max
        self.leases = Leases(self._return_expired)
        self.receivers: dict[str, QueueReceiver] = {}  # by incarnation
        self._records: dict[str, QueueRecord] = {}  # by incarnation, of the receivers
        table.on_change(self._queue_changed)

    # Receivers

    def receiver(self, record: QueueRecord) -> QueueReceiver:
        found = self.receivers.get(record.incarnation)
        if found is None:
            key = record.incarnation
            found = QueueReceiver(
                self._rabbit,
                main_queue(self._prefix, record),
                self._held_max,
                lambda generation: self._channel_lost(key, generation),
                lambda delivery: self.return_stray(key, delivery),
            )
            self.receivers[key] = found
        self._records[record.incarnation] = record
        if found.is_paused != record.is_paused:
            found.set_paused(is_paused=record.is_paused)
        return found

    def _channel_lost(self, key: str, generation: int) -> None:
        """RabbitMQ has returned the deliveries of the channel: their leases are over."""
        lost, record = self.leases.drop_channel(key, generation), self._records.get(key)
        if record is not None:
            self._record_ends(record, [(_key_of(one.message)[0], one.message.attempt) for one in lost])

    def record_suppressed(self, record: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        """Count the last leases of messages as over: the worker that acknowledged them may have died before it said so."""
        leases = self._lease_log.queue(record)
        sequences = [_key_of(one)[0] for one in messages]
        if leases is not None:
            self._record_ends(record, [(one, attempt) for one in sequences if (attempt := leases.latest_attempt(one))])

    def _record_ends(self, record: QueueRecord, deliveries: Sequence[tuple[int, int]]) -> None:
        """Count leases as over, by the number and the attempt of the message."""
        now = self._clock()
        if deliveries:
            self._lease_log.record(record, [Transition(sequence, attempt, Step.ACKED, now) for sequence, attempt in deliveries])

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        if record is not None and record.state is not RecordState.DELETING:
            if record.incarnation in self.receivers:
                self.receiver(record)
            return
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        for incarnation in [key for key, known in self._records.items() if known.stream == stream]:
            receiver = self.receivers.pop(incarnation)
            self._records.pop(incarnation)
            self.leases.drop_queue(incarnation)
            closing = asyncio.ensure_future(receiver.close(QueueNotFound("the queue was deleted")))
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    def waiting_pulls(self) -> Mapping[str, int]:
        return {self._records[key].stream: one.waiting for key, one in self.receivers.items() if one.waiting}

    # Requests

    async def execute(self, request: LeaseRequest) -> LeaseReply:
        """Operations on leases of this process."""
        record = self._records.get(request.incarnation)
        receiver = self.receivers.get(request.incarnation)
        if record is None or receiver is None:
            return LeaseReply(results=[_EXPIRED] * len(request.items))
        if request.action == "held":
            return LeaseReply(held=[_key_of(one.message) for one in self.leases.of_queue(request.incarnation)])
        if request.action == "settle":
            return LeaseReply(results=await self._settle_held(record, receiver, request.items))
        results, messages = [], []
        for one in request.items:
            held = self.leases.get(request.incarnation, one.generation, one.tag)
            results.append(_EXPIRED if held is None else _OK)
            if held is not None and request.action == "extend":
                self.leases.hold(held, one.delay_ms / 1000)
            messages.append(b"" if held is None or request.action != "fetch" else encode_message(held.message.stored))
        return LeaseReply(results=results, messages=messages if request.action == "fetch" else [])

    async def _settle_held(
        self, record: QueueRecord, receiver: QueueReceiver, items: Sequence[LeaseItem]
    ) -> list[tuple[str, str]]:
        popped = [self.leases.pop(record.incarnation, one.generation, one.tag) for one in items]
        leases = {index: one for index, one in enumerate(popped) if one is not None}
        done = {index: one for index, one in leases.items() if items[index].delay_ms < 0}
        outcomes: dict[int, PostroadError | None] = {}
        try:
            await self._acknowledge(record, receiver, done, outcomes)
            for index, one in leases.items():
                if index not in done:
                    outcomes[index] = await self._return(record, receiver, one, items[index].delay_ms)
        finally:  # also if this is cancelled, or fails: without a timer, RabbitMQ would wait for them
            for one in leases.values():
                if receiver.holds(*one.raw.key):
                    self.leases.resume(one)
            metrics.leases.set(len(self.leases))
        return [_result(outcomes[index]) if index in outcomes else _EXPIRED for index in range(len(items))]

    async def _acknowledge(
        self,
        record: QueueRecord,
        receiver: QueueReceiver,
        done: Mapping[int, HeldLease],
        outcomes: dict[int, PostroadError | None],
    ) -> None:
        """End leases of messages that are done, and add the outcome of each.

        AMQP does not confirm acks. The marker of a message drops it if it is delivered again. A native message would have other
        ids then, so its ack is followed by a request on the same channel, whose response says that RabbitMQ has processed both.
        """
        natives = {index: one for index, one in done.items() if one.message.is_native}
        outcomes |= await self._mark(record, {index: one for index, one in done.items() if index not in natives})
        for index in done.keys() - natives.keys():
            if outcomes[index] is None:
                await receiver.ack(*done[index].raw.key)
        acked = {index: one for index, one in natives.items() if await receiver.ack(*one.raw.key)}
        outcomes |= {index: LeaseExpired(_EXPIRED[1]) for index in natives.keys() - acked.keys()}
        try:
            if acked:
                await receiver.confirm()
            outcomes |= await self._mark(record, acked)
        except PostroadError as problem:
            outcomes |= dict.fromkeys(acked, problem)

    async def _mark(self, record: QueueRecord, done: Mapping[int, HeldLease]) -> dict[int, PostroadError | None]:
        outcomes = await self._markers.mark(record, [_key_of(one.message) for one in done.values()]) if done else []
        return dict(zip(done, outcomes, strict=True))

    async def _return(
        self, record: QueueRecord, receiver: QueueReceiver, lease: HeldLease, delay_ms: int
    ) -> PostroadError | None:
        """End the lease of a message that is delivered again; the error if it lasts."""
        try:
            if delay_ms == 0:
                await self._requeue(record, receiver, lease)
            else:
                message = msgspec.structs.replace(lease.message.stored, attempts=lease.message.attempt)
                await self._markers.replace(record, message, lease.message.copy, self._clock() + delay_ms)
                await receiver.ack(*lease.raw.key)
        except PostroadError as problem:
            return problem
        return None

    async def _requeue(self, record: QueueRecord, receiver: QueueReceiver, lease: HeldLease) -> None:
        """Return a message to the queue. A native message is replaced by a copy that has the ids that it was leased with."""
        if lease.message.is_native:
            message = msgspec.structs.replace(lease.message.stored, attempts=lease.message.attempt)
            await self._publish(record, message)
            await receiver.ack(*lease.raw.key)
        else:
            await receiver.requeue(*lease.raw.key)

    async def _return_expired(self, lease: HeldLease) -> None:
        record, receiver = self._records.get(lease.queue), self.receivers.get(lease.queue)
        metrics.expired.inc()
        if record is None or receiver is None:
            return
        try:
            await self._requeue(record, receiver, lease)
        except PostroadError:  # of the copy of a native message, which is delivered with other ids then
            await receiver.requeue(*lease.raw.key)

    async def return_stray(self, key: str, delivery: RawDelivery) -> None:
        """Return a message that was delivered and not asked for. A copy takes its place: RabbitMQ would count an attempt."""
        receiver = self.receivers.get(key)
        if receiver is None:
            return
        metrics.strays.inc()
        try:
            await self._rabbit.publish(receiver.queue, delivery.body, returned(delivery.properties))
        except PostroadError:
            await receiver.put_back(*delivery.key)
        else:
            await receiver.ack(*delivery.key)


def _key_of(message: ReceivedMessage) -> MessageKey:
    return sequence_of(message.stored.id, message.copy), message.copy


def _result(outcome: PostroadError | None) -> tuple[str, str]:
    return _OK if outcome is None else (outcome.code, outcome.detail)
