"""Queues in JetStream: a stream for each, and a pull consumer for each priority."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from postroad.api.queues import Priority, QueueNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Acknowledgement, Delivery, DeliveryRef, nak
from postroad.jetstream.management import (
    ConsumerState,
    StreamSpec,
    consumer_state,
    ensure_stream,
    pause_consumer,
    purge_stream,
)
from postroad.jetstream.ordered_pull import OrderedPull
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import INCARNATION, RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import PostroadError
from postroad.queues.backend import (
    ALL_SETTLED,
    BackendStats,
    CallbackBackend,
    DeliveryGroup,
    OnReceived,
    OnSettled,
    QueueBackend,
    Settlement,
    StoreOutcome,
)
from postroad.queues.deferred_messages import DeferredMessages, since_ms
from postroad.queues.group_store import live_subject
from postroad.queues.lease_log import LeaseLog
from postroad.queues.message_writes import PendingPublish
from postroad.queues.records import QueueRecord, Receipt, priority_of
from postroad.queues.rules import PULL_ORDERS
from postroad.regions.placement import Placements, tags_of

T = TypeVar("T")


class EngineBackend(QueueBackend):
    """Ordered queues have their stream here, and their messages with `OrderedLeases`."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        table: ReplicatedTable[QueueRecord],
        lease_log: LeaseLog,
        deferred: DeferredMessages,
        placements: Placements,
    ) -> None:
        self._connection, self._committers, self._placements = connection, committers, placements
        self._lease_log, self._deferred = lease_log, deferred
        self._pull_consumers: dict[str, PullConsumer] = {}  # of the priority `normal`, by stream
        self._ordered_pulls: dict[str, OrderedPull[Priority]] = {}  # of queues with different priorities, by stream
        table.on_change(self._queue_changed)

    # The stream and its consumers

    def callbacks_of(self, _record: QueueRecord) -> CallbackBackend | None:
        return self

    async def long_lease_ms(self) -> int:
        return 0

    async def prepare(self, record: QueueRecord) -> None:
        """`create` does it all, and what it refuses is removed with the record."""

    async def create(self, record: QueueRecord) -> None:
        subject = record.subject
        options: dict[str, object] = {
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "duplicate_window": 60_000_000_000,  # for the retries of our own writes, which end after seconds
            "metadata": {INCARNATION: record.incarnation},
            **self._placements.options(tags_of(record), record.replicas or self._placements.kept_replicas(record.settings)),
        }
        if record.is_ordered:  # no consumer: a dispatcher reads the messages, and group records decide
            live = {"src": record.group_subject("*"), "dest": f"{live_subject(record)}.{{{{wildcard(1)}}}}", "headers_only": True}
            options |= {"retention": "limits", "allow_rollup_hdrs": True, "republish": live}
        else:
            options |= {"retention": "workqueue", "allow_msg_schedules": True, "allow_rollup_hdrs": True}
        await ensure_stream(self._connection, StreamSpec(record.stream, (f"{subject}.>",), options))
        for priority in () if record.is_ordered else record.priorities:
            await self.ensure_consumer(record, priority)

    async def ensure_consumer(self, record: QueueRecord, priority: Priority) -> None:
        """Create or change the consumer of a priority."""
        await ensure_work_consumer(
            self._connection,
            record.stream,
            record.consumer_of(priority),
            *record.consumer_subjects(priority),
            max_in_flight=record.settings.max_in_flight,
            lease_ms=record.consumer_lease_ms,
        )

    async def delete(self, record: QueueRecord) -> None:
        """Everything is in the queue's stream."""

    async def pause(self, record: QueueRecord, priorities: Sequence[Priority], *, is_paused: bool) -> None:
        for priority in () if record.is_ordered else priorities:  # dispatchers know from the record
            await pause_consumer(self._connection, record.stream, record.consumer_of(priority), is_paused=is_paused)

    # Messages

    async def store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[StoreOutcome]:
        return await self._committers.of(record.stream).append_each([one.writes for one in pending])

    async def receive(self, record: QueueRecord, count: int, wait_seconds: float) -> Sequence[DeliveryGroup]:
        if record.has_priority:
            return await self._ordered_pull(record).pull(count, wait_seconds)
        return [("normal", await self._pull_consumer(record).pull(count, wait_seconds))]

    def receive_callback(self, record: QueueRecord, count: int, on_received: OnReceived) -> None:
        self._pull_consumer(record).pull_callback(count, on_received)

    async def release(self, record: QueueRecord, groups: Sequence[DeliveryGroup]) -> None:
        for priority, deliveries in groups:
            self._pull_consumer(record, priority).release([one.ref for one in deliveries])

    async def lease(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        self.lease_now(record, priority, leases)

    def lease_now(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        """A delivery that has the consumer's own lease of the same length needs no other."""
        now, own_ms = asyncio.get_running_loop().time(), record.consumer_lease_ms
        naks = [(one.ref, nak(ms)) for one, ms in leases if not (0 < ms == own_ms and one.is_leased(now))]
        self._pull_consumer(record, priority).send_acknowledgements(naks)

    async def settle(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], *, is_synced: bool = True
    ) -> Mapping[DeliveryRef, PostroadError]:
        await self._pull_consumer(record, priority).acknowledge(_acks(settlements), is_synced=is_synced)
        return ALL_SETTLED

    def settle_callback(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], on_settled: OnSettled
    ) -> None:
        self._pull_consumer(record, priority).acknowledge_callback(_acks(settlements), on_settled)

    async def discard(self, record: QueueRecord, priority: Priority, ref: DeliveryRef) -> None:
        await self.settle(record, priority, [(ref, None)])

    async def extend(
        self, record: QueueRecord, priority: Priority, refs: Sequence[DeliveryRef], lease_ms: int
    ) -> Mapping[DeliveryRef, PostroadError]:
        await self._pull_consumer(record, priority).acknowledge([(ref, nak(lease_ms)) for ref in refs])
        return ALL_SETTLED

    async def fetch(self, record: QueueRecord, receipts: Sequence[Receipt]) -> Sequence[Entry | None]:
        entries = await asyncio.gather(
            *(stream_reader.at(self._connection, record.stream, one.stream_sequence) for one in receipts)
        )
        return [
            entry if entry is not None and entry.at_ms == receipt.stored_at_ns // 1_000_000 else None
            for receipt, entry in zip(receipts, entries, strict=True)
        ]

    async def latest_delivery(self, record: QueueRecord, receipt: Receipt, attempt: int) -> Receipt | None:
        [entry] = await self.fetch(record, [receipt])
        state = await consumer_state(self._connection, record.stream, record.consumer_of(receipt.priority))
        if entry is None or state is None:
            return None
        return replace(receipt, consumer_sequence=state.delivered.consumer_seq, attempt=attempt)

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        priority = priority_of(entry.subject)
        state = await consumer_state(self._connection, record.stream, record.consumer_of(priority))
        if state is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        # The server identifies the delivery by the message, and accepts the number of any later delivery.
        ref = DeliveryRef(entry.sequence, state.delivered.consumer_seq, attempt, entry.at_ms * 1_000_000)
        await self._pull_consumer(record, priority).acknowledge([(ref, nak(0))])

    # Counts

    def waiting_pulls(self) -> Mapping[str, int]:
        waiting = {stream: count for stream, one in self._pull_consumers.items() if (count := one.waiting)}
        for stream, ordered in self._ordered_pulls.items():
            if ordered.waiting:
                waiting[stream] = waiting.get(stream, 0) + ordered.waiting
        return waiting

    async def stats(self, record: QueueRecord) -> BackendStats:
        """JetStream counts the messages that were delivered and not acknowledged; the lease log has their states."""
        await self._lease_log.loaded()
        consumer = await self._consumer_state(record)
        deferred, first_deferred_ms = await self._deferred.count(record) if record.has_deferred else (0, None)
        first, delayed = await asyncio.gather(
            self._first(record, record.ready_subjects) if consumer.num_pending or consumer.num_ack_pending else _constant([]),
            self._delayed(record),
        )
        times = [since_ms(page.entries[0]) for page in first if page.entries]
        oldest_at_ms = min(times if first_deferred_ms is None else [*times, first_deferred_ms], default=None)
        # After a purge, a consumer with several subjects may count messages that are gone until their leases end.
        present = sum(len(page.entries) + page.remaining for page in first)
        pending = min(consumer.num_pending, present)
        unacknowledged = min(consumer.num_ack_pending, present - pending)
        delivered = self._lease_log.counts(record, unacknowledged)
        return BackendStats(
            ready=pending + unacknowledged - delivered.leased - delivered.retrying + deferred,
            leased=delivered.leased,
            deferred=deferred,
            overdue=delivered.overdue,
            retrying=delivered.retrying,
            delayed=delayed,
            waiting=consumer.num_waiting,
            oldest_at_ms=oldest_at_ms,
        )

    async def count(self, record: QueueRecord) -> int:
        deferred, _ = await self._deferred.count(record) if record.has_deferred else (0, None)
        pages = await self._first(record, (*record.ready_subjects, *record.delayed_subjects))
        return sum(len(page.entries) + page.remaining for page in pages) + deferred

    async def purge(self, record: QueueRecord) -> int:
        purged = await self._deferred.purge(record)  # first, since they become ready
        for subject in (*record.ready_subjects, *record.delayed_subjects):
            purged += await purge_stream(self._connection, record.stream, subject)
        return purged

    async def _consumer_state(self, record: QueueRecord) -> ConsumerState:
        """The state of the consumers of all priorities together. A worker has at most one waiting request at each."""
        states = await asyncio.gather(
            *(consumer_state(self._connection, record.stream, record.consumer_of(one)) for one in record.priorities)
        )
        found = [state for state in states if state is not None]
        if len(found) < len(states):
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        return ConsumerState(
            num_pending=sum(one.num_pending for one in found),
            num_ack_pending=sum(one.num_ack_pending for one in found),
            num_waiting=max(one.num_waiting for one in found),
        )

    async def _delayed(self, record: QueueRecord) -> int:
        return sum(len(page.entries) + page.remaining for page in await self._first(record, record.delayed_subjects))

    async def _first(self, record: QueueRecord, subjects: Sequence[str]) -> list[stream_reader.Page]:
        """The first message of each subject, and the number of the others."""
        return await asyncio.gather(*(stream_reader.read(self._connection, record.stream, one, 1, 1) for one in subjects))

    # Consumers of this process

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


def _acks(settlements: Sequence[Settlement]) -> list[Acknowledgement]:
    return [(ref, ACK if delay_ms is None else nak(delay_ms)) for ref, delay_ms in settlements]


async def _constant(value: T) -> T:
    return value
