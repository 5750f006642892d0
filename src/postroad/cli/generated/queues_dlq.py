"""Commands of `postroad queues dlq`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.queues_dlq import queues_dlq
from postroad.cli.rendering import show_item


@queues_dlq.command("show")
def show_queues_dlq(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    message: Annotated[str, typer.Argument(help="Id of the message.")],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show a dead letter with its payload."""
    with connected() as client:
        show_item(client.queues.dead_letters.get(queue, message), as_json, wide=wide)


@queues_dlq.command("delete")
def delete_queues_dlq(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    message: Annotated[str, typer.Argument(help="Id of the message.")],
    yes: Yes = False,
) -> None:
    """Delete a dead letter."""
    with connected() as client:
        confirm(f"Delete the dead letter {message} of {queue}?", yes)
        client.queues.dead_letters.delete(queue, message)
        typer.echo(f"deleted {message}")
