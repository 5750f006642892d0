"""Message rates of queues over all workers. Each worker broadcasts its counts every two seconds.

The counts are plain NATS messages and are not stored. Rates are averages over the last ten seconds: over fewer they flicker.
"""

import asyncio
from collections import deque
from collections.abc import Set
from dataclasses import dataclass

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id
from postroad.queues.records import QueueRecord
from postroad.telemetry.flow_counters import FlowCounters

_SUBJECT = "postroad.rates"
_INTERVAL_SECONDS = 2.0
_WINDOW_SECONDS = 10.0


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


def tenant_of_stream(stream: str) -> str:
    """The tenant of a stream `Q_<tenant>__<queue>`; ids of tenants have no underscore."""
    return stream.removeprefix("Q_").partition("__")[0]


class Throughput:
    def __init__(self, connection: Connection, flows: FlowCounters | None = None) -> None:
        self._connection, self._flows = connection, flows
        self._worker = new_id()
        self._published: dict[str, int] = {}
        self._completed: dict[str, int] = {}
        self._received: dict[str, deque[tuple[float, _Counts]]] = {}
        self._totals: dict[str, tuple[int, int]] | None = None

    def add_published(self, record: QueueRecord, count: int, key: str = "") -> None:
        """Count messages that `key` published; empty if another capability did, which counts its own flows."""
        stream = record.stream
        self._published[stream] = self._published.get(stream, 0) + count
        if key and self._flows is not None:
            self._flows.add(record.tenant, f"key:{key}", f"queue:{record.name}", count)

    def add_completed(self, record: QueueRecord, count: int, key: str = "", *, failed: int = 0) -> None:
        """Count messages that `key` acknowledged or dead-lettered, and rejections of it."""
        stream = record.stream
        self._completed[stream] = self._completed.get(stream, 0) + count
        if key and self._flows is not None:
            self._flows.add(record.tenant, f"queue:{record.name}", f"key:{key}", count, failed)

    def rate(self, stream: str) -> Rate:
        """The average rates over ten seconds."""
        now = asyncio.get_running_loop().time()
        published = completed = 0.0
        for worker, received in list(self._received.items()):
            while received and now - received[0][0] > _WINDOW_SECONDS:
                received.popleft()
            if not received:
                del self._received[worker]
                continue
            found = [one for _, counts in received if (one := counts.by_stream.get(stream)) is not None]
            if found:
                seconds = max(sum(counts.seconds for _, counts in received), _INTERVAL_SECONDS)
                published += sum(one[0] for one in found) / seconds
                completed += sum(one[1] for one in found) / seconds
        return Rate(round(published, 1), round(completed, 1))

    def rates_by_tenant(self) -> dict[str, Rate]:
        """Like `rate`, for all queues of each tenant with traffic."""
        now, sums = asyncio.get_running_loop().time(), dict[str, list[float]]()
        for received in self._received.values():
            recent = [counts for at, counts in received if now - at <= _WINDOW_SECONDS]
            seconds = max(sum(counts.seconds for counts in recent), _INTERVAL_SECONDS)
            for counts in recent:
                for stream, (published, completed) in counts.by_stream.items():
                    known = sums.setdefault(tenant_of_stream(stream), [0.0, 0.0])
                    known[0] += published / seconds
                    known[1] += completed / seconds
        return {tenant: Rate(round(one[0], 1), round(one[1], 1)) for tenant, one in sums.items()}

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
        stop = self._connection.listen(_SUBJECT, self._receive)
        sent_at = loop.time()
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                now = loop.time()
                counts = self._pop_counts(now - sent_at)
                sent_at = now
                try:
                    self._connection.publish(_SUBJECT, msgspec.msgpack.encode(counts))
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
            self._received.setdefault(counts.worker, deque()).append((asyncio.get_running_loop().time(), counts))
        if self._totals is not None:
            for stream, (published, completed) in counts.by_stream.items():
                before = self._totals.get(stream, (0, 0))
                self._totals[stream] = (before[0] + published, before[1] + completed)
