"""Numbers of all processes, such as open connections by topic. Each process broadcasts its own; they are not stored."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id

_KEYS_MAX = 5_000  # of a broadcast, which must fit into one message: further ones count in their own process only


class _Counts(msgspec.Struct, frozen=True, array_like=True):
    process: str
    by_key: dict[str, int]


_decode = msgspec.msgpack.Decoder(_Counts).decode


class ProcessCounts:
    """`local` returns the numbers of this process. Those of another one are valid for `expiry_seconds`."""

    def __init__(
        self,
        connection: Connection,
        subject: str,
        local: Callable[[], Mapping[str, int]],
        *,
        interval_seconds: float,
        expiry_seconds: float,
    ) -> None:
        self._connection, self._subject, self._local = connection, subject, local
        self._interval_seconds, self._expiry_seconds = interval_seconds, expiry_seconds
        self._process = new_id()
        self._received: dict[str, tuple[float, dict[str, int]]] = {}

    def total(self, key: str) -> int:
        now = asyncio.get_running_loop().time()
        others = sum(found.get(key, 0) for at, found in self._received.values() if now - at <= self._expiry_seconds)
        return others + self._local().get(key, 0)

    async def run(self) -> None:
        """Broadcast and receive, until cancelled. A process without numbers sends nothing."""
        stop = self._connection.listen(self._subject, self._receive)
        has_sent = False
        try:
            while True:
                await asyncio.sleep(self._interval_seconds)
                counts = dict(islice(self._local().items(), _KEYS_MAX))
                if counts or has_sent:
                    try:
                        self._connection.publish(self._subject, msgspec.msgpack.encode(_Counts(self._process, counts)))
                    except ConnectionLost:
                        continue
                has_sent = bool(counts)
        finally:
            await stop()

    def _receive(self, payload: bytes) -> None:
        try:
            found = _decode(payload)
        except msgspec.DecodeError:
            return
        if found.process == self._process:
            return
        if found.by_key:
            self._received[found.process] = (asyncio.get_running_loop().time(), found.by_key)
        else:
            self._received.pop(found.process, None)
