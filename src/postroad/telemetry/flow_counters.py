"""Messages between pairs of a tenant, such as a key and a queue, over all processes. Each process broadcasts its counts every two
seconds; they are not stored. Rates are averages over ten seconds.

A party is a kind and a name: `key:…`, `queue:…`, `dead:…` (the dead letters of a queue), `topic:…`, `subscription:…`, `source:…`,
`route:…`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.clock import Clock

WINDOW_SECONDS = 10.0
_SUBJECT = "postroad.flows"
_INTERVAL_SECONDS = 2.0
_PAUSE_SECONDS = 60.0  # after a pause this long the activity of a pair begins again
_EXPIRY_SECONDS = 900.0
_LOCAL_MAX = 5_000  # pairs of a process in an interval; further ones are not counted
_PAIRS_MAX = 20_000
_BROADCAST_MAX = 1_000  # pairs in one message

Pair = tuple[str, str, str]  # tenant, source, target


class _Counts(msgspec.Struct, frozen=True, array_like=True):
    seconds: float
    flows: list[tuple[str, str, str, int, int]]


_decode = msgspec.msgpack.Decoder(_Counts).decode


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages from a source to a target: rates over ten seconds, when they began without a pause, and when the last came."""

    source: str
    target: str
    per_second: float
    failed_per_second: float
    since_ms: int
    last_ms: int


@dataclass(slots=True)
class _Window:
    since_ms: int
    last_ms: int
    last_at: float
    counts: list[tuple[float, int, int]] = field(default_factory=list)

    def sum(self, now: float) -> tuple[int, int]:
        self.counts = [one for one in self.counts if now - one[0] < WINDOW_SECONDS]
        return sum(one[1] for one in self.counts), sum(one[2] for one in self.counts)


class FlowCounters:
    """`keeps`: this process answers questions about flows; others only send their counts."""

    def __init__(self, connection: Connection, clock: Clock, *, keeps: bool) -> None:
        self._connection, self._clock, self._keeps = connection, clock, keeps
        self._local: dict[Pair, list[int]] = {}
        self._windows: dict[str, OrderedDict[tuple[str, str], _Window]] = {}  # by tenant, the latest last
        self._size = 0

    def add(self, tenant: str, source: str, target: str, count: int = 1, failed: int = 0) -> None:
        known = self._local.get((tenant, source, target))
        if known is not None:
            known[0] += count
            known[1] += failed
        elif len(self._local) < _LOCAL_MAX:
            self._local[tenant, source, target] = [count, failed]

    def of(self, tenant: str, is_wanted: Callable[[str, str], bool] | None = None) -> list[Flow]:
        """The flows of the last minutes, the idle ones included."""
        now, found = asyncio.get_running_loop().time(), list[Flow]()
        for (source, target), window in list(self._windows.get(tenant, {}).items()):
            if now - window.last_at > _EXPIRY_SECONDS:
                self._drop(tenant, (source, target))
            elif is_wanted is None or is_wanted(source, target):
                count, failed = window.sum(now)
                rates = round(count / WINDOW_SECONDS, 1), round(failed / WINDOW_SECONDS, 1)
                found.append(Flow(source, target, *rates, window.since_ms, window.last_ms))
        return found

    async def run(self) -> None:
        """Broadcast and receive, until cancelled."""
        loop = asyncio.get_running_loop()
        stop = self._connection.listen(_SUBJECT, self._receive) if self._keeps else None
        sent_at = loop.time()
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                now, local = loop.time(), self._local
                self._local, seconds, sent_at = {}, now - sent_at, now
                flows = iter([(*pair, count, failed) for pair, (count, failed) in local.items()])
                try:
                    while part := list(islice(flows, _BROADCAST_MAX)):
                        self._connection.publish(_SUBJECT, msgspec.msgpack.encode(_Counts(seconds, part)))
                except ConnectionLost:  # the counts would be stale when the connection is back
                    continue
        finally:
            if stop is not None:
                await stop()

    def _receive(self, payload: bytes) -> None:
        try:
            counts = _decode(payload)
        except msgspec.DecodeError:
            return
        now, now_ms = asyncio.get_running_loop().time(), self._clock()
        for tenant, source, target, count, failed in counts.flows:
            self._apply(tenant, (source, target), now, now_ms, count, failed)

    def _apply(self, tenant: str, pair: tuple[str, str], now: float, now_ms: int, count: int, failed: int) -> None:
        windows = self._windows.setdefault(tenant, OrderedDict())
        window = windows.get(pair)
        if window is None:
            if self._size >= _PAIRS_MAX:
                self._drop_oldest()
            window = windows[pair] = _Window(now_ms, now_ms, now)
            self._size += 1
        elif now - window.last_at > _PAUSE_SECONDS:
            window.since_ms = now_ms
        window.last_at, window.last_ms = now, now_ms
        window.sum(now)
        window.counts.append((now, count, failed))
        windows.move_to_end(pair)

    def _drop_oldest(self) -> None:
        tenant = min(self._windows, key=lambda one: next(iter(self._windows[one].values())).last_at)
        self._drop(tenant, next(iter(self._windows[tenant])))

    def _drop(self, tenant: str, pair: tuple[str, str]) -> None:
        windows = self._windows[tenant]
        del windows[pair]
        self._size -= 1
        if not windows:
            del self._windows[tenant]
