"""Clocks of the services that send commands."""

from typing import Annotated

from postroad.api.insights import Number, Report, Row, Service, Start, TimePage, Unit, Visibility, column
from postroad.kernel.clock import Timestamp

Skew = Annotated[
    Number | None,
    column("Percentile of the difference of the clocks, in seconds; positive: the sender's is behind.", unit=Unit.SECONDS),
]


class SkewRow(Row, frozen=True, kw_only=True):
    """The clock of a service that sent commands in that time. Percentiles are accurate to 0.8 %."""

    time: Start
    service: Service
    samples: Annotated[int, column("Commands whose time was measured: one in a hundred.")]
    p1: Skew = None
    p50: Skew = None
    p99: Skew = None
    drift_per_hour: Annotated[
        Number | None, column("Change of the difference per hour, in seconds; null for less than ten minutes.", title="drift/h")
    ] = None
    near_limit: Annotated[Number, column("Share of commands at 80 % or more of the allowed difference.", title="near limit")]
    refused: Annotated[int, column("Commands refused because their time is outside the window.")]
    window_seconds: Annotated[Number, column("Allowed difference, in either direction.", unit=Unit.SECONDS, title="window")] = 60
    leaves_window_at: Annotated[
        Timestamp | None,
        column("When the clock will leave the window at this drift, if within a day.", title="leaves window at"),
    ] = None


class SkewPage(TimePage[SkewRow], frozen=True, kw_only=True):
    items: list[SkewRow]


REPORT = Report(
    name="skew",
    row=SkewRow,
    page=SkewPage,
    summary="Report how far the clocks of the services that send commands differ from the engine's",
    visibility=Visibility.SERVICE,
    names=("service",),
    rank="samples",
)
