"""Commands of `postroad quotas`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list

quotas = typer.Typer(help="Limits of single senders on routes.", no_args_is_help=True)


@quotas.command("list")
def list_quotas(
    service: Annotated[str | None, typer.Option("--service", help="Target service.")] = None,
    command: Annotated[str | None, typer.Option("--command", help="Only quotas on this command.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List quotas of senders on the tenant's routes."""
    with connected() as client:
        show_list(
            list(islice(client.quotas.list(service=service, command=command, page_size=min(limit, 1000)), limit)),
            as_json,
            ("source", "target", "command", "max", "interval_seconds", "burst", "updated_at"),
            wide=wide,
        )


@quotas.command("put")
def put_quotas(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    source: Annotated[str, typer.Argument(help="`<service>`, `<tenant>/<service>` or `<tenant>/*`.")],
    max: Annotated[int, typer.Argument(help="Commands per interval.")],
    interval_seconds: Annotated[int | None, typer.Option("--interval-seconds", help="Length of an interval.")] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="Unused commands that later intervals may use.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Set the quota of a sender.

    It applies while the sender is banned from the warm path. The sender is `<service>` of the own tenant, or
    `<tenant>/<service>`.
    """
    with connected() as client:
        show_item(
            client.quotas.put(service, command, source, max, interval_seconds=interval_seconds, burst=burst), as_json, wide=wide
        )


@quotas.command("delete")
def delete_quotas(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    source: Annotated[str, typer.Argument(help="`<service>`, `<tenant>/<service>` or `<tenant>/*`.")],
    yes: Yes = False,
) -> None:
    """Delete the quota of a sender."""
    with connected() as client:
        confirm(f"Delete the quota of {source} on {service}/{command}?", yes)
        client.quotas.delete(service, command, source)
        typer.echo(f"deleted the quota of {source} on {service}/{command}")
