"""Subscriptions in the live state: those on screen every two seconds, the first hundred others every ten seconds."""

import asyncio
from itertools import islice

import msgspec

from postroad.api.live_state import LiveSubscription
from postroad.api.subscriptions import SubscriptionStatus
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.identity import Caller
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.status import StatusReader
from postroad.telemetry.live_sections import LiveSection, Rows

_ROWS_MAX = 2_000
_READS_MAX = 100
_SHOWN_SECONDS = 2.0
_OTHERS_SECONDS = 10.0


class LiveSubscriptions(LiveSection):
    name = "subscriptions"

    def __init__(self, table: ReplicatedTable[SubscriptionRecord], status: StatusReader) -> None:
        self._table, self._status = table, status
        self._read: dict[str, dict[str, tuple[float, SubscriptionStatus]]] = {}  # by tenant and id

    async def open(self, tenant: str) -> None:
        self._read.setdefault(tenant, {})

    def close(self, tenant: str) -> None:
        self._read.pop(tenant, None)

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        known, now = self._read[tenant], asyncio.get_running_loop().time()
        found = (record for key in self._table.keys_under(f"{tenant}.") if (record := self._table.get(key)) is not None)
        records = {record.id: record for record in islice(found, _ROWS_MAX)}
        records |= {record.id: record for record in found if record.id in names}
        for gone in known.keys() - records.keys():
            del known[gone]
        due = [record for record in records.values() if self._is_due(known, record.id, names, now)]
        due.sort(key=lambda record: (record.id not in names, known[record.id][0] if record.id in known else 0.0))
        chosen = due[:_READS_MAX]
        read = await asyncio.gather(*(self._status.read(record) for record in chosen), return_exceptions=True)
        for record, status in zip(chosen, read, strict=True):
            if isinstance(status, SubscriptionStatus):
                known[record.id] = now, status
        return {one.id: _row(one, known[one.id][1] if one.id in known else None) for one in records.values()}

    def _is_due(self, known: dict[str, tuple[float, SubscriptionStatus]], id_: str, names: frozenset[str], now: float) -> bool:
        seconds = _SHOWN_SECONDS if id_ in names else _OTHERS_SECONDS
        return id_ not in known or now - known[id_][0] >= seconds

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return isinstance(row, LiveSubscription) and caller.may_use("topic", row.topic)


def _row(record: SubscriptionRecord, status: SubscriptionStatus | None) -> LiveSubscription:
    row = LiveSubscription(
        id=record.id, topic=record.topic, name=record.name, delivery_type=record.delivery_type, state=record.state
    )
    if status is None:
        return row
    return msgspec.structs.replace(
        row,
        summary=status.summary,
        lag=status.lag,
        in_flight=status.in_flight,
        retrying=status.retrying,
        dead=status.dead,
        success_rate=status.success_rate,
        breaker=status.breaker,
        next_attempt_at=status.next_attempt_at,
        last_error=status.last_error,
    )
