"""Pulls that wait for a message, over all workers. Each worker broadcasts its numbers; they are not stored."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id

_SUBJECT = "postroad.waiting"
_INTERVAL_SECONDS = 0.5
_EXPIRY_SECONDS = 3.0


class _Waiting(msgspec.Struct, frozen=True, array_like=True):
    process: str
    by_stream: dict[str, int]


_decode = msgspec.msgpack.Decoder(_Waiting).decode


class WaitingPulls:
    """`local` returns the waiting pulls of this process by stream."""

    def __init__(self, connection: Connection, local: Callable[[], Mapping[str, int]]) -> None:
        self._connection, self._local = connection, local
        self._process = new_id()
        self._received: dict[str, tuple[float, dict[str, int]]] = {}

    def count(self, stream: str, open_requests: int) -> int:
        """Pulls that wait at a queue, for which JetStream has `open_requests`: one for all pulls of a worker."""
        if not open_requests:
            return 0
        now = asyncio.get_running_loop().time()
        others = sum(found.get(stream, 0) for at, found in self._received.values() if now - at <= _EXPIRY_SECONDS)
        return max(open_requests, others + self._local().get(stream, 0))

    async def run(self) -> None:
        """Broadcast and receive, until cancelled. A process without waiting pulls sends nothing."""
        stop = await self._connection.listen(_SUBJECT, self._receive)
        sent: dict[str, int] = {}
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                waiting = dict(self._local())
                if waiting or sent:
                    try:
                        await self._connection.publish(_SUBJECT, msgspec.msgpack.encode(_Waiting(self._process, waiting)))
                    except ConnectionLost:
                        continue
                sent = waiting
        finally:
            await stop()

    def _receive(self, payload: bytes) -> None:
        try:
            found = _decode(payload)
        except msgspec.DecodeError:
            return
        if found.process == self._process:
            return
        if found.by_stream:
            self._received[found.process] = (asyncio.get_running_loop().time(), found.by_stream)
        else:
            self._received.pop(found.process, None)
