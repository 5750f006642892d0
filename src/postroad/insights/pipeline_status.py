"""How the pipeline is: what it said of itself last, beside what the streams have by now.

Nothing on the hot path asks for it. What is known is kept for a few seconds, so that being asked often costs nothing.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from postroad.insights import metrics
from postroad.insights.rows import VERSION, Batch, Number, When
from postroad.insights.store import STREAM, subject_of
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError

SUBJECT = subject_of("_platform", "pipeline", "now", "all")
LOOK_EVERY_SECONDS = 5.0
_PERIOD_SECONDS = 60.0  # of a pipeline that does not say
_STREAMS_MAX = 16
_WAIT_SECONDS = 1.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = structlog.get_logger("postroad.insights")


class PipelineState(StrEnum):
    RUNNING = "running"
    BEHIND = "behind"
    OFF = "off"


class SourceProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far the pipeline is in one stream."""

    stream: str
    sequence: Annotated[int, Meta(description="The last message that it has read.")]
    last_sequence: Annotated[int, Meta(description="The last message that there is.")] = 0
    lag: Annotated[int, Meta(description="How many it has not read yet.")] = 0


class PipelineStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`running`: its last batch is younger than three periods; `behind`: it is not; `off`: nothing was ever heard of it."""

    state: PipelineState
    batch: Batch | None = None
    computed_at: Annotated[When | None, Meta(description="When the last batch was done.")] = None
    age: Annotated[Number | None, Meta(description="Seconds since then.")] = None
    period: Annotated[Number | None, Meta(description="Seconds from one batch to the next, as it is meant to be.")] = None
    lag: Annotated[int, Meta(description="Messages that it has not read yet, of all streams, as of now.")] = 0
    streams: list[SourceProgress] = []
    events: Annotated[int | None, Meta(description="Of the last batch.")] = None
    seconds: Annotated[Number | None, Meta(description="That the last batch took.")] = None
    quarantined: Annotated[dict[str, int], Meta(description="Lines that are no events, in all, by reason.")] = {}
    late: int | None = None
    duplicates: int | None = None


class _Told(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What it says of itself, after each batch."""

    v: int
    batch: Batch
    computed_at: When
    rows: list[SourceProgress] = []
    period_seconds: Annotated[float, Meta(gt=0)] | None = None
    period: Annotated[float, Meta(gt=0)] | None = None
    events: int | None = None
    seconds: Number | None = None
    quarantined: dict[str, int] = {}
    late: int | None = None
    duplicates: int | None = None


_told = msgspec.json.Decoder(_Told, strict=False)


def _read(payload: bytes) -> _Told | None:
    try:
        found = _told.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        log.error("pipeline_state_unreadable", problem=str(problem))
        return None
    return found if found.v == VERSION else None


class PipelineWatch:
    """Looks at the engine when it is asked, and no more often than it is worth."""

    def __init__(self, connection: Connection, clock: Clock, *, look_every: float = LOOK_EVERY_SECONDS) -> None:
        self._connection, self._clock, self._look_every = connection, clock, look_every
        self._looking: asyncio.Task[tuple[_Told | None, list[SourceProgress]]] | None = None
        self._seen: tuple[_Told | None, list[SourceProgress]] | None = None
        self._seen_at = 0.0

    async def now(self) -> PipelineStatus:
        """As of this moment. Raises EngineUnavailable."""
        return self._status(await self._look())

    async def recently(self) -> PipelineStatus:
        """As of a few seconds ago at the most. Who asks while somebody else looks waits for the same answer.

        Raises EngineUnavailable.
        """
        loop = asyncio.get_running_loop()
        if self._seen is None or loop.time() - self._seen_at > self._look_every:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
                self._looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._seen_at, self._seen = loop.time(), await asyncio.shield(self._looking)
        return self._status(self._seen)

    async def detail(self) -> str:
        """In a few words, for readiness: always an answer, and soon."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                found = await self.recently()
        except (PostroadError, TimeoutError):
            return "unknown: the engine did not answer"
        if found.state is PipelineState.OFF:
            return "off"
        return f"batch {found.batch}, {found.age:.0f} s ago, lag {found.lag} messages"

    async def follow(self, tell: Callable[[PipelineStatus], None]) -> None:
        """Until cancelled: have `tell` called with how it is, every few seconds."""
        while True:
            try:
                tell(await self.now())
            except PostroadError as problem:
                log.warning("pipeline_not_seen", code=problem.code)
            await asyncio.sleep(self._look_every)

    async def _look(self) -> tuple[_Told | None, list[SourceProgress]]:
        entry = await stream_reader.last(self._connection, STREAM, SUBJECT)
        told = _read(entry.payload) if entry else None
        if told is None:
            return None, []
        named = [row for row in told.rows if _NAME.fullmatch(row.stream)]
        return told, [await self._as_of_now(row) for row in named[:_STREAMS_MAX]]

    async def _as_of_now(self, row: SourceProgress) -> SourceProgress:
        info = await stream_info(self._connection, row.stream)
        last = info.state.last_seq if info else row.last_sequence
        return msgspec.structs.replace(row, last_sequence=last, lag=max(0, last - row.sequence))

    def _status(self, seen: tuple[_Told | None, list[SourceProgress]]) -> PipelineStatus:
        told, streams = seen
        if told is None:
            return PipelineStatus(state=PipelineState.OFF)
        age = max(0.0, self._clock() / 1000 - told.computed_at.timestamp())
        period = told.period_seconds or told.period or _PERIOD_SECONDS
        return PipelineStatus(
            state=PipelineState.RUNNING if age < 3 * period else PipelineState.BEHIND,
            batch=told.batch,
            computed_at=told.computed_at,
            age=round(age, 1),
            period=period,
            lag=sum(row.lag for row in streams),
            streams=streams,
            events=told.events,
            seconds=told.seconds,
            quarantined=told.quarantined,
            late=told.late,
            duplicates=told.duplicates,
        )


def measure(status: PipelineStatus) -> None:
    for row in status.streams:
        metrics.lag.labels(row.stream).set(row.lag)
    computed_at: datetime | None = status.computed_at
    metrics.last_batch.set(computed_at.timestamp() if computed_at else 0)
    metrics.quarantined.set(sum(status.quarantined.values()))
