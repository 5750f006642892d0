"""Commands of `postroad bans`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list

bans = typer.Typer(help="Senders that are restricted for a while.", no_args_is_help=True)


@bans.command("list")
def list_bans(
    source: Annotated[
        str | None, typer.Option("--source", help="`<tenant>/<service>`, `<service>` of the own tenant, or `<tenant>/*`.")
    ] = None,
    kind: Annotated[Literal["warm", "cold-only", "hard"] | None, typer.Option("--kind", help="Only bans of this kind.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List bans of the tenant's senders and on its routes. With a platform key: those of all tenants."""
    with connected() as client:
        show_list(
            list(islice(client.bans.list(source=source, kind=kind, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "source", "kind", "target", "command", "creator", "reason", "expires_at"),
            wide=wide,
        )


@bans.command("create")
def create_bans(
    source: Annotated[str, typer.Argument(help="`<tenant>/<service>`, `<service>` of the own tenant, or `<tenant>/*`.")],
    kind: Annotated[
        Literal["warm", "cold-only", "hard"],
        typer.Argument(help="`warm`: the slow path, with the sender's quota; `cold-only`: the slow path; `hard`: refused."),
    ],
    reason: Annotated[str, typer.Argument(help="For people; the sender's tenant sees it.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Service of the route; null for all, which needs a platform key.")
    ] = None,
    command: Annotated[str | None, typer.Option("--command", help="With `target`.")] = None,
    duration_seconds: Annotated[int | None, typer.Option("--seconds", help="Seconds until the ban ends.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Ban a sender.

    On a route of the tenant; with a platform key on any route, or on all of them. Every gateway follows within
    moments. A ban of the same kind of the same sender and route is replaced.
    """
    with connected() as client:
        show_item(
            client.bans.create(source, kind, reason, target=target, command=command, duration_seconds=duration_seconds),
            as_json,
            wide=wide,
        )


@bans.command("delete")
def delete_bans(
    ban: Annotated[str, typer.Argument(help="Id of the ban.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Why the ban ends before its time, for the audit log.")] = None,
    yes: Yes = False,
) -> None:
    """End a ban. By the owner of the route, or with a platform key."""
    with connected() as client:
        confirm(f"End the ban {ban}?", yes)
        client.bans.delete(ban, reason=reason)
        typer.echo(f"ended the ban {ban}")
