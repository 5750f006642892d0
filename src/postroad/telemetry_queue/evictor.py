"""Makes room on `COMMANDS` before the engine does, so that no unread event leaves it without being counted.

The stream has a largest size, beyond which the engine removes the oldest frames at once, of whatever tenant. The leader of the
control role removes them earlier: it has their unread events counted (`DropCounter`), then removes the frames.
"""

from collections.abc import AsyncIterator

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamInfo, purge_stream, stream_info, subject_counts
from postroad.kernel.clock import Clock
from postroad.kernel.event import PLATFORM
from postroad.telemetry.outbox import Outbox
from postroad.telemetry_queue import metrics
from postroad.telemetry_queue.drops import DropCounter
from postroad.telemetry_queue.events import TelemetryEvicted
from postroad.telemetry_queue.records import STREAM
from postroad.telemetry_queue.rules import MARGIN_MS, RETENTION_MS, Fill

_STEPS = 20  # parts in which the frames are counted and removed

log = structlog.get_logger("postroad.telemetry_queue")


class FrameEvictor:
    """Call `run_once` every few seconds, in one process."""

    def __init__(self, connection: Connection, drops: DropCounter, outbox: Outbox, clock: Clock) -> None:
        self._connection, self._drops, self._outbox, self._clock = connection, drops, outbox, clock
        self._first = 0  # the oldest frame that was there in the last round
        self._counted = 0  # the newest one whose unread events have been counted

    async def run_once(self) -> int:
        """Return how many frames were removed. Raises EngineUnavailable, and Conflict if another leader has begun."""
        info = await stream_info(self._connection, STREAM)
        if info is None:
            return 0
        uncounted = self._uncounted(info)
        fill = _fill(info)
        metrics.fill.set(fill.bytes / fill.bytes_max if fill.bytes_max > 0 else 0)
        removed = await self._trim(info) if fill.is_over else 0
        if removed or uncounted:
            metrics.evicted.inc(removed)
            await self._report(removed, uncounted)
        return removed

    def expect_removal(self) -> None:
        """The frames of a deleted tenant are being removed: the oldest that is left is no sign of a lack of room."""
        self._first = 0

    def _uncounted(self, info: StreamInfo) -> int:
        """The number of frames that the engine has removed since the last round for lack of room, before they were counted."""
        before, first = self._first, info.state.first_seq
        self._first = first
        if not before or not info.state.messages:
            return 0
        is_by_age = self._clock() - stream_reader.time_ms(info.state.first_ts) >= RETENTION_MS - MARGIN_MS
        return 0 if is_by_age else max(0, first - max(before, self._counted + 1))

    async def _trim(self, info: StreamInfo) -> int:
        removed = 0
        async for last, is_complete in self._steps(info):
            if not is_complete and not _fill(info).is_urgent:
                break  # readers have leased some of them: perhaps they are acknowledged by the next round
            removed += await purge_stream(self._connection, STREAM, before=last + 1)
        return removed

    async def _steps(self, info: StreamInfo) -> AsyncIterator[tuple[int, bool]]:
        """Parts of the oldest frames, until there is room: the last sequence, and whether no unread frame is leased."""
        current: StreamInfo | None = info
        while current is not None and current.state.messages and not _fill(current).is_trimmed:
            state = current.state
            self._first = state.first_seq
            last = state.first_seq + (state.last_seq - state.first_seq) // _STEPS
            is_complete = await self._drops.drop_to(last)
            self._counted = max(self._counted, last)
            yield last, is_complete
            current = await stream_info(self._connection, STREAM)

    async def _report(self, removed: int, uncounted: int) -> None:
        counts: dict[str, int] = {}
        async for page in subject_counts(self._connection, STREAM, "command.>"):
            counts |= page
        busiest = max(counts, key=lambda subject: counts[subject], default="")
        info = await stream_info(self._connection, STREAM)
        kept_ms = 0
        if info is not None and info.state.messages:
            kept_ms = max(0, self._clock() - stream_reader.time_ms(info.state.first_ts))
        event = TelemetryEvicted(
            tenant=PLATFORM,
            frames=removed,
            uncounted_frames=uncounted,
            kept_seconds=round(kept_ms / 1000, 3),
            busiest_tenant=busiest.partition(".")[2],
            busiest_share=round(counts[busiest] / sum(counts.values()), 3) if counts else 0.0,
        )
        self._outbox.record(None, event)
        log.warning("telemetry_evicted", frames=removed, uncounted=uncounted, kept_seconds=event.kept_seconds)


def _fill(info: StreamInfo) -> Fill:
    return Fill(info.state.bytes, int(info.config.get("max_bytes", -1)))
