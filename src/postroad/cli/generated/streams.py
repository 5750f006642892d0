"""Commands of `postroad streams`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_list
from postroad.cli.streams import streams


@streams.command("delete")
def delete_streams(
    stream: Annotated[str, typer.Argument(help="Stream id, such as `orders/2027`.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    yes: Yes = False,
) -> None:
    """Delete a stream. Its forks keep the data they share with it."""
    with connected() as client:
        confirm(f"Delete {stream}?", yes)
        client.streams.delete(stream, project=project)
        typer.echo(f"deleted {stream}")


@streams.command("list")
def list_streams(
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Only ids that begin with this. `session:` lists streams of sessions.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List streams.

    In the order of their ids. A key that is restricted to some streams sees those. A page may have fewer items than
    `limit`; the list ends where `nextCursor` is missing.
    """
    with connected() as client:
        show_list(
            list(islice(client.streams.list(prefix=prefix, project=project, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "content_type", "appends", "last_activity_at", "next_offset", "is_closed"),
            wide=wide,
        )
