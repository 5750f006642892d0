"""Measures the engine's time, which leases, delays and expiries use, so that the clocks of gateways need not agree.

The information on a stream carries the time of the server that leads it. It was taken between the request and the reply, which
bounds the offset to the monotonic clock. A measurement moves the offset only as far as these bounds require, so that a slow reply
does no harm. In a cluster the servers themselves may differ: several streams are asked, and the median of their leaders counts.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from postroad.api.health import Check
from postroad.jetstream import metrics
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.clock import EngineClock

_INTERVAL_SECONDS = 5.0
_TIMEOUT_SECONDS = 2.0
_STREAMS_MAX = 7  # enough to be led by all servers of a small cluster
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

log = structlog.get_logger("postroad.jetstream")


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The time of a server, and monotonic times before the request and after the reply."""

    server: str
    at_ns: int
    sent_ns: int
    received_ns: int


def server_offsets(current_ns: int, samples: Iterable[ClockSample]) -> dict[str, int]:
    """The offset of each server: the current one, moved into the bounds of each of its samples."""
    offsets: dict[str, int] = {}
    for one in samples:
        offset = offsets.get(one.server, current_ns)
        offsets[one.server] = min(max(offset, one.at_ns - one.received_ns), one.at_ns - one.sent_ns)
    return offsets


def engine_offset(offsets: Mapping[str, int]) -> int:
    """The median: one wrong clock of three servers does not count."""
    return int(statistics.median(offsets.values()))


class ClockSync:
    """Keeps a clock at the engine's time, and checks the system's clock against it."""

    def __init__(self, connection: Connection, clock: EngineClock, streams: Sequence[str], *, skew_seconds_max: float) -> None:
        self._connection, self._clock, self._streams = connection, clock, tuple(streams[:_STREAMS_MAX])
        self._skew_seconds_max = skew_seconds_max
        self._is_measured = self._is_reported = False
        self._spread_seconds = 0.0  # between the clocks of the servers

    def check(self) -> Check:
        """Not ok before the first measurement, and while the system's clock differs from the engine's by more than the limit."""
        if not self._is_measured:
            return Check(False, "the engine's time is not known yet")
        skew_seconds = self._clock.skew_seconds
        detail = f"{abs(skew_seconds):.3f} s {'ahead of' if skew_seconds >= 0 else 'behind'} the engine"
        if self._spread_seconds > self._skew_seconds_max:
            detail += f", whose servers differ by {self._spread_seconds:.3f} s"
        return Check(abs(skew_seconds) <= self._skew_seconds_max, detail)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def measure(self) -> None:
        """Correct the clock; without an answer it continues as before."""
        samples = await asyncio.gather(*(self._sample(stream) for stream in self._streams))
        offsets = server_offsets(self._clock.offset_ns, [one for one in samples if one is not None])
        if offsets:
            self._clock.offset_ns = engine_offset(offsets)
            self._spread_seconds = (max(offsets.values()) - min(offsets.values())) / 1e9
            self._is_measured = True
            metrics.clock_skew.set(self._clock.skew_seconds)
            self._report()

    def _report(self) -> None:
        """Log once when clocks begin to differ: the remedy is time synchronisation on the machine."""
        has_problem = max(abs(self._clock.skew_seconds), self._spread_seconds) > self._skew_seconds_max
        if has_problem and not self._is_reported:
            log.warning("clocks_differ", skew_seconds=self._clock.skew_seconds, servers_differ_seconds=self._spread_seconds)
        self._is_reported = has_problem

    async def _sample(self, stream: str) -> ClockSample | None:
        sent_ns = time.monotonic_ns()
        try:
            reply = await self._connection.request(f"$JS.API.STREAM.INFO.{stream}", timeout=_TIMEOUT_SECONDS)
            info = _decode(reply.data)
        except (ConnectionLost, TimeoutError, msgspec.DecodeError):
            return None
        if info.ts is None:  # an error: no such stream, or no leader
            return None
        at_ns = (info.ts - _EPOCH) // _MICROSECOND * 1000
        return ClockSample(info.cluster.leader, at_ns, sent_ns, time.monotonic_ns())


class _Cluster(msgspec.Struct):
    leader: str = ""


class _StreamTime(msgspec.Struct):
    ts: datetime | None = None
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


_decode = msgspec.json.Decoder(_StreamTime).decode
