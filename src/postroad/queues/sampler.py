"""Records the stats of queues as `queue.sampled` events. Runs in one process of the installation, the control role's leader.

A queue with messages, or with traffic since its last sample, is sampled in every round, and for two minutes after that, so that
reports have a whole minute in which it is empty; an empty and idle one every five minutes. A round samples a limited number of
queues, the longest waiting first. Queues of another backend than the engine are sampled beside the others, which do not wait for
them for longer than a second: what is sampled later belongs to the next round.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog

from postroad.api.queues import DEFAULT_DRAIN_SECONDS, QueueNotFound, QueueStats
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import dead_stream
from postroad.queues.events import QueueSampled
from postroad.queues.gauges import SamplePublisher
from postroad.queues.records import QueueRecord
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_IDLE_SECONDS = 300.0
_EMPTIED_SECONDS = 120.0
_ROUND_MAX = 1000
_CONCURRENCY = 8
_OTHERS_SECONDS = 1.0

log = structlog.get_logger("postroad.queues")


@dataclass(slots=True)
class _LastSample:
    """When a queue was last sampled, by the loop's clock, whether it had messages, and when it last had messages or traffic."""

    at: float
    has_messages: bool
    busy_at: float = float("-inf")


class SampleListener(Protocol):
    """Receives the samples of each round, in the process that samples."""

    def reset(self) -> None:
        """Called when the process begins to sample."""

    async def observe(self, samples: Iterable[QueueSampled]) -> int:
        """Called after each round. Raises EngineUnavailable."""


class QueueSampler:
    """`tenants` returns the tenants whose queues are sampled."""

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[QueueRecord],
        stats: QueueStatsReader,
        throughput: Throughput,
        outbox: Outbox,
        tenants: Callable[[], list[str]],
        publisher: SamplePublisher,
        *,
        seconds: float,
    ) -> None:
        self._connection, self._table, self._stats = connection, table, stats
        self._throughput, self._outbox = throughput, outbox
        self._tenants, self._publisher, self._seconds = tenants, publisher, seconds
        self._last: dict[str, _LastSample] = {}
        self._existing: list[tuple[str, str]] = []
        self._listeners: list[SampleListener] = []
        self._samples: dict[str, list[QueueSampled]] = {}  # by tenant, of the next round
        self._others: asyncio.Task[list[int]] | None = None  # samples the queues of other backends

    def add_listener(self, listener: SampleListener) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        """Run until cancelled."""
        self._last.clear()
        for listener in self._listeners:
            listener.reset()
        self._throughput.start_totals()
        try:
            while True:
                await asyncio.sleep(self._seconds)
                await self.sample_due()
        finally:
            if self._others is not None:
                self._others.cancel()
            self._throughput.stop_totals()

    async def sample_due(self) -> int:
        """Sample the queues that are due; return how many events were recorded."""
        due = self._due(asyncio.get_running_loop().time())
        with_dead_letters = _TenantsWithDeadLetters(self._connection)
        if self._others is None or self._others.done():
            others = self._sample_each([one for one in due if not one.is_readable], with_dead_letters)
            self._others = asyncio.create_task(others)
        failures = await self._sample_each([one for one in due if one.is_readable], with_dead_letters)
        await asyncio.wait({self._others}, timeout=_OTHERS_SECONDS)
        if self._others.done():
            failures = [*failures, *self._others.result()]
        samples, self._samples = self._samples, {}
        await self._publisher.publish(itertools.chain(*samples.values()), self._existing)
        for of_tenant in samples.values():
            self._outbox.record(None, *of_tenant)
        await self._notify([sample for of_tenant in samples.values() for sample in of_tenant])
        if any(failures):
            log.warning("queues_not_sampled", count=sum(failures))
        return sum(map(len, samples.values()))

    async def _notify(self, samples: list[QueueSampled]) -> None:
        for listener in self._listeners:
            try:
                await listener.observe(samples)
            except PostroadError as problem:  # the next round tries again
                log.warning("samples_not_processed", code=problem.code, detail=problem.detail)

    def _due(self, now: float) -> list[QueueRecord]:
        """The queues to sample now, the longest waiting first."""
        tenants, active = set(self._tenants()), self._throughput.active_streams()
        records = [record for key in self._table.keys_under() if (record := self._table.get(key)) is not None]
        by_stream = {one.stream: one for one in records if one.state is RecordState.READY and one.tenant in tenants}
        self._existing = [(one.tenant, one.name) for one in by_stream.values()]
        first = now - self._seconds
        self._last = {stream: self._last.get(stream) or _LastSample(first, has_messages=True) for stream in by_stream}
        due = [
            (last.at, stream)
            for stream, last in self._last.items()
            if last.has_messages or stream in active or now - last.busy_at <= _EMPTIED_SECONDS or now - last.at >= _IDLE_SECONDS
        ]
        return [by_stream[stream] for _, stream in sorted(due)[:_ROUND_MAX]]

    async def _sample_each(self, due: Iterable[QueueRecord], with_dead_letters: "_TenantsWithDeadLetters") -> list[int]:
        """Sample queues, some at a time; the numbers of failures."""
        shared = iter(due)
        return await asyncio.gather(*(self._sample_all(shared, with_dead_letters) for _ in range(_CONCURRENCY)))

    async def _sample_all(self, due: Iterator[QueueRecord], with_dead_letters: "_TenantsWithDeadLetters") -> int:
        """Sample one queue after the other; return the number of failures."""
        failures = 0
        for record in due:
            try:
                sample = await self._sample(record, with_dead_letters)
                self._samples.setdefault(record.tenant, []).append(sample)
            except PostroadError:  # the queue is being deleted, or JetStream is unavailable: the next round tries again
                failures += 1
        return failures

    async def _sample(self, record: QueueRecord, with_dead_letters: "_TenantsWithDeadLetters") -> QueueSampled:
        stats = await self._stats.sample(record, has_dead_letters=await with_dead_letters.includes(record.tenant))
        now, last = asyncio.get_running_loop().time(), self._last.get(record.stream)
        if last is None:
            raise QueueNotFound("the queue was deleted meanwhile")
        seconds = max(now - last.at, 0.001)
        last.at = now
        last.has_messages = bool(stats.ready or stats.leased or stats.retrying or stats.delayed)
        totals = self._throughput.pop_totals(record.stream)
        if last.has_messages or any(totals):
            last.busy_at = now
        return _event(record, stats, totals, seconds)


def _event(record: QueueRecord, stats: QueueStats, totals: tuple[int, int], seconds: float) -> QueueSampled:
    published, completed = totals
    return QueueSampled(
        tenant=record.tenant,
        queue=record.name,
        ready=stats.ready,
        leased=stats.leased,
        delayed=stats.delayed,
        dead=stats.dead,
        waiting=stats.waiting,
        overdue=stats.overdue,
        retrying=stats.retrying,
        deferred=stats.deferred,
        oldest_age_ms=stats.oldest_age_ms,
        expected_drain_seconds=record.settings.expected_drain_seconds or DEFAULT_DRAIN_SECONDS,
        in_per_second=round(published / seconds, 3),
        out_per_second=round(completed / seconds, 3),
        seconds=round(seconds, 3),
    )


class _TenantsWithDeadLetters:
    """Whether a tenant has dead letters, read once per round: most tenants have none, and their queues need no count."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reads: dict[str, asyncio.Task[bool]] = {}

    async def includes(self, tenant: str) -> bool:
        if tenant not in self._reads:
            self._reads[tenant] = asyncio.create_task(self._read(tenant))
        return await self._reads[tenant]

    async def _read(self, tenant: str) -> bool:
        info = await stream_info(self._connection, dead_stream(tenant))
        return info is not None and info.state.messages > 0
