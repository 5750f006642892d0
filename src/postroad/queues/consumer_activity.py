"""Who consumes a queue: last pull, last ack, leases and failures of each key, over all processes.

Each process broadcasts the activity of its keys every two seconds; it is not stored. Leases belong to the process that pulled
them; whether one is still open, or overdue, is known from the lease log, whichever process ended it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.kernel.ids import new_id
from postroad.queues.lease_states import LIVE, Transition

WINDOW_SECONDS = 10.0
_SUBJECT = "postroad.consumers"
_INTERVAL_SECONDS = 2.0
_EXPIRY_SECONDS = 900.0
_KEYS_MAX = 5_000  # pairs of stream and key, of a process
_LEASES_MAX = 50_000  # open leases of a process that are attributed to keys
_BROADCAST_MAX = 1_000
_RECEIVED_MAX = 20_000


class _Report(msgspec.Struct, frozen=True, array_like=True):
    """Activity of a key at a queue in one process: counts since the last report, and the leases that are open now."""

    stream: str
    key: str
    last_pull_ms: int
    last_ack_ms: int
    pulled: int
    acked: int
    failed: int
    processing_ms: int
    in_flight: int
    overdue: int


class _Broadcast(msgspec.Struct, frozen=True, array_like=True):
    process: str
    reports: list[_Report]


_decode = msgspec.msgpack.Decoder(_Broadcast).decode
Pair = tuple[str, str]  # stream, key
LeaseState = Callable[[str, int, int], str]  # of a queue's incarnation, a sequence and an attempt


@dataclass(slots=True)
class _Local:
    last_pull_ms: int = 0
    last_ack_ms: int = 0
    pulled: int = 0
    acked: int = 0
    failed: int = 0
    processing_ms: int = 0
    leases: dict[tuple[str, int], int] = field(default_factory=dict)  # incarnation and sequence → attempt
    is_changed: bool = True


@dataclass(slots=True)
class _Received:
    """`last_pull_ms` and `last_ack_ms` are those of all reports: a process forgets them with an idle key."""

    at: float
    reports: list[tuple[float, _Report]]
    last_pull_ms: int = 0
    last_ack_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerActivity:
    """Activity of a key at a queue; counts and the mean processing time over ten seconds."""

    key: str
    last_pull_ms: int
    last_ack_ms: int
    in_flight: int
    overdue: int
    pulled_per_second: float
    acked_per_second: float
    failed_per_second: float
    mean_processing_ms: int | None


class ConsumerReports:
    """`state_of`: `leased`, `overdue` or `settled`, of a delivery."""

    def __init__(self, connection: Connection, state_of: LeaseState) -> None:
        self._connection, self._state_of = connection, state_of
        self._process = new_id()
        self._local: dict[Pair, _Local] = {}
        self._leases = 0
        self._received: dict[str, dict[tuple[str, str], _Received]] = {}  # by stream: by key and process
        self._size = 0

    # Recording

    def record_pull(self, stream: str, key: str, now_ms: int) -> None:
        """A pull began; it may find nothing."""
        if (local := self._of(stream, key)) is not None:
            local.last_pull_ms, local.is_changed = now_ms, True

    def record_leases(self, stream: str, incarnation: str, key: str, transitions: Iterable[Transition]) -> None:
        local = self._of(stream, key)
        if local is None:
            return
        for one in transitions:
            if one.step in LIVE:
                local.pulled += 1
                lease = incarnation, one.sequence
                if lease in local.leases:
                    local.leases[lease] = one.attempt
                elif self._leases < _LEASES_MAX:
                    local.leases[lease] = one.attempt
                    self._leases += 1

    def record_acks(self, stream: str, key: str, now_ms: int, leased_at_ms: Sequence[int]) -> None:
        if leased_at_ms and (local := self._of(stream, key)) is not None:
            local.acked += len(leased_at_ms)
            local.processing_ms += now_ms * len(leased_at_ms) - sum(leased_at_ms)
            local.last_ack_ms, local.is_changed = now_ms, True

    def record_failures(self, stream: str, key: str, count: int) -> None:
        if count and (local := self._of(stream, key)) is not None:
            local.failed += count
            local.is_changed = True

    def _of(self, stream: str, key: str) -> _Local | None:
        found = self._local.get((stream, key))
        if found is None and len(self._local) < _KEYS_MAX:
            found = self._local[stream, key] = _Local()
        return found

    # Reading

    def of(self, stream: str) -> list[ConsumerActivity]:
        """The keys that consumed the queue in the last 15 minutes, or have leases."""
        now, by_key = asyncio.get_running_loop().time(), dict[str, list[_Received]]()
        received = self._received.get(stream, {})
        for (key, process), one in list(received.items()):
            if now - one.at > _EXPIRY_SECONDS:
                del received[key, process]
                self._size -= 1
            else:
                by_key.setdefault(key, []).append(one)
        return [_activity(key, some, now) for key, some in sorted(by_key.items())]

    # Exchange

    async def run(self) -> None:
        """Broadcast and receive, until cancelled."""
        stop = self._connection.listen(_SUBJECT, self._receive)
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                reports = iter(self._reports())
                try:
                    while part := list(islice(reports, _BROADCAST_MAX)):
                        payload = msgspec.msgpack.encode(_Broadcast(self._process, part))
                        self._connection.publish(_SUBJECT, payload)
                except ConnectionLost:
                    continue
        finally:
            await stop()

    def _reports(self) -> list[_Report]:
        """The keys that did something, or have open leases; idle ones without leases are forgotten."""
        reports: list[_Report] = []
        for (stream, key), local in list(self._local.items()):
            had_leases = bool(local.leases)
            in_flight, overdue = self._count_leases(local)
            if not local.is_changed and not had_leases and not local.pulled:
                del self._local[stream, key]
                continue
            reports.append(
                _Report(
                    stream,
                    key,
                    local.last_pull_ms,
                    local.last_ack_ms,
                    local.pulled,
                    local.acked,
                    local.failed,
                    local.processing_ms,
                    in_flight,
                    overdue,
                )
            )
            local.pulled = local.acked = local.failed = local.processing_ms = 0
            local.is_changed = False
        return reports

    def _count_leases(self, local: _Local) -> tuple[int, int]:
        in_flight = overdue = 0
        for (incarnation, sequence), attempt in list(local.leases.items()):
            state = self._state_of(incarnation, sequence, attempt)
            if state == "leased":
                in_flight += 1
            elif state == "overdue":
                overdue += 1
            else:
                del local.leases[incarnation, sequence]
                self._leases -= 1
        return in_flight, overdue

    def _receive(self, payload: bytes) -> None:
        try:
            received = _decode(payload)
        except msgspec.DecodeError:
            return
        now = asyncio.get_running_loop().time()
        for report in received.reports:
            by_key = self._received.setdefault(report.stream, {})
            known = by_key.get((report.key, received.process))
            if known is None:
                if self._size >= _RECEIVED_MAX:
                    self._received.clear()  # rare, and every key with activity returns within seconds
                    self._size, by_key = 0, self._received.setdefault(report.stream, {})
                known = by_key[report.key, received.process] = _Received(now, [])
                self._size += 1
            known.at = now
            known.last_pull_ms = max(known.last_pull_ms, report.last_pull_ms)
            known.last_ack_ms = max(known.last_ack_ms, report.last_ack_ms)
            known.reports = [one for one in known.reports if now - one[0] < WINDOW_SECONDS][-8:]
            known.reports.append((now, report))


def _activity(key: str, received: Sequence[_Received], now: float) -> ConsumerActivity:
    newest = [one.reports[-1][1] for one in received]
    recent = [report for one in received for at, report in one.reports if now - at < WINDOW_SECONDS]

    def rate(of: Callable[[_Report], int]) -> float:
        return round(sum(map(of, recent)) / WINDOW_SECONDS, 1)

    acked = sum(one.acked for one in recent)
    return ConsumerActivity(
        key=key,
        last_pull_ms=max(one.last_pull_ms for one in received),
        last_ack_ms=max(one.last_ack_ms for one in received),
        in_flight=sum(one.in_flight for one in newest),
        overdue=sum(one.overdue for one in newest),
        pulled_per_second=rate(attrgetter("pulled")),
        acked_per_second=rate(attrgetter("acked")),
        failed_per_second=rate(attrgetter("failed")),
        mean_processing_ms=round(sum(one.processing_ms for one in recent) / acked) if acked else None,
    )
