"""Dead letters by reason."""

from typing import Annotated

from postroad.api.insights import Queue, Report, Row, Start, TimePage, Visibility, column
from postroad.kernel.clock import Timestamp


class DeadLettersRow(Row, frozen=True, kw_only=True):
    """The dead letters of a queue and reason in that time."""

    time: Start
    queue: Queue
    reason: Annotated[
        str,
        column("The last error, or `maxAttempts reached`; `redriven` counts dead letters that were moved back."),
    ]
    count: Annotated[int, column("Dead letters.")]
    first_attempt: Annotated[
        int,
        column(
            "Those that failed at their first attempt; many of them indicate a misconfigured consumer.", title="at first attempt"
        ),
    ]
    last_at: Annotated[Timestamp | None, column("Time of the last one.", title="last")] = None


class DeadLettersPage(TimePage[DeadLettersRow], frozen=True, kw_only=True):
    items: list[DeadLettersRow]


REPORT = Report(
    name="dead-letters",
    row=DeadLettersRow,
    page=DeadLettersPage,
    summary="Report messages that became dead letters, by queue and reason",
    description="Many failures at the first attempt indicate a misconfigured consumer.",
    visibility=Visibility.QUEUE,
    names=("queue", "reason"),
    rank="count",
)
