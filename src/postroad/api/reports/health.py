"""Current state of queues."""

from datetime import timedelta
from typing import Annotated

from postroad.api.insights import Number, Queue, Report, ReportPage, Row, Unit, Visibility, column
from postroad.kernel.clock import Timestamp

Sample = Annotated[Number | None, column("Number of messages in the last sample.")]


class HealthRow(Row, frozen=True, kw_only=True):
    """The current state of a queue, from its last samples."""

    queue: Queue
    status: Annotated[str, column("`healthy`, `unhealthy` (it has `problems`), or `unknown` (no sample for five minutes).")]
    problems: Annotated[
        list[str],
        column(
            "`old`: the oldest message is older than twice `expectedDrainSeconds`; `growing`: the number of ready messages rose "
            "in each of the last five minutes; `unpolled`: messages were ready for five minutes and no consumer pulled, waited, "
            "acked or nacked."
        ),
    ]
    ready: Sample = None
    leased: Sample = None
    retrying: Sample = None
    delayed: Sample = None
    dead: Sample = None
    waiting: Annotated[Number | None, column("Consumers in a long poll.")] = None
    oldest_age_ms: Annotated[
        Number | None, column("Age of the oldest message; null if there is none.", unit=Unit.MILLISECONDS, title="oldest")
    ] = None
    expected_drain_seconds: Annotated[
        Number | None, column("Expected drain time of the queue.", unit=Unit.SECONDS, title="expected")
    ] = None
    growth_per_minute: Annotated[Number | None, column("Change of the mean depth per minute.", title="growth/min")] = None
    sampled_at: Annotated[Timestamp | None, column("Time of the last sample.", is_listed=False)] = None


class HealthPage(ReportPage[HealthRow], frozen=True, kw_only=True):
    items: list[HealthRow]


REPORT = Report(
    name="health",
    row=HealthRow,
    page=HealthPage,
    summary="Report the current state of queues, the worst first",
    description="As of `computedAt`: first `unhealthy`, then `unknown`, then `healthy` queues.",
    heading="Queue health",
    visibility=Visibility.QUEUE,
    names=("queue",),
    rank="ready",
    look_back=timedelta(minutes=10),  # a queue without samples in this time is considered deleted
    severity=("unhealthy", "unknown", "healthy"),
    job="queue_health",
)
