"""How fast messages come and go, over all workers: each tells the others every two seconds what it has counted.

The numbers travel as plain NATS messages and are stored nowhere. A worker that is not heard from for a while does not count.
"""

import asyncio
from collections.abc import Set
from dataclasses import dataclass

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id

_SUBJECT = "postroad.rates"
_EVERY_SECONDS = 2.0
_SILENT_SECONDS = 5.0


class _Counts(msgspec.Struct, frozen=True, array_like=True):
    """What one worker has seen in `seconds`: by stream, how many came and how many went."""

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
        self._came: dict[str, int] = {}
        self._went: dict[str, int] = {}
        self._heard: dict[str, tuple[float, _Counts]] = {}
        self._collected: dict[str, tuple[int, int]] | None = None

    def published(self, stream: str, count: int) -> None:
        self._came[stream] = self._came.get(stream, 0) + count

    def settled(self, stream: str, count: int) -> None:
        self._went[stream] = self._went.get(stream, 0) + count

    def of(self, stream: str) -> Rate:
        """Over the last two seconds, as far as is known."""
        now = asyncio.get_running_loop().time()
        came = went = 0.0
        for worker, (at, counts) in list(self._heard.items()):
            if now - at > _SILENT_SECONDS:
                del self._heard[worker]
                continue
            some = counts.by_stream.get(stream)
            if some is not None:
                came += some[0] / counts.seconds
                went += some[1] / counts.seconds
        return Rate(round(came, 1), round(went, 1))

    # For one who looks now and then, and wants all that came and went since

    def collect(self) -> None:
        """Add up what is heard from now on, until it is taken."""
        self._collected = {}

    def stop_collecting(self) -> None:
        self._collected = None

    def stirred(self) -> Set[str]:
        """The streams of which there is something to take."""
        return (self._collected or {}).keys()

    def take(self, stream: str) -> tuple[int, int]:
        """How many came and how many went since the last time."""
        return (self._collected or {}).pop(stream, (0, 0))

    async def run(self) -> None:
        """Tell and listen, until cancelled."""
        loop = asyncio.get_running_loop()
        stop = await self._connection.listen(_SUBJECT, self._hear)
        told_at = loop.time()
        try:
            while True:
                await asyncio.sleep(_EVERY_SECONDS)
                now = loop.time()
                counts = self._counted(now - told_at)
                told_at = now
                try:
                    await self._connection.publish(_SUBJECT, msgspec.msgpack.encode(counts))
                except ConnectionLost:  # nobody misses what is two seconds old
                    continue
        finally:
            await stop()

    def _counted(self, seconds: float) -> _Counts:
        came, self._came = self._came, {}
        went, self._went = self._went, {}
        streams = came.keys() | went.keys()
        return _Counts(self._worker, seconds, {name: (came.get(name, 0), went.get(name, 0)) for name in streams})

    def _hear(self, payload: bytes) -> None:
        try:
            counts = _decode(payload)
        except msgspec.DecodeError:
            return
        if counts.seconds > 0:
            self._heard[counts.worker] = (asyncio.get_running_loop().time(), counts)
        if self._collected is not None:
            for stream, (came, went) in counts.by_stream.items():
                before = self._collected.get(stream, (0, 0))
                self._collected[stream] = (before[0] + came, before[1] + went)
