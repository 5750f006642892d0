"""Latency of messages: time until the first delivery, and time of processing."""

from typing import Annotated

from postroad.api.insights import Milliseconds, Queue, Report, Row, Start, TimePage, Visibility, column


class LatencyRow(Row, frozen=True, kw_only=True):
    """The latency of a queue and phase in that time. Percentiles are accurate to 0.8 %."""

    time: Start
    queue: Queue
    phase: Annotated[str, column("`wait`: from publish to the first delivery; `processing`: from a lease to its ack.")]
    count: Annotated[int, column("Messages counted.")]
    p50: Milliseconds
    p95: Milliseconds
    p99: Milliseconds
    max: Milliseconds
    mean: Milliseconds


class LatencyPage(TimePage[LatencyRow], frozen=True, kw_only=True):
    items: list[LatencyRow]


REPORT = Report(
    name="latency",
    row=LatencyRow,
    page=LatencyPage,
    summary="Report the time that messages waited for their first delivery, and the time of their processing",
    visibility=Visibility.QUEUE,
    names=("queue", "phase"),
    rank="count",
)
