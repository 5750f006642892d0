"""Command routes in the live state, with the rate of their commands and the state of their queues."""

import asyncio
from itertools import islice

import msgspec

from postroad.api.live_state import LiveRoute
from postroad.api.queues import QueueStats
from postroad.commands.records import RouteRecord
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import PostroadError
from postroad.kernel.identity import Caller
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.stats import QueueStatsReader
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.live_sections import LiveSection, Rows

_ROWS_MAX = 2_000
_READS_MAX = 50  # queues in a second
_SHOWN_SECONDS = 2.0
_OTHERS_SECONDS = 10.0


class LiveRoutes(LiveSection):
    name = "routes"

    def __init__(
        self, table: ReplicatedTable[RouteRecord], queues: QueueLifecycle, stats: QueueStatsReader, flows: FlowCounters
    ) -> None:
        self._table, self._queues, self._stats, self._flows = table, queues, stats, flows
        self._health: dict[str, dict[str, tuple[float, str]]] = {}  # by tenant and key of the row

    async def open(self, tenant: str) -> None:
        self._health.setdefault(tenant, {})

    def close(self, tenant: str) -> None:
        self._health.pop(tenant, None)

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        known, now = self._health[tenant], asyncio.get_running_loop().time()
        found = (record for key in self._table.keys_under(f"{tenant}.") if (record := self._table.get(key)) is not None)
        records = {_key(record): record for record in islice(found, _ROWS_MAX)}
        for gone in known.keys() - records.keys():
            del known[gone]
        due = [key for key in records if key not in known or now - known[key][0] >= self._seconds(key, names)]
        due.sort(key=lambda key: (key not in names, known[key][0] if key in known else 0.0))
        chosen = due[:_READS_MAX]
        for key, health in zip(chosen, await asyncio.gather(*(self._read(records[key]) for key in chosen)), strict=True):
            known[key] = now, health
        rates: dict[str, list[float]] = {}
        for flow in self._flows.of(tenant, lambda _source, target: target.startswith("route:")):
            rate = rates.setdefault(flow.target.removeprefix("route:"), [0.0, 0.0])
            rate[0] += flow.per_second
            rate[1] += flow.failed_per_second
        return {key: _row(one, known.get(key, (0, "ok"))[1], rates.get(key, [0.0, 0.0])) for key, one in records.items()}

    @staticmethod
    def _seconds(key: str, names: frozenset[str]) -> float:
        return _SHOWN_SECONDS if key in names else _OTHERS_SECONDS

    async def _read(self, record: RouteRecord) -> str:
        queue = self._queues.cached(record.tenant, record.queue)
        if queue is None:
            return "missing"
        try:
            return health_of(await self._stats.stats(queue), record.drain_seconds(queue.settings.expected_drain_seconds))
        except PostroadError:
            return "missing"

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return isinstance(row, LiveRoute) and caller.may_use("service", row.service)


def health_of(stats: QueueStats, expected_seconds: int) -> str:
    """The health of a route by its queue: `unpolled` if messages wait and no consumer does anything."""
    is_old = (stats.oldest_age_ms or 0) > expected_seconds * 1000
    if stats.ready and not stats.waiting and not stats.leased and not stats.out_per_second:
        return "unpolled"
    return "slow" if is_old else "ok"


def _key(record: RouteRecord) -> str:
    return f"{record.service}/{record.command}"


def _row(record: RouteRecord, health: str, rates: list[float]) -> LiveRoute:
    return LiveRoute(
        service=record.service,
        command=record.command,
        queue=record.queue,
        grants=len(record.grants),
        per_second=round(rates[0], 1),
        refused_per_second=round(rates[1], 1),
        health=health,
    )
