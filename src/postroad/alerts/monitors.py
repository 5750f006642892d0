"""Events that no other part of Postroad records: dead letters that grow, and a pipeline that lags."""

from collections.abc import Iterable

import msgspec

from postroad.alerts.events import DeadLettersGrowing, PipelineLagging
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.kernel.event import PLATFORM
from postroad.queues.events import QueueSampled
from postroad.telemetry.outbox import Outbox

_WINDOW_MS = 300_000
_ADDED_MIN = 10
_LAG_SECONDS_MIN = 300.0
_PERIODS_MAX = 10

_decode = msgspec.json.Decoder(PipelineProgress, strict=False).decode


class DeadLetterMonitor:
    """Listens to the sampler of queues, in the leader of the control role."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox, self._clock = outbox, clock
        self._first: dict[tuple[str, str], tuple[int, int]] = {}  # of the window: time, number of dead letters

    def reset(self) -> None:
        self._first.clear()

    async def observe(self, samples: Iterable[QueueSampled]) -> int:
        """Return how many queues were reported."""
        now, reported = self._clock(), 0
        for one in samples:
            key = (one.tenant, one.queue)
            since, dead = self._first.setdefault(key, (now, one.dead))
            if now < since:  # reported in this window
                continue
            if one.dead - dead >= _ADDED_MIN:
                added, seconds = one.dead - dead, round((now - since) / 1000, 3)
                event = DeadLettersGrowing(tenant=one.tenant, queue=one.queue, dead=one.dead, added=added, seconds=seconds)
                self._outbox.record(None, event)
                self._first[key] = (now + _WINDOW_MS, one.dead)
                reported += 1
            elif now - since >= _WINDOW_MS or one.dead < dead:
                self._first[key] = (now, one.dead)
        return reported


class PipelineMonitor:
    """Compares the time of the pipeline's last batch with its period."""

    def __init__(self, connection: Connection, outbox: Outbox, clock: Clock) -> None:
        self._connection, self._outbox, self._clock = connection, outbox, clock
        self._reported_ms = 0

    async def run_once(self) -> bool:
        """True if the pipeline lags. Raises EngineUnavailable."""
        entry = await stream_reader.last(self._connection, PIPELINE_PROGRESS.stream, PIPELINE_PROGRESS.subject)
        if entry is None:  # there is no pipeline
            return False
        try:
            period = _decode(entry.payload).period or 0.0
        except (ValueError, RecursionError):
            return False
        now, expected = self._clock(), max(_LAG_SECONDS_MIN, period * _PERIODS_MAX)
        seconds = (now - entry.at_ms) / 1000
        if seconds <= expected:
            return False
        if now - self._reported_ms >= _WINDOW_MS:
            self._reported_ms = now
            self._outbox.record(None, PipelineLagging(tenant=PLATFORM, seconds=round(seconds, 1), expected_seconds=expected))
        return True
