"""The samples of a tenant's queues of the last ten minutes, in the memory of a process that needs them: read from the stored
events when it begins to, and then followed."""

import asyncio
from array import array
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.stream_reader import Entry, time_ms
from postroad.jetstream.tail import Source, follow
from postroad.kernel.clock import Clock
from postroad.queues.events import QueueSampled
from postroad.telemetry.frames import frame_subject, unpack

SAMPLES_MAX = 60
SAMPLE_FIELDS = ("ready", "leased", "delayed", "retrying", "dead", "oldestAgeMs", "inPerSecond", "outPerSecond")
_HISTORY_MS = 600_000
_WIDTH = 1 + len(SAMPLE_FIELDS)
_STREAM = "TELEMETRY"
_PAGE = 128
_PAGES_MAX = 200
_KEEP_SECONDS = 60.0
_QUEUES_MAX = 5_000  # with samples; further ones have their latest sample only
_MARK = b'{"event":"queue.sampled"'

_decode = msgspec.json.Decoder(QueueSampled).decode

log = structlog.get_logger("postroad.queues")


class SampleHistory:
    """`latest` has the newest sample, and its time, of each queue that was sampled in the last ten minutes."""

    def __init__(self, connection: Connection, tenant: str, clock: Clock) -> None:
        self._connection, self._tenant, self._clock = connection, tenant, clock
        self.latest: dict[str, tuple[QueueSampled, int]] = {}
        self._samples: dict[str, array[float]] = {}
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the stored samples, and follow the stream. Raises EngineUnavailable."""
        info = await stream_info(self._connection, _STREAM)
        end = info.state.last_seq if info is not None else 0
        subject = frame_subject(_STREAM, self._tenant)
        page = await stream_reader.read_since(self._connection, _STREAM, subject, self._clock() - _HISTORY_MS, _PAGE)
        for _ in range(_PAGES_MAX):
            for entry in page.entries:
                self._add(entry)
                end = max(end, entry.sequence)
            if page.is_end or not page.entries:
                break
            await asyncio.sleep(0)
            page = await stream_reader.read(self._connection, _STREAM, subject, page.next_sequence, _PAGE)
        self._following = asyncio.create_task(self._follow(Source(_STREAM, subject), end))

    async def _follow(self, source: Source, after: int) -> None:
        async with aclosing(follow(self._connection, source, after)) as entries:
            async for entry in entries:
                self._add(entry)

    def check(self) -> None:
        """Raises what ended the following of the stream."""
        if self._following is not None and self._following.done():
            self._following.result()

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _add(self, entry: Entry) -> None:
        for line in unpack(entry.payload):
            if not line.startswith(_MARK):
                continue
            try:
                sample = _decode(line)
                at_ms = time_ms(sample.timestamp)
            except ValueError:  # written by another client of the engine
                continue
            self.latest[sample.queue] = sample, at_ms
            samples = self._samples.get(sample.queue)
            if samples is None:
                if len(self._samples) >= _QUEUES_MAX:
                    continue
                samples = self._samples[sample.queue] = array("d")
            samples.extend(_values(sample, at_ms))
            del samples[: max(0, len(samples) - SAMPLES_MAX * _WIDTH)]

    def forget(self, queue: str) -> None:
        self.latest.pop(queue, None)
        self._samples.pop(queue, None)

    def samples_of(self, queue: str) -> Sequence[Sequence[float]]:
        """Samples of the last ten minutes, oldest first: the time in milliseconds, and `SAMPLE_FIELDS`; -1 for none."""
        samples, oldest = self._samples.get(queue, array("d")), self._clock() - _HISTORY_MS
        rows = [samples[start : start + _WIDTH] for start in range(0, len(samples), _WIDTH)]
        return [[int(value) if value == int(value) else value for value in row] for row in rows if row[0] >= oldest]


def _values(sample: QueueSampled, at_ms: int) -> tuple[float, ...]:
    return (
        at_ms,
        sample.ready,
        sample.leased,
        sample.delayed,
        sample.retrying,
        sample.dead,
        -1 if sample.oldest_age_ms is None else sample.oldest_age_ms,
        sample.in_per_second,
        sample.out_per_second,
    )


class LatestSamples:
    """The latest sample of each queue of a tenant, for lists that are too long to read the stats of each queue. They are
    followed for a minute after the last request."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self._histories: dict[str, tuple[float, SampleHistory]] = {}
        self._opening = asyncio.Lock()

    async def of(self, tenant: str) -> dict[str, QueueSampled]:
        """Raises EngineUnavailable."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            _, history = self._histories.get(tenant, (0.0, None))
            if history is None:
                history = SampleHistory(self._connection, tenant, self._clock)
                await history.open()
            self._histories[tenant] = loop.time(), history
        loop.call_later(_KEEP_SECONDS + 1, self._drop_idle)
        history.check()
        return {queue: sample for queue, (sample, _) in history.latest.items()}

    def _drop_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for tenant, (used_at, history) in list(self._histories.items()):
            if now - used_at > _KEEP_SECONDS:
                history.close()
                del self._histories[tenant]

    def close(self) -> None:
        for _, history in self._histories.values():
            history.close()
        self._histories.clear()
