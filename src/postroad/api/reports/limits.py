"""Use of the rate limits of routes."""

from typing import Annotated

from postroad.api.insights import Number, Report, Row, Service, Start, TimePage, Unit, Visibility, column


class LimitsRow(Row, frozen=True, kw_only=True):
    """The use of a route and of its rate limit in that time."""

    time: Start
    service: Service
    command: Annotated[str, column("Name of the command.")]
    used: Annotated[int, column("Commands delivered.")]
    max: Annotated[Number | None, column("Commands per interval that the limit allows; null if the route has none.")] = None
    interval_seconds: Annotated[Number | None, column("Length of an interval.", unit=Unit.SECONDS, title="interval")] = None
    usage: Annotated[Number | None, column("Share of the limit that was used in that time; 1 is all of it.")] = None
    refused: Annotated[int, column("Commands refused by the limit.")]
    shadow: Annotated[int, column("Commands that the limit would have refused, if its mode were not `shadow`.")]


class LimitsPage(TimePage[LimitsRow], frozen=True, kw_only=True):
    items: list[LimitsRow]


REPORT = Report(
    name="limits",
    row=LimitsRow,
    page=LimitsPage,
    summary="Report the use of the rate limits of the tenant's routes",
    heading="Usage of limits",
    visibility=Visibility.SERVICE,
    names=("service", "command"),
    rank="used",
)
