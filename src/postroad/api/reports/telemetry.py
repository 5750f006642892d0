"""Delivery of a tenant's telemetry: events of its commands, and whether they are read."""

from typing import Annotated

from postroad.api.insights import Number, Report, Row, Start, TimePage, Unit, Visibility, column


class TelemetryRow(Row, frozen=True, kw_only=True):
    """The events of the tenant's commands in that time, and the state of its telemetry queue at the end."""

    time: Start
    emitted: Annotated[int, column("Events of commands.")]
    delivered: Annotated[Number | None, column("Events pulled from the queue in the hour before the last sample.")] = None
    acknowledged: Annotated[Number | None, column("Events acknowledged in the hour before the last sample.")] = None
    waiting: Annotated[Number | None, column("Messages in the queue in the last sample, each with many events.")] = None
    waiting_max: Annotated[Number | None, column("Largest sample.", title="waiting max")] = None
    oldest_age_ms_max: Annotated[
        Number | None, column("Largest age of the oldest unread message.", unit=Unit.MILLISECONDS, title="oldest")
    ] = None
    dropped: Annotated[int, column("Events that were not read within their retention and are gone.")]


class TelemetryPage(TimePage[TelemetryRow], frozen=True, kw_only=True):
    items: list[TelemetryRow]


REPORT = Report(
    name="telemetry",
    row=TelemetryRow,
    page=TelemetryPage,
    summary="Report the events of the tenant's commands, and whether its telemetry queue is read",
    heading="Unread telemetry",
    visibility=Visibility.TENANT,
    rank="emitted",
    job="telemetry_delivery",
)
