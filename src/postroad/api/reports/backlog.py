"""Contents of queues over time."""

from typing import Annotated

from postroad.api.insights import Number, Queue, Report, Row, Start, TimePage, Unit, Visibility, column

_MEAN = "Mean of the samples in that time."


class BacklogRow(Row, frozen=True, kw_only=True):
    """The contents of a queue in that time."""

    time: Start
    queue: Queue
    ready: Annotated[Number, column(_MEAN)] = 0
    ready_max: Annotated[Number, column("Largest sample in that time.", title="most")] = 0
    leased: Annotated[Number, column(_MEAN)] = 0
    retrying: Annotated[Number, column(_MEAN)] = 0
    delayed: Annotated[Number, column(_MEAN)] = 0
    dead: Annotated[Number, column(_MEAN)] = 0
    oldest_age_ms_max: Annotated[
        Number | None,
        column(
            "Largest age of the oldest ready, leased or retrying message; null if there was none.",
            unit=Unit.MILLISECONDS,
            title="oldest",
        ),
    ] = None


class BacklogPage(TimePage[BacklogRow], frozen=True, kw_only=True):
    items: list[BacklogRow]


REPORT = Report(
    name="backlog",
    row=BacklogRow,
    page=BacklogPage,
    summary="Report the contents of queues: means, and the largest number of ready messages",
    visibility=Visibility.QUEUE,
    names=("queue",),
    rank="readyMax",
    job="queue_health",
)
