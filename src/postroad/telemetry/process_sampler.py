"""Samples the process periodically: `traffic.sampled` for each tenant, `process.sampled` for the process itself."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from postroad.kernel.event import PLATFORM
from postroad.kernel.usage_counters import UsageCounters
from postroad.telemetry.events import ProcessSampled, TrafficSampled
from postroad.telemetry.outbox import Outbox

_TICK_SECONDS = 0.25
_STATM = Path("/proc/self/statm")
_TRAFFIC_FIELDS = frozenset(TrafficSampled.__struct_fields__)


class ProcessSampler:
    """Records the traffic of the tenants that `tenants` returns, every `seconds`."""

    def __init__(
        self,
        outbox: Outbox,
        usage: UsageCounters,
        *,
        worker: str,
        role: str,
        tenants: Callable[[], list[str]],
        seconds: float,
    ) -> None:
        self._outbox, self._usage = outbox, usage
        self._worker, self._role, self._tenants = worker, role, tenants
        self._seconds = seconds
        self._sampled_at = time.monotonic()
        self._lag = 0.0
        self._dropped = 0

    async def run(self) -> None:
        """Sample until cancelled. The lag of the event loop is measured by how late short sleeps end."""
        while True:
            due = time.monotonic() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self._lag = max(self._lag, now - due)
            if now - self._sampled_at >= self._seconds:
                self.sample()

    def sample(self) -> None:
        """Record the usage since the last sample."""
        now = time.monotonic()
        seconds, self._sampled_at = round(now - self._sampled_at, 3), now
        if seconds <= 0:
            return
        tenants, total = set(self._tenants()), Counter[str]()
        for tenant, counts in self._usage.take():
            total.update(counts)
            if tenant in tenants:
                self._outbox.record(None, self._traffic_event(tenant, counts, seconds))
        self._outbox.record(None, self._process_event(total, seconds))

    def _traffic_event(self, tenant: str, counts: Mapping[str, int], seconds: float) -> TrafficSampled:
        return TrafficSampled(
            tenant=tenant,
            worker=self._worker,
            seconds=seconds,
            failures=counts["client_errors"] + counts["server_errors"],
            **{name: count for name, count in counts.items() if name in _TRAFFIC_FIELDS},  # type: ignore[arg-type]
        )

    def _process_event(self, total: Mapping[str, int], seconds: float) -> ProcessSampled:
        lag, self._lag = self._lag, 0.0
        dropped, self._dropped = self._outbox.dropped - self._dropped, self._outbox.dropped
        return ProcessSampled(
            tenant=PLATFORM,
            worker=self._worker,
            role=self._role,
            seconds=seconds,
            requests=total["requests"],
            client_errors=total["client_errors"],
            server_errors=total["server_errors"],
            open_requests=self._usage.open_requests,
            loop_lag_ms=round(lag * 1000),
            memory_bytes=memory_bytes(),
            events_dropped=dropped,
        )


def memory_bytes() -> int:
    """Resident memory of the process; 0 where /proc is missing."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
