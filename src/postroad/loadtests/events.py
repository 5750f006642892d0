"""Event types of load tests."""

from typing import ClassVar

from postroad.kernel.event import Event


class LoadTestEvent(Event, frozen=True, kw_only=True):
    """An event of one load test. Keys that are restricted to some queues see the events of tests on these queues."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    test: str
    queue: str


class LoadTestStarted(LoadTestEvent, frozen=True, kw_only=True, tag="loadtest.started"):
    """A load test began to publish `rate_per_second` messages per second for `seconds`."""

    version: int = 1
    rate_per_second: int
    seconds: float
    key_id: str = ""
    request_id: str = ""


class LoadTestEnded(LoadTestEvent, frozen=True, kw_only=True, tag="loadtest.ended"):
    """A load test ended. `outcome` is `done`, `cancelled` or `failed`; `latency_ms` the 99th percentile of its publishes."""

    version: int = 1
    outcome: str
    published: int
    consumed: int
    errors: int
    latency_ms: float | None = None
    key_id: str = ""
    request_id: str = ""


EVENTS: tuple[type[Event], ...] = (LoadTestStarted, LoadTestEnded)
