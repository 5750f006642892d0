"""Commands of `postroad streams`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import Yes, confirm, connected
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
