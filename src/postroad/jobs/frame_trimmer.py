"""Trims `JOBS` and `TELEMETRY`: removes frames that every reader has stored, once they are old enough.

The readers are the pipeline, whose last published progress has its positions, and for `JOBS` the index of this leader. Frames
are kept for a time after that, for a rebuild of the index, for followers that reconnect, and for a batch that the pipeline
repeats after a crash. Without a pipeline nothing is trimmed here; the retention of the streams removes old frames. `COMMANDS` is
not trimmed here: it is the telemetry queue of the tenants, which has the events of the last 14 days as far as there is room.
"""

import msgspec
import structlog

from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream, stream_info
from postroad.jobs import metrics
from postroad.jobs.projection import Projection
from postroad.jobs.stream_follower import STREAM as JOBS
from postroad.kernel.clock import Clock
from postroad.telemetry.frames import STREAMS

_TRIMMED = (JOBS, "TELEMETRY")

_decode = msgspec.json.Decoder(PipelineProgress, strict=False).decode

log = structlog.get_logger("postroad.jobs")


class FrameTrimmer:
    """Call `run_once` periodically in the process that has the job index. Two leaders at the same time do no harm."""

    def __init__(self, connection: Connection, projection: Projection, clock: Clock, *, keep_ms: int) -> None:
        self._connection, self._projection, self._clock, self._keep_ms = connection, projection, clock, keep_ms

    async def run_once(self) -> int:
        """Return how many frames were removed. Raises EngineUnavailable, EngineRefused."""
        positions = await self._pipeline_positions()
        removed = 0
        for stream in _TRIMMED:
            if positions.get(stream, 0) > 0:
                removed += await self._trim(stream, positions[stream])
        metrics.trimmed.inc(removed)
        return removed

    async def _index_position(self) -> int:
        """The sequence up to which the index, and during a rebuild the new one, has read `JOBS`; 0 while it is not loaded."""
        if not self._projection.is_loaded:
            return 0
        progress = await self._projection.progress()
        return progress.position if progress.rebuilt is None else min(progress.position, progress.rebuilt)

    async def _pipeline_positions(self) -> dict[str, int]:
        """The sequences up to which the pipeline has stored the streams; empty if there is no pipeline."""
        entry = await stream_reader.last(self._connection, PIPELINE_PROGRESS.stream, PIPELINE_PROGRESS.subject)
        if entry is None:
            return {}
        try:
            progress = _decode(entry.payload)
        except (ValueError, RecursionError) as problem:
            log.error("pipeline_state_unreadable", problem=str(problem))
            return {}
        return {row.stream: row.sequence for row in progress.rows} if progress.v == VERSION else {}

    async def _trim(self, stream: str, position: int) -> int:
        """Remove the frames that are old enough, up to the position of the pipeline."""
        info = await stream_info(self._connection, stream)
        if info is None or position > info.state.last_seq:  # progress with another stream of that name
            return 0
        if stream == JOBS:
            position = min(position, await self._index_position())
        recent = await stream_reader.read_since(
            self._connection, stream, f"{STREAMS[stream]}.>", self._clock() - self._keep_ms, 1
        )
        before = min(position + 1, recent.entries[0].sequence if recent.entries else position + 1)
        return await purge_stream(self._connection, stream, before=before) if before > info.state.first_seq else 0
