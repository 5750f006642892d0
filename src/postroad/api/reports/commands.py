"""Commands by route, outcome and path."""

from typing import Annotated

from postroad.api.insights import Number, Report, Role, Row, Service, Start, TimePage, Unit, Visibility, column

Latency = Annotated[
    Number | None,
    column("Percentile or largest value of the dispatch latency of delivered commands.", unit=Unit.MILLISECONDS),
]


class CommandsRow(Row, frozen=True, kw_only=True):
    """The commands of a route, or of a sender, with the same outcome in that time. Percentiles are accurate to 0.8 %."""

    time: Start
    role: Role
    service: Service
    peer: Annotated[str, column("Role `source`: the target of the commands, `<tenant>/<service>`; else empty.")] = ""
    command: Annotated[str, column("Name of the command; empty for invalid ones.")] = ""
    outcome: Annotated[str, column("`delivered`, `failed`, `invalid` or `duplicate`.")]
    reason: Annotated[str, column("Why a command failed or is invalid.")] = ""
    path: Annotated[str, column("`fast` or `slow`, of delivered commands.")] = ""
    count: Annotated[int, column("Number of commands.")]
    p50: Latency = None
    p95: Latency = None
    p99: Latency = None
    max: Latency = None


class CommandsPage(TimePage[CommandsRow], frozen=True, kw_only=True):
    items: list[CommandsRow]


REPORT = Report(
    name="commands",
    row=CommandsRow,
    page=CommandsPage,
    summary="Report the commands that were sent and received, by outcome, with the latency of their dispatch",
    description="A sender sees the outcome of its commands; the owner of a route those of the senders that it has granted it to.",
    visibility=Visibility.SERVICE,
    names=("role", "service", "peer", "command", "outcome", "reason", "path"),
    rank="count",
)
