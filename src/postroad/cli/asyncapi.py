"""`postroad asyncapi`."""

from typing import Annotated

import typer

from postroad.cli.output import connected


def asyncapi(
    limit: Annotated[int, typer.Option(help="At most so many queues, topics and streams each.", min=1, max=1000)] = 200,
) -> None:
    """Print the AsyncAPI 3 document of the tenant: queues and topics with schemas, streams, events."""
    import json

    with connected() as client:
        document = client.asyncapi.get(limit=limit)
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    if cut := document["info"].get("x-postroad-left-out"):
        typer.echo(f"cut: only the first {limit} of the {', '.join(cut)}", err=True)
