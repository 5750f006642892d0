"""What is in the queues, told now and then as `queue.sampled`. One process of the installation looks, the control role's leader.

A queue that has something in it, had at the last look, or was written to since, is looked at in every round; one that is empty
and left alone every five minutes. A round has a bound: what is beyond it comes in the next, those first that have waited longest.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import dead_stream
from postroad.queues import job_events as events
from postroad.queues.events import QueueSampled
from postroad.queues.rules import QueueRecord, QueueState
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_IDLE_SECONDS = 300.0
_ROUND_MAX = 1000
_AT_ONCE = 8

log = structlog.get_logger("postroad.queues")


@dataclass(slots=True)
class _Look:
    """When a queue was last looked at, by the loop's clock, and whether there was anything in it."""

    at: float
    is_busy: bool


class QueueSampler:
    """`tenants`: of whose queues it is told."""

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[QueueRecord],
        meter: QueueStatsReader,
        rates: Throughput,
        outbox: Outbox,
        tenants: Callable[[], list[str]],
        *,
        seconds: float,
    ) -> None:
        self._connection, self._table, self._meter, self._rates, self._outbox = connection, table, meter, rates, outbox
        self._tenants, self._seconds = tenants, seconds
        self._looks: dict[str, _Look] = {}

    async def run(self) -> None:
        """Until cancelled."""
        self._looks.clear()
        self._rates.collect()
        try:
            while True:
                await asyncio.sleep(self._seconds)
                await self.look()
        finally:
            self._rates.stop_collecting()

    async def look(self) -> int:
        """One round. Returns of how many queues it has told."""
        due = self._due(asyncio.get_running_loop().time())
        has_dead = _HasDead(self._connection)
        found: dict[str, list[QueueSampled]] = {}
        waiting = iter(due)
        failures = await asyncio.gather(*(self._work_off(waiting, has_dead, found) for _ in range(_AT_ONCE)))
        for sampled in found.values():
            self._outbox.record(None, *sampled)
        if any(failures):
            log.warning("queues_not_sampled", count=sum(failures))
        return sum(map(len, found.values()))

    def _due(self, now: float) -> list[QueueRecord]:
        """What to look at now, what has waited longest first."""
        served, stirred = set(self._tenants()), self._rates.stirred()
        records = [record for key in self._table.keys_under() if (record := self._table.get(key)) is not None]
        known = {one.stream: one for one in records if one.state is QueueState.READY and one.tenant in served}
        self._looks = {stream: self._looks.get(stream) or _Look(now - self._seconds, is_busy=True) for stream in known}
        due = [
            (look.at, stream)
            for stream, look in self._looks.items()
            if look.is_busy or stream in stirred or now - look.at >= _IDLE_SECONDS
        ]
        return [known[stream] for _, stream in sorted(due)[:_ROUND_MAX]]

    async def _work_off(self, waiting: Iterator[QueueRecord], has_dead: "_HasDead", found: dict[str, list[QueueSampled]]) -> int:
        """Look at one after the other. Returns how many could not be seen."""
        failures = 0
        for record in waiting:
            try:
                found.setdefault(record.tenant, []).append(await self._sample(record, has_dead))
            except PostroadError:  # it is being deleted, or the engine is away: another time
                failures += 1
        return failures

    async def _sample(self, record: QueueRecord, has_dead: "_HasDead") -> QueueSampled:
        stats = await self._meter.sample(record, has_dead=await has_dead.of(record.tenant))
        now, look = asyncio.get_running_loop().time(), self._looks[record.stream]
        seconds = max(now - look.at, 0.001)
        look.at, look.is_busy = now, bool(stats.ready or stats.leased or stats.delayed)
        return events.sampled(record, stats, self._rates.take(record.stream), seconds)


class _HasDead:
    """Whether a tenant has any dead letters, asked once in a round: most have none, and then its queues need not be asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: dict[str, asyncio.Task[bool]] = {}

    async def of(self, tenant: str) -> bool:
        if tenant not in self._asked:
            self._asked[tenant] = asyncio.create_task(self._ask(tenant))
        return await self._asked[tenant]

    async def _ask(self, tenant: str) -> bool:
        info = await stream_info(self._connection, dead_stream(tenant))
        return info is not None and info.state.messages > 0
