"""Message counts of queues, read from their backend at most once a second per queue and worker, except for fresh reads."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroad.api.queues import Backend, QueueStats
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.queues.backend import QueueBackend
from postroad.queues.dead_letters import DeadLetters
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
        backend: QueueBackend,
        dead_letters: DeadLetters,
        waiting: WaitingPulls,
        throughput: Throughput,
        clock: Clock,
        ordered: OrderedLeases,
    ) -> None:
        self._ordered, self._ordered_browser = ordered, OrderedBrowser(connection, clock)
        self._backend, self._dead_letters, self._throughput, self._clock = backend, dead_letters, throughput, clock
        self._waiting = waiting
        self.oldest_job: Callable[[QueueRecord], Awaitable[int | None]] | None = None  # where jobs are known
        self._cached: dict[str, tuple[float, asyncio.Task[QueueStats]]] = {}
        self._slots: dict[Backend, asyncio.Semaphore] = {}  # a backend that does not answer occupies its own only

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
        async with self._slots.setdefault(record.backend, asyncio.Semaphore(_CONCURRENCY)):
            return await self.sample(record)

    async def sample(self, record: QueueRecord, *, has_dead_letters: bool = True) -> QueueStats:
        """Read the stats now. Dead letters are counted only with `has_dead_letters`.

        Raises QueueNotFound if the queue is being deleted.
        """
        if record.is_ordered:
            return await self._sample_ordered(record, has_dead_letters=has_dead_letters)
        counts = await self._backend.stats(record)
        has_own_dead_letters = has_dead_letters and record.settings.dead_letter_queue is None
        dead = await self._dead_letters.count(record) if has_own_dead_letters else 0
        rate, oldest_at_ms = self._throughput.rate(record.stream), counts.oldest_at_ms
        if not record.is_readable and self.oldest_job is not None and counts.ready + counts.leased + counts.retrying:
            oldest_at_ms = await self.oldest_job(record)
        return QueueStats(
            ready=counts.ready,
            leased=counts.leased,
            deferred=counts.deferred,
            overdue=counts.overdue,
            retrying=counts.retrying,
            delayed=counts.delayed,
            dead=dead,
            waiting=self._waiting.count(record.stream, counts.waiting),
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

    async def count(self, record: QueueRecord) -> int:
        """The number of messages, whatever their state."""
        if record.is_ordered:
            counts = await self._ordered.counts(record)
            return counts.new + counts.leased + counts.retrying + counts.due + counts.overdue
        return await self._backend.count(record)


async def _constant(value: T) -> T:
    return value
