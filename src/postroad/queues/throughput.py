"""Message rates of queues over all workers. Each worker broadcasts its counts every two seconds.

The counts are plain NATS messages and are not stored. A worker that sends none for five seconds is ignored.
"""

import asyncio
from collections.abc import Set
from dataclasses import dataclass

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id

_SUBJECT = "postroad.rates"
_INTERVAL_SECONDS = 2.0
_EXPIRY_SECONDS = 5.0


class _Counts(msgspec.Struct, frozen=True, array_like=True):
    """Messages that one worker published and completed in `seconds`, by stream."""

    worker: str
    seconds: float
    by_stream: dict[str, tuple[int, int]]


_decode = msgspec.msgpack.Decoder(_Counts).decode


@dataclass(frozen=True, slots=True)
class Rate:
    in_per_second: float
    out_per_second: float


class Throughput:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._worker = new_id()
        self._published: dict[str, int] = {}
        self._completed: dict[str, int] = {}
        self._received: dict[str, tuple[float, _Counts]] = {}
        self._totals: dict[str, tuple[int, int]] | None = None

    def add_published(self, stream: str, count: int) -> None:
        self._published[stream] = self._published.get(stream, 0) + count

    def add_completed(self, stream: str, count: int) -> None:
        """Count messages that were acknowledged or dead-lettered."""
        self._completed[stream] = self._completed.get(stream, 0) + count

    def rate(self, stream: str) -> Rate:
        """The rates of the last two seconds."""
        now = asyncio.get_running_loop().time()
        published = completed = 0.0
        for worker, (at, counts) in list(self._received.items()):
            if now - at > _EXPIRY_SECONDS:
                del self._received[worker]
                continue
            found = counts.by_stream.get(stream)
            if found is not None:
                published += found[0] / counts.seconds
                completed += found[1] / counts.seconds
        return Rate(round(published, 1), round(completed, 1))

    # Totals, for the sampler

    def start_totals(self) -> None:
        """Add up the counts that arrive from now on."""
        self._totals = {}

    def stop_totals(self) -> None:
        self._totals = None

    def active_streams(self) -> Set[str]:
        """The streams that have totals."""
        return (self._totals or {}).keys()

    def pop_totals(self, stream: str) -> tuple[int, int]:
        """Messages published and completed since the last call."""
        return (self._totals or {}).pop(stream, (0, 0))

    async def run(self) -> None:
        """Broadcast and receive counts, until cancelled."""
        loop = asyncio.get_running_loop()
        stop = await self._connection.listen(_SUBJECT, self._receive)
        sent_at = loop.time()
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                now = loop.time()
                counts = self._pop_counts(now - sent_at)
                sent_at = now
                try:
                    await self._connection.publish(_SUBJECT, msgspec.msgpack.encode(counts))
                except ConnectionLost:  # the counts would be stale when the connection is back
                    continue
        finally:
            await stop()

    def _pop_counts(self, seconds: float) -> _Counts:
        published, self._published = self._published, {}
        completed, self._completed = self._completed, {}
        streams = published.keys() | completed.keys()
        return _Counts(self._worker, seconds, {name: (published.get(name, 0), completed.get(name, 0)) for name in streams})

    def _receive(self, payload: bytes) -> None:
        try:
            counts = _decode(payload)
        except msgspec.DecodeError:
            return
        if counts.seconds > 0:
            self._received[counts.worker] = (asyncio.get_running_loop().time(), counts)
        if self._totals is not None:
            for stream, (published, completed) in counts.by_stream.items():
                before = self._totals.get(stream, (0, 0))
                self._totals[stream] = (before[0] + published, before[1] + completed)
