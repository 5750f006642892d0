"""Status of the pipeline: its last published progress, compared with the current end of the streams."""

import asyncio
import re
from datetime import datetime
from typing import NamedTuple

import msgspec
import structlog

from postroad.api.insights import PipelineState, PipelineStatus, SourceProgress
from postroad.contracts.batch_requests import SUBJECT as BATCH_REQUESTS
from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.insights import metrics
from postroad.insights.results import UNREADABLE, moment_of, time_text
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import PostroadError

REFRESH_SECONDS = 5.0
_DEFAULT_PERIOD_SECONDS = 60.0
_STREAMS_MAX = 16
_WAIT_SECONDS = 1.0
_REQUEST_SECONDS = 1.0
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = structlog.get_logger("postroad.insights")


class _Observation(NamedTuple):
    """The last progress, compared with the streams at `at_ms`."""

    progress: PipelineProgress
    computed_at: datetime
    streams: list[SourceProgress]
    at_ms: int


_decode = msgspec.json.Decoder(PipelineProgress, strict=False).decode


def _progress_of(payload: bytes) -> tuple[PipelineProgress, datetime] | None:
    try:
        found = _decode(payload)
        computed_at = moment_of(found.computed_at)
    except UNREADABLE as problem:
        log.error("pipeline_state_unreadable", problem=str(problem))
        return None
    return (found, computed_at) if found.v == VERSION else None


class PipelineMonitor:
    """Reads the status from the engine on request, and caches it for callers that accept a recent one."""

    def __init__(self, connection: Connection, clock: Clock, *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self._connection, self._clock, self._refresh_seconds = connection, clock, refresh_seconds
        self._refresh: asyncio.Task[_Observation | None] | None = None
        self._cached: _Observation | None = None
        self._cached_at: float | None = None
        self._request_due = 0.0

    async def read(self) -> PipelineStatus:
        """The current status. Raises EngineUnavailable."""
        return self._status(await self._observe())

    async def read_recent(self) -> PipelineStatus:
        """The status of the last few seconds. Concurrent callers share one read. Raises EngineUnavailable."""
        loop = asyncio.get_running_loop()
        if self._cached_at is None or loop.time() - self._cached_at > self._refresh_seconds:
            if self._refresh is None or self._refresh.done():
                self._refresh = asyncio.create_task(self._observe())
                self._refresh.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            started = loop.time()
            self._cached, self._cached_at = await asyncio.shield(self._refresh), started
        return self._status(self._cached)

    async def as_of(self) -> str | None:
        """The time up to which all events are in the results. None if it is not known. Does not raise, and returns within a
        second."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                return (await self.read_recent()).as_of
        except (PostroadError, TimeoutError):
            return None

    async def request_batch(self) -> None:
        """Ask the pipeline for a batch, at most once a second. It may not run: this is no error."""
        now = asyncio.get_running_loop().time()
        if self._connection.is_up and now >= self._request_due:
            self._request_due = now + _REQUEST_SECONDS
            self._connection.publish(BATCH_REQUESTS, b"")

    async def detail(self) -> str:
        """The status as text for readiness. Does not raise, and returns within a second."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                found = await self.read_recent()
        except (PostroadError, TimeoutError):
            return "unknown: the engine did not answer"
        if found.state is PipelineState.OFF:
            return "off"
        return f"batch {found.batch}, {found.age:.0f} s ago, lag {found.lag} messages"

    async def measure(self) -> None:
        """Keep the metrics of the pipeline current, until cancelled."""
        while True:
            try:
                _set_metrics(await self.read(), self._clock())
            except PostroadError as problem:
                log.warning("pipeline_status_unavailable", code=problem.code)
            await asyncio.sleep(self._refresh_seconds)

    async def _observe(self) -> _Observation | None:
        entry = await stream_reader.last(self._connection, PIPELINE_PROGRESS.stream, PIPELINE_PROGRESS.subject)
        found = _progress_of(entry.payload) if entry else None
        if found is None:
            return None
        (progress, computed_at), at_ms = found, self._clock()
        named = [row for row in progress.rows if _STREAM_NAME.fullmatch(row.stream)]
        return _Observation(progress, computed_at, [await self._with_lag(row) for row in named[:_STREAMS_MAX]], at_ms)

    async def _with_lag(self, row: SourceProgress) -> SourceProgress:
        info = await stream_info(self._connection, row.stream)
        last = info.state.last_seq if info else row.last_sequence
        return msgspec.structs.replace(row, last_sequence=last, lag=max(0, last - row.sequence))

    def _status(self, observed: _Observation | None) -> PipelineStatus:
        if observed is None:
            return PipelineStatus(state=PipelineState.OFF)
        progress, computed_at, streams, _ = observed
        age = max(0.0, self._clock() / 1000 - computed_at.timestamp())
        period = progress.period or _DEFAULT_PERIOD_SECONDS
        return PipelineStatus(
            state=PipelineState.RUNNING if age < 3 * period else PipelineState.BEHIND,
            batch=progress.batch,
            computed_at=time_text(computed_at),
            age=round(age, 1),
            period=period,
            lag=sum(row.lag for row in streams),
            streams=streams,
            events=progress.events,
            seconds=progress.seconds,
            quarantined=progress.quarantined,
            late=progress.late,
            duplicates=progress.duplicates,
            as_of=_as_of(observed),
        )


def _as_of(observed: _Observation) -> str | None:
    """A pipeline that has read everything is as fresh as the look at the streams."""
    if observed.progress.is_complete and not any(row.lag for row in observed.streams):
        return rfc3339(observed.at_ms)
    return observed.progress.fresh_until


def _set_metrics(status: PipelineStatus, now_ms: int) -> None:
    for row in status.streams:
        metrics.lag.labels(row.stream).set(row.lag)
    if status.as_of is not None:
        metrics.freshness.set(max(0.0, now_ms / 1000 - datetime.fromisoformat(status.as_of).timestamp()))
    metrics.last_batch.set(datetime.fromisoformat(status.computed_at).timestamp() if status.computed_at else 0)
    metrics.quarantined.set(sum(status.quarantined.values()))
