"""Message counts of queues, read from JetStream at most once a second per queue and worker, except for fresh reads."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from postroad.api.queues import QueueNotFound, QueueStats
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ConsumerState, consumer_state
from postroad.kernel.clock import Clock
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.deferred_messages import DeferredMessages, since_ms
from postroad.queues.lease_log import LeaseLog
from postroad.queues.ordered_browsing import OrderedBrowser
from postroad.queues.ordered_leases import OrderedLeases
from postroad.queues.records import QueueRecord
from postroad.queues.throughput import Throughput
from postroad.queues.waiting import WaitingPulls

_MAX_AGE_SECONDS = 1.0
_CACHED_MAX = 20_000
_CONCURRENCY = 64

T = TypeVar("T")


class QueueStatsReader:
    def __init__(
        self,
        connection: Connection,
        dead_letters: DeadLetters,
        lease_log: LeaseLog,
        waiting: WaitingPulls,
        throughput: Throughput,
        clock: Clock,
        ordered: OrderedLeases,
        deferred: DeferredMessages,
    ) -> None:
        self._deferred = deferred
        self._ordered, self._ordered_browser = ordered, OrderedBrowser(connection, clock)
        self._connection, self._dead_letters, self._throughput, self._clock = connection, dead_letters, throughput, clock
        self._lease_log, self._waiting = lease_log, waiting
        self._cached: dict[str, tuple[float, asyncio.Task[QueueStats]]] = {}
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def stats(self, record: QueueRecord, *, is_fresh: bool = False) -> QueueStats:
        """With `is_fresh` as of now, else up to a second old. Raises QueueNotFound if the queue is being deleted."""
        if is_fresh:
            return await self._read(record)
        now = asyncio.get_running_loop().time()
        at, reading = self._cached.get(record.stream, (0.0, None))
        if reading is None or now - at > _MAX_AGE_SECONDS or (reading.done() and (reading.cancelled() or reading.exception())):
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            reading = asyncio.create_task(self._read(record))
            self._cached[record.stream] = (now, reading)
        return await asyncio.shield(reading)

    async def _read(self, record: QueueRecord) -> QueueStats:
        async with self._slots:
            return await self.sample(record)

    async def sample(self, record: QueueRecord, *, has_dead_letters: bool = True) -> QueueStats:
        """Read the stats now. Dead letters are counted only with `has_dead_letters`.

        JetStream counts the messages that were delivered and not acknowledged; the lease log has their states.
        Raises QueueNotFound if the queue is being deleted.
        """
        if record.is_ordered:
            return await self._sample_ordered(record, has_dead_letters=has_dead_letters)
        await self._lease_log.loaded()
        consumer = await self._consumer_state(record)
        deferred, first_deferred_ms = await self._deferred.count(record) if record.has_deferred else (0, None)
        first, delayed, dead = await asyncio.gather(
            self._first(record, record.ready_subjects) if consumer.num_pending or consumer.num_ack_pending else _constant([]),
            self._delayed(record),
            self._dead_letters.count(record) if has_dead_letters and record.settings.dead_letter_queue is None else _constant(0),
        )
        times = [since_ms(page.entries[0]) for page in first if page.entries]
        oldest_at_ms = min(times if first_deferred_ms is None else [*times, first_deferred_ms], default=None)
        rate = self._throughput.rate(record.stream)
        # After a purge, a consumer with several subjects may count messages that are gone until their leases end.
        present = sum(len(page.entries) + page.remaining for page in first)
        pending = min(consumer.num_pending, present)
        unacknowledged = min(consumer.num_ack_pending, present - pending)
        delivered = self._lease_log.counts(record, unacknowledged)
        return QueueStats(
            ready=pending + unacknowledged - delivered.leased - delivered.retrying + deferred,
            leased=delivered.leased,
            deferred=deferred,
            overdue=delivered.overdue,
            retrying=delivered.retrying,
            delayed=delayed,
            dead=dead,
            waiting=self._waiting.count(record.stream, consumer.num_waiting),
            oldest_age_ms=None if oldest_at_ms is None else max(0, self._clock() - oldest_at_ms),
            in_per_second=rate.in_per_second,
            out_per_second=rate.out_per_second,
        )

    async def _sample_ordered(self, record: QueueRecord, *, has_dead_letters: bool) -> QueueStats:
        """The dispatcher of the queue counts its messages."""
        counts = await self._ordered.counts(record)
        has_own_dead_letters = has_dead_letters and record.settings.dead_letter_queue is None
        oldest_at_ms, delayed, dead = await asyncio.gather(
            self._ordered_browser.oldest_at_ms(record),
            self._ordered_browser.delayed(record),
            self._dead_letters.count(record) if has_own_dead_letters else _constant(0),
        )
        rate = self._throughput.rate(record.stream)
        delayed = min(delayed, counts.new)
        return QueueStats(
            ready=counts.new - delayed + counts.due + counts.overdue,
            leased=counts.leased,
            overdue=counts.overdue,
            retrying=counts.retrying,
            delayed=delayed,
            dead=dead,
            waiting=self._waiting.count(record.stream, counts.waiting),
            oldest_age_ms=None if oldest_at_ms is None else max(0, self._clock() - oldest_at_ms),
            in_per_second=rate.in_per_second,
            out_per_second=rate.out_per_second,
        )

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

    async def count(self, record: QueueRecord) -> int:
        """The number of messages, whatever their state."""
        if record.is_ordered:
            counts = await self._ordered.counts(record)
            return counts.new + counts.leased + counts.retrying + counts.due + counts.overdue
        deferred, _ = await self._deferred.count(record) if record.has_deferred else (0, None)
        pages = await self._first(record, (*record.ready_subjects, *record.delayed_subjects))
        return sum(len(page.entries) + page.remaining for page in pages) + deferred


async def _constant(value: T) -> T:
    return value
