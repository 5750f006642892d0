"""Queues in the live state: those on screen every second, the others from their samples."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from postroad.api.live_state import LiveQueue
from postroad.api.queues import DEFAULT_DRAIN_SECONDS, QueueStats
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.identity import Caller
from postroad.queues.events import QueueSampled
from postroad.queues.records import QueueRecord
from postroad.queues.sample_history import SAMPLE_FIELDS, SampleHistory
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.live_sections import LiveSection, Rows

_ROWS_MAX = 5_000
_IDLE_SECONDS = 3.0  # between two reads of a queue on screen that has no traffic and no leases
_SAMPLES_QUEUES_MAX = 100
_LEVELS = (
    *("ready", "deferred", "leased", "overdue", "retrying", "delayed", "dead", "waiting"),
    *("in_per_second", "out_per_second"),
)
_FIRST_READS_MAX = 200  # queues that were never sampled, when a stream opens


class LiveQueues(LiveSection):
    name = "queues"
    sample_fields = SAMPLE_FIELDS

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[QueueRecord],
        stats: QueueStatsReader,
        throughput: Throughput,
        clock: Clock,
    ) -> None:
        self._connection, self._table, self._stats, self._throughput, self._clock = connection, table, stats, throughput, clock
        self._histories: dict[str, SampleHistory] = {}
        self._rows: dict[str, dict[str, _Known]] = {}  # by tenant and name
        self._read_at: dict[str, float] = {}  # by stream

    async def open(self, tenant: str) -> None:
        history = SampleHistory(self._connection, tenant, self._clock)
        await history.open()
        self.close(tenant)
        self._histories[tenant], self._rows[tenant] = history, {}
        records = self._records(tenant)
        unknown = [name for name in records if name not in history.latest]
        await self._read([records[name] for name in unknown[:_FIRST_READS_MAX]], self._rows[tenant])

    def close(self, tenant: str) -> None:
        history = self._histories.pop(tenant, None)
        if history is not None:
            history.close()
        for known in self._rows.pop(tenant, {}).values():
            self._read_at.pop(known.record.stream, None)

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        history, known, records = self._histories[tenant], self._rows[tenant], self._records(tenant, names)
        history.check()
        for name in known.keys() - records.keys():
            del known[name]
            history.forget(name)
        now = asyncio.get_running_loop().time()
        await self._read([one for name in names if (one := records.get(name)) and self._is_due(one, known.get(name), now)], known)
        for name, record in records.items():
            before, sample = known.get(name), history.latest.get(name)
            if sample is not None and (before is None or sample[1] > before.at_ms):
                known[name] = _known(record, *sample)
            elif before is None or before.record is not record:
                known[name] = _known(record, None if before is None else before.levels, 0 if before is None else before.at_ms)
        return {name: one.row for name, one in known.items()}

    def _is_due(self, record: QueueRecord, known: "_Known | None", now: float) -> bool:
        """True if a queue on screen is to be read: an idle one can wait."""
        read_at = self._read_at.get(record.stream)
        if read_at is None or known is None or now - read_at >= _IDLE_SECONDS:
            return True
        rate, row = self._throughput.rate(record.stream), known.row
        return bool(rate.in_per_second or rate.out_per_second or row.leased or row.retrying or row.delayed)

    async def _read(self, records: Sequence[QueueRecord], known: "dict[str, _Known]") -> None:
        """Read the stats of queues, at most a second old. Those that cannot be read keep theirs."""
        found = await asyncio.gather(*map(self._stats.stats, records), return_exceptions=True)
        now, now_ms = asyncio.get_running_loop().time(), self._clock()
        for record, stats in zip(records, found, strict=True):
            if isinstance(stats, QueueStats):
                self._read_at[record.stream] = now
                known[record.name] = _known(record, stats, now_ms)

    def _records(self, tenant: str, names: frozenset[str] = frozenset()) -> dict[str, QueueRecord]:
        """The first queues by name, and those on screen."""
        keys = self._table.keys_under(f"{tenant}.")
        found = (record for key in keys if (record := self._table.get(key)) is not None)
        ready = (record for record in found if record.state is not RecordState.DELETING)
        first = {record.name: record for record in islice(ready, _ROWS_MAX)}
        return first | {record.name: record for record in ready if record.name in names}

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return caller.may_use("queue", key)

    def samples(self, tenant: str, keys: Sequence[str], names: frozenset[str]) -> Mapping[str, Sequence[Sequence[float]]]:
        """Those of the queues on screen and of those with most messages and traffic, if there are too many."""
        history, rows = self._histories.get(tenant), self._rows.get(tenant, {})
        if history is None:
            return {}
        first = sorted(keys, key=lambda key: (key not in names, -_weight(rows.get(key)), key))[:_SAMPLES_QUEUES_MAX]
        return {key: samples for key in first if (samples := history.samples_of(key))}


@dataclass(frozen=True, slots=True)
class _Known:
    """A row with its origin: the record, the levels and their time."""

    record: QueueRecord
    levels: QueueStats | QueueSampled | None
    at_ms: int
    row: LiveQueue


def _known(record: QueueRecord, levels: QueueStats | QueueSampled | None, at_ms: int) -> _Known:
    age_ms = None if levels is None else levels.oldest_age_ms
    row = LiveQueue(
        name=record.name,
        paused=record.is_paused,
        pause_reason=record.pause_reason,
        expected_drain_seconds=record.settings.expected_drain_seconds or DEFAULT_DRAIN_SECONDS,
        oldest_at=None if age_ms is None else rfc3339(round(at_ms - age_ms, -3)),  # else it would change with every read
        **({} if levels is None else {name: getattr(levels, name) for name in _LEVELS}),
    )
    return _Known(record, levels, at_ms, row)


def _weight(known: _Known | None) -> float:
    if known is None:
        return 0
    row = known.row
    return row.ready + row.leased + row.retrying + row.delayed + row.dead + row.in_per_second + row.out_per_second
