"""Events of sessions."""

from typing import Annotated

from postroad.api.insights import Report, Row, Start, TimePage, Visibility, column

Events = Annotated[int, column("Number of these events.")]


class SessionsRow(Row, frozen=True, kw_only=True):
    """The number of session events of the tenant in that time."""

    time: Start
    subscribed: Events
    unsubscribed: Events
    touched: Events
    deleted: Events
    expired: Events


class SessionsPage(TimePage[SessionsRow], frozen=True, kw_only=True):
    items: list[SessionsRow]


REPORT = Report(
    name="sessions",
    row=SessionsRow,
    page=SessionsPage,
    summary="Report sessions that subscribed, were touched, deleted or expired",
    visibility=Visibility.TENANT,
    rank="subscribed",
)
