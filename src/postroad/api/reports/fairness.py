"""Shares of sources on routes, and bans."""

from typing import Annotated

from postroad.api.insights import Number, Report, Role, Row, Service, Start, TimePage, Visibility, column
from postroad.kernel.clock import Timestamp


class FairnessRow(Row, frozen=True, kw_only=True):
    """The commands of a source on a route in that time."""

    time: Start
    role: Role
    service: Service
    peer: Annotated[str, column("The other side, `<tenant>/<service>`: the source if the role is `target`, else the target.")]
    command: Annotated[str, column("Name of the command; empty for a ban on all commands of the target.")] = ""
    dispatched: Annotated[int, column("Commands delivered.")]
    warm: Annotated[int, column("Those that took the fast path.")]
    cold: Annotated[int, column("Those that took the slow path.")]
    refused: Annotated[int, column("Commands refused by the rate limit of the route, or for fairness.")]
    share: Annotated[
        Number | None, column("Share of the source in the commands delivered on the route; null if the role is `source`.")
    ] = None
    flagged: Annotated[int, column("Minutes in which the auditor found that the source dominates routes that others use.")] = 0
    bans: Annotated[int, column("Bans of the source that began in that time.")] = 0
    banned_until: Annotated[Timestamp | None, column("End of the last of these bans.", title="banned until")] = None


class FairnessPage(TimePage[FairnessRow], frozen=True, kw_only=True):
    items: list[FairnessRow]


REPORT = Report(
    name="fairness",
    row=FairnessRow,
    page=FairnessPage,
    summary="Report the share of each source on the routes of the tenant, and bans",
    description="The tenant of a source sees its own numbers, and not those of its competitors.",
    visibility=Visibility.SERVICE,
    names=("role", "service", "peer", "command"),
    rank="dispatched",
)
