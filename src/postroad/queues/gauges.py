"""Gauges of queues for Prometheus. The sampler's process broadcasts the latest samples; every process can be scraped for them.

The number of queues with their own series is limited. A queue keeps its series while it exists; free ones go to the queues with
most messages. The others are added up under the label `other`.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.queues.events import QueueSampled

_SUBJECT = "postroad.queue_samples"
_EXPIRY_SECONDS = 60.0
OTHER = "other"


class QueueLevels(msgspec.Struct, frozen=True, array_like=True):
    """Values of one queue, in the order of `GAUGES`."""

    tenant: str
    queue: str
    values: tuple[float, ...]


class _Broadcast(msgspec.Struct, frozen=True, array_like=True):
    levels: list[QueueLevels]
    left_out: int
    seconds: float  # until the next one


_decode = msgspec.msgpack.Decoder(_Broadcast).decode

GAUGES: Mapping[str, str] = {
    "postroad_queue_ready": "Messages that can be pulled now.",
    "postroad_queue_overdue": "Ready messages whose lease ended without an ack or nack.",
    "postroad_queue_leased": "Messages that are leased to a consumer.",
    "postroad_queue_retrying": "Messages that were returned with a nack and are not due yet.",
    "postroad_queue_delayed": "Messages that were published with a delay and are not due yet.",
    "postroad_queue_dead": "Dead letters.",
    "postroad_queue_waiting_pulls": "Pulls that wait for a message.",
    "postroad_queue_oldest_age_seconds": "Age of the oldest ready, leased or retrying message; 0 if there is none.",
    "postroad_queue_in_per_second": "Messages published per second since the previous sample.",
    "postroad_queue_out_per_second": "Messages acknowledged or dead-lettered per second since the previous sample.",
    "postroad_queue_expected_drain_seconds": "Expected maximum age of the oldest message.",
}
LEFT_OUT = "postroad_queue_metrics_left_out"


def levels_of(sample: QueueSampled) -> QueueLevels:
    values = (
        sample.ready,
        sample.overdue,
        sample.leased,
        sample.retrying,
        sample.delayed,
        sample.dead,
        sample.waiting,
        (sample.oldest_age_ms or 0) / 1000,
        sample.in_per_second,
        sample.out_per_second,
        sample.expected_drain_seconds,
    )
    return QueueLevels(sample.tenant, sample.queue, tuple(map(float, values)))


class SamplePublisher:
    """Latest samples of all queues, in the process that samples them."""

    def __init__(self, connection: Connection, *, queues_max: int, seconds: float) -> None:
        self._connection, self._queues_max, self._seconds = connection, queues_max, seconds
        self._latest: dict[tuple[str, str], QueueLevels] = {}
        self._named: set[tuple[str, str]] = set()

    async def publish(self, samples: Iterable[QueueSampled], existing: Iterable[tuple[str, str]]) -> None:
        """Broadcast the latest levels; those of queues that do not exist any more are dropped."""
        if not self._queues_max:
            return
        self._latest |= {(one.tenant, one.queue): levels_of(one) for one in samples}
        kept = set(existing)
        self._latest = {key: levels for key, levels in self._latest.items() if key in kept}
        named, others = self._choose()
        levels = [self._latest[key] for key in named] + ([_sum([self._latest[key] for key in others])] if others else [])
        try:
            payload = msgspec.msgpack.encode(_Broadcast(levels, len(others), self._seconds))
            self._connection.publish(_SUBJECT, payload)
        except ConnectionLost:  # the next round sends them
            return

    def _choose(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The queues with their own series, and the others."""
        self._named &= self._latest.keys()
        by_size = sorted(self._latest.keys() - self._named, key=lambda key: (-_messages(self._latest[key]), key))
        self._named.update(by_size[: max(0, self._queues_max - len(self._named))])
        return sorted(self._named), sorted(self._latest.keys() - self._named)


def _messages(levels: QueueLevels) -> float:
    ready, _, leased, retrying, delayed, dead, *_ = levels.values
    return ready + leased + retrying + delayed + dead


def _sum(levels: list[QueueLevels]) -> QueueLevels:
    """Totals of the queues without their own series; of ages and expected ages, the maximum and the minimum."""
    names = list(GAUGES)
    values = []
    for index, name in enumerate(names):
        column = [one.values[index] for one in levels]
        is_age = name == "postroad_queue_oldest_age_seconds"
        values.append(max(column) if is_age else min(column) if name.endswith("drain_seconds") else sum(column))
    return QueueLevels(OTHER, OTHER, tuple(values))


class QueueGauges(Collector):
    """Receives the broadcasts and reports them to a scrape. Without broadcasts for some rounds it reports nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received: _Broadcast | None = None
        self._expires_at = 0.0

    async def run(self) -> None:
        """Receive, until cancelled."""
        stop = self._connection.listen(_SUBJECT, self._receive)
        try:
            await asyncio.Event().wait()
        finally:
            await stop()

    def _receive(self, payload: bytes) -> None:
        try:
            received = _decode(payload)
        except msgspec.DecodeError:
            return
        if all(len(one.values) == len(GAUGES) for one in received.levels):  # a newer version may send more of them
            self._received = received
            self._expires_at = asyncio.get_running_loop().time() + max(_EXPIRY_SECONDS, 3 * received.seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        received = self._received
        if received is None or asyncio.get_running_loop().time() > self._expires_at:
            return
        for index, (name, text) in enumerate(GAUGES.items()):
            family = GaugeMetricFamily(name, text, labels=["tenant", "queue"])
            for one in received.levels:
                family.add_metric([one.tenant, one.queue], one.values[index])
            yield family
        yield GaugeMetricFamily(LEFT_OUT, "Queues whose numbers are under the label `other`.", value=received.left_out)
