"""Rules of load tests: limits, messages, the schedule of publishes, and what is measured. Pure: no I/O, no clock."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from postroad.api.loadtests import LoadTestLimits, LoadTestPoint, LoadTestTotals, NewLoadTest
from postroad.kernel.json import invalid_field

LOAD_TEST = "loadtest"
_PULL_BYTES_MAX = 40 * 1024  # of the messages in the response to a pull: the client's limit on a response is 64 KiB
_PULL_MAX = 50
_MESSAGE_BYTES = 500  # of a pulled message besides its payload, about
_STEPS = 100  # buckets of the histogram for each factor of ten, each 2.3 % wide
_LEAST_MS = 0.01

# Fields of a request that the installation limits, and their names in JSON
_LIMITED: Mapping[str, str] = {
    "rate_per_second": "ratePerSecond",
    "seconds": "seconds",
    "payload_bytes": "payloadBytes",
    "publishers": "publishers",
    "consumers": "consumers",
}


def queue_of(wanted: NewLoadTest, test: str) -> str:
    """The queue of a load test; if it names none, one of its own."""
    return wanted.queue or f"loadtest-{test[-12:]}"


def rate_of(wanted: NewLoadTest, limits: LoadTestLimits) -> int:
    """The rate that applies."""
    return min(wanted.rate_per_second or limits.rate_per_second, limits.rate_per_second)


def check_wanted(wanted: NewLoadTest, limits: LoadTestLimits) -> None:
    """Raises BodyInvalid with the field that exceeds a limit of the installation."""
    for name, shown in _LIMITED.items():
        value, limit = getattr(wanted, name), getattr(limits, name)
        if value is not None and value > limit:
            raise invalid_field(f"$.{shown}", f"the limit of this installation is {limit}")
    if wanted.queue is not None and wanted.consumers:
        raise invalid_field("$.consumers", "must be 0 with a queue of your own: the test would consume its messages")


def publish_body(test: str, payload_bytes: int) -> bytes:
    """The body of every publish: a payload of this size that names the test."""
    start = b'{"loadTest":"%b","fill":"' % test.encode()
    return b'{"payload":%b%b"}}' % (start, b"x" * max(0, payload_bytes - len(start) - 2))


def pull_size(payload_bytes: int) -> int:
    """How many messages fit into the response to a pull."""
    return max(1, min(_PULL_MAX, _PULL_BYTES_MAX // (payload_bytes + _MESSAGE_BYTES)))


class Schedule:
    """When the publishes of a rate are due, in seconds since the start."""

    def __init__(self, rate_per_second: int, seconds: int) -> None:
        self._rate, self._total, self._next = rate_per_second, rate_per_second * seconds, 0

    def take(self) -> float | None:
        """The next time; None after the last."""
        if self._next >= self._total:
            return None
        due = self._next / self._rate
        self._next += 1
        return due


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest of the ordered values that so large a share of them does not exceed."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


class LatencyHistogram:
    """Latencies of a whole test in constant memory; percentiles are at most 2.3 % too high."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._max_ms: float | None = None

    def add(self, latency_ms: float) -> None:
        self._counts[math.floor(math.log10(max(latency_ms, _LEAST_MS)) * _STEPS)] += 1
        self._max_ms = max(latency_ms, self._max_ms or 0.0)

    @property
    def max_ms(self) -> float | None:
        return None if self._max_ms is None else round(self._max_ms, 2)

    def percentile(self, share: float) -> float | None:
        if self._max_ms is None:
            return None
        left = math.ceil(self._counts.total() * share)
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return round(min(10 ** ((bucket + 1) / _STEPS), self._max_ms), 2)
        return self.max_ms


class Measurement:
    """What the connections of a test report, as points of a second each and as totals."""

    def __init__(self) -> None:
        self.histogram = LatencyHistogram()
        self.published = self.consumed = 0
        self.errors: Counter[str] = Counter()
        self._latencies: list[float] = []
        self._consumed_before = self._errors_before = 0

    def add_published(self, latency_ms: float) -> None:
        self.published += 1
        self._latencies.append(latency_ms)
        self.histogram.add(latency_ms)

    def add_consumed(self, count: int) -> None:
        self.consumed += count

    def add_error(self, code: str) -> None:
        self.errors[code] += 1

    def end_second(self, second: int, requested: int | None, waiting: int | None) -> LoadTestPoint:
        """The point of what was reported since the last one."""
        ordered = sorted(self._latencies)
        errors = self.errors.total()
        point = LoadTestPoint(
            second=second,
            requested=requested,
            published=len(ordered),
            consumed=self.consumed - self._consumed_before,
            errors=errors - self._errors_before,
            p50_ms=_rounded(percentile(ordered, 0.5)),
            p95_ms=_rounded(percentile(ordered, 0.95)),
            p99_ms=_rounded(percentile(ordered, 0.99)),
            waiting=waiting,
        )
        self._latencies, self._consumed_before, self._errors_before = [], self.consumed, errors
        return point

    def totals(self, seconds: float) -> LoadTestTotals:
        return LoadTestTotals(
            published=self.published,
            consumed=self.consumed,
            errors=dict(self.errors.most_common(20)),
            per_second=round(self.published / seconds, 1) if seconds else 0.0,
            p50_ms=self.histogram.percentile(0.5),
            p95_ms=self.histogram.percentile(0.95),
            p99_ms=self.histogram.percentile(0.99),
            max_ms=self.histogram.max_ms,
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
