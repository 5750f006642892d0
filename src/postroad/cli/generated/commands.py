"""Commands of `postroad commands`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.commands import commands
from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_list
from postroad.cli.times import ago


@commands.command("find")
def find_commands(
    command_id: Annotated[str | None, typer.Option("--command-id", help="Id of the command.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="The sender, a service of the tenant.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="`<service>`, or `<tenant>/<service>`.")] = None,
    command: Annotated[str | None, typer.Option("--command", help="Name of the command.")] = None,
    outcome: Annotated[
        Literal["delivered", "failed", "invalid", "duplicate"] | None, typer.Option("--outcome", help="What became of it.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why it failed, such as `acl-deny`.")] = None,
    replay: Annotated[str | None, typer.Option("--replay", help="Id of the replay that sent it.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="Received at or after this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", help="Received before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."),
    ] = None,
    body_max: Annotated[
        int | None, typer.Option("--body-max", help="Payloads up to so many bytes are returned; of longer ones the beginning.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Find what happened to commands.

    Outcomes of commands of the tenant's services in the last 14 days, oldest first. Earlier ones than `availableFrom`
    are not stored any more. A search compares a limited number of outcomes; continue with `nextCursor`. Payloads are
    returned with `bodyMax` only.
    """
    with connected() as client:
        show_list(
            list(
                islice(
                    client.commands.find(
                        command_id=command_id,
                        source=source,
                        target=target,
                        command=command,
                        outcome=outcome,
                        reason=reason,
                        replay=replay,
                        since=ago(since) if since else None,
                        until=ago(until) if until else None,
                        body_max=body_max,
                        page_size=min(limit, 1000),
                    ),
                    limit,
                )
            ),
            as_json,
            ("at", "outcome", "reason", "source", "target", "command", "command_id", "path", "replay_id"),
            wide=wide,
        )
