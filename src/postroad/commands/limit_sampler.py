"""Samples of the rate limits of routes, for reports that compare them with their use."""

import asyncio

from postroad.api.command_limits import RateLimit
from postroad.commands.events import LimitSampled
from postroad.commands.records import RouteRecord
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.telemetry.outbox import Outbox

SAMPLE_MS = 300_000
_AT_ONCE = 200


class LimitSampler:
    """Records each limit every five minutes, and when it is new or has changed. Call `run_once` periodically in one process."""

    def __init__(self, routes: ReplicatedTable[RouteRecord], outbox: Outbox, clock: Clock) -> None:
        self._routes, self._outbox, self._clock = routes, outbox, clock
        self._sampled: dict[str, tuple[RateLimit, int]] = {}  # by route: the limit, and when it was recorded

    async def run_once(self) -> int:
        """Return the number of limits that were recorded."""
        count, now, known = 0, self._clock(), self._sampled
        self._sampled = {}
        for number, key in enumerate(list(self._routes.keys_under())):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            record = self._routes.get(key)
            if record is None or record.rate_limit is None:
                continue
            limit, sampled_at = known.get(key, (None, 0))
            if limit == record.rate_limit and now - sampled_at < SAMPLE_MS:
                self._sampled[key] = (limit, sampled_at)
                continue
            self._sampled[key] = (record.rate_limit, now)
            self._outbox.record(None, _sample(record, record.rate_limit))
            count += 1
        return count


def _sample(record: RouteRecord, limit: RateLimit) -> LimitSampled:
    return LimitSampled(
        tenant=record.tenant,
        target=record.target,
        command_name=record.command,
        max=limit.max,
        interval_seconds=limit.interval_seconds,
        mode=limit.mode,
    )
