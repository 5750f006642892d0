"""Events that were delivered and acknowledged in the last hour, over all workers. They are not stored."""

import time
from collections import deque
from collections.abc import Mapping

from postroad.jetstream.connection import Connection
from postroad.jetstream.process_counts import ProcessCounts

_MINUTES = 60


class _Minutes:
    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: deque[tuple[int, int]] = deque(maxlen=_MINUTES + 1)  # minute and number

    def add(self, minute: int, count: int) -> None:
        if self.counts and self.counts[-1][0] == minute:
            self.counts[-1] = (minute, self.counts[-1][1] + count)
        else:
            self.counts.append((minute, count))

    def total(self, minute: int) -> int:
        return sum(count for at, count in self.counts if minute - at < _MINUTES)


class HourlyActivity:
    def __init__(self, connection: Connection) -> None:
        self._minutes: dict[str, _Minutes] = {}
        self._counts = ProcessCounts(
            connection, "postroad.telemetry_activity", self._local, interval_seconds=2.0, expiry_seconds=10.0
        )
        self.run = self._counts.run

    def add_delivered(self, tenant: str, count: int) -> None:
        self._add(f"d.{tenant}", count)

    def add_acknowledged(self, tenant: str, count: int) -> None:
        self._add(f"a.{tenant}", count)

    def delivered(self, tenant: str) -> int:
        return self._counts.total(f"d.{tenant}")

    def acknowledged(self, tenant: str) -> int:
        return self._counts.total(f"a.{tenant}")

    def _add(self, key: str, count: int) -> None:
        self._minutes.setdefault(key, _Minutes()).add(_minute(), count)

    def _local(self) -> Mapping[str, int]:
        minute = _minute()
        totals = {key: one.total(minute) for key, one in self._minutes.items()}
        self._minutes = {key: one for key, one in self._minutes.items() if totals[key]}
        return {key: count for key, count in totals.items() if count}


def _minute() -> int:
    return int(time.monotonic()) // 60
