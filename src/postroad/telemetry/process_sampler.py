"""What a process did and how it is, told now and then: `traffic.sampled` for each tenant, `process.sampled` for itself."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from postroad.kernel.event import PLATFORM
from postroad.kernel.usage_counters import UsageCounters, UsageDelta
from postroad.telemetry.events import ProcessSampled, TrafficSampled
from postroad.telemetry.outbox import Outbox

_TICK_SECONDS = 0.25
_STATM = Path("/proc/self/statm")


class ProcessSampler:
    """`tenants`: of whom it is told."""

    def __init__(
        self,
        outbox: Outbox,
        traffic: UsageCounters,
        *,
        worker: str,
        role: str,
        tenants: Callable[[], list[str]],
        seconds: float,
    ) -> None:
        self._outbox, self._traffic = outbox, traffic
        self._worker, self._role, self._tenants = worker, role, tenants
        self._seconds = seconds
        self._told_at = time.monotonic()
        self._lag = 0.0
        self._dropped = 0

    async def run(self) -> None:
        """Until cancelled. It sleeps for moments only: how much longer they last than they should is what all work here waits."""
        while True:
            due = time.monotonic() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self._lag = max(self._lag, now - due)
            if now - self._told_at >= self._seconds:
                self.sample()

    def sample(self) -> None:
        """All since the last time."""
        now = time.monotonic()
        seconds, self._told_at = round(now - self._told_at, 3), now
        if seconds <= 0:
            return
        told = set(self._tenants())
        all_of_it = UsageDelta()
        for tenant, counted in self._traffic.take():
            all_of_it = UsageDelta(*(one + more for one, more in zip(all_of_it, counted, strict=True)))
            if tenant in told:
                self._outbox.record(None, self._traffic_event(tenant, counted, seconds))
        self._outbox.record(None, self._process_event(all_of_it, seconds))

    def _traffic_event(self, tenant: str, counted: UsageDelta, seconds: float) -> TrafficSampled:
        return TrafficSampled(
            tenant=tenant,
            worker=self._worker,
            seconds=seconds,
            requests=counted.requests,
            failures=counted.failures,
            bytes_in=counted.bytes_in,
            bytes_out=counted.bytes_out,
            appends=counted.appends,
            append_bytes=counted.append_bytes,
            fanout_messages=counted.fanout_messages,
        )

    def _process_event(self, counted: UsageDelta, seconds: float) -> ProcessSampled:
        lag, self._lag = self._lag, 0.0
        dropped, self._dropped = self._outbox.dropped - self._dropped, self._outbox.dropped
        return ProcessSampled(
            tenant=PLATFORM,
            worker=self._worker,
            role=self._role,
            seconds=seconds,
            requests=counted.requests,
            client_errors=counted.client_errors,
            server_errors=counted.server_errors,
            open_requests=self._traffic.open_requests,
            loop_lag_ms=round(lag * 1000),
            memory_bytes=memory_bytes(),
            events_dropped=dropped,
        )


def memory_bytes() -> int:
    """What the process has in memory; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
