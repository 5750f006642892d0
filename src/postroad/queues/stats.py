"""What is in a queue, counted by the engine. Asked for at most once a second per queue and worker, however many want to know."""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import consumer_state
from postroad.kernel.clock import Clock
from postroad.kernel.errors import QueueNotFound
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.rules import QueueRecord
from postroad.queues.throughput import Throughput

_FRESH_SECONDS = 1.0
_KNOWN_MAX = 20_000
_AT_ONCE = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """`ready` can be pulled now, `leased` is with consumers or waits for its next try, `delayed` is not due yet. `waiting` is how
    many pulls wait for a message: one for each worker, however many of its callers do."""

    ready: int
    leased: int
    delayed: int
    dead: int
    waiting: int
    oldest_age_ms: int | None
    in_per_second: float
    out_per_second: float


class QueueStatsReader:
    def __init__(self, connection: Connection, dead: DeadLetters, rates: Throughput, clock: Clock) -> None:
        self._connection, self._dead, self._rates, self._clock = connection, dead, rates, clock
        self._known: dict[str, tuple[float, asyncio.Task[QueueStats]]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def stats(self, record: QueueRecord, *, is_fresh: bool = False) -> QueueStats:
        """`is_fresh`: as of now, for whoever asks about one queue. Raises QueueNotFound if it is being deleted."""
        if is_fresh:
            return await self._counted(record)
        now = asyncio.get_running_loop().time()
        at, asking = self._known.get(record.stream, (0.0, None))
        if asking is None or now - at > _FRESH_SECONDS or (asking.done() and (asking.cancelled() or asking.exception())):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            asking = asyncio.create_task(self._counted(record))
            self._known[record.stream] = (now, asking)
        return await asyncio.shield(asking)

    async def _counted(self, record: QueueRecord) -> QueueStats:
        async with self._slots:
            return await self.sample(record)

    async def sample(self, record: QueueRecord, *, has_dead: bool = True) -> QueueStats:
        """As of now. `has_dead`: there may be dead letters. Raises QueueNotFound if it is being deleted."""
        work = await consumer_state(self._connection, record.stream, record.consumer)
        if work is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        oldest_at_ms, delayed, dead = await asyncio.gather(
            self._oldest_at_ms(record) if work.num_pending or work.num_ack_pending else _nothing(None),
            self._delayed(record),
            self._dead.count(record) if has_dead else _nothing(0),
        )
        rate = self._rates.of(record.stream)
        return QueueStats(
            ready=work.num_pending,
            leased=work.num_ack_pending,
            delayed=delayed,
            dead=dead,
            waiting=work.num_waiting,
            oldest_age_ms=None if oldest_at_ms is None else max(0, self._clock() - oldest_at_ms),
            in_per_second=rate.in_per_second,
            out_per_second=rate.out_per_second,
        )

    async def _oldest_at_ms(self, record: QueueRecord) -> int | None:
        page = await stream_reader.read(self._connection, record.stream, f"{record.subject}.ready", 1, 1)
        return page.entries[0].at_ms if page.entries else None

    async def _delayed(self, record: QueueRecord) -> int:
        page = await stream_reader.read(self._connection, record.stream, f"{record.subject}.later.*", 1, 1)
        return len(page.entries) + page.remaining

    async def count(self, record: QueueRecord) -> int:
        """All messages that are not done: ready, leased and delayed."""
        ready = await stream_reader.read(self._connection, record.stream, f"{record.subject}.ready", 1, 1)
        return len(ready.entries) + ready.remaining + await self._delayed(record)


async def _nothing(value: T) -> T:
    """What need not be asked."""
    return value
