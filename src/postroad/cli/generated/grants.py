"""Commands of `postroad grants`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list
from postroad.cli.times import from_now

grants = typer.Typer(help="Which service may send which command.", no_args_is_help=True)


@grants.command("list")
def list_grants(
    service: Annotated[str | None, typer.Option("--service", help="Target service.")] = None,
    command: Annotated[str | None, typer.Option("--command", help="Only grants of this command.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="`<tenant>/<service>`, `<service>` of the own tenant, or `<tenant>/*`.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List grants of the tenant's routes."""
    with connected() as client:
        show_list(
            list(islice(client.grants.list(service=service, command=command, source=source, page_size=min(limit, 1000)), limit)),
            as_json,
            ("source", "target", "command", "sensitivity", "expires_at", "created_at"),
            wide=wide,
        )


@grants.command("put")
def put_grants(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    source: Annotated[str, typer.Argument(help="`<service>`, `<tenant>/<service>` or `<tenant>/*`.")],
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            help="The grant ends then; null for never. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.",
        ),
    ] = None,
    sensitivity: Annotated[
        Literal["critical", "moderate", "low"] | None,
        typer.Option("--sensitivity", help="Narrows that of the route for this sender; null for that of the route."),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Grant a command to a sender. The sender is `<service>` of the own tenant, `<tenant>/<service>`, or `<tenant>/*`."""
    with connected() as client:
        show_item(
            client.grants.put(
                service, command, source, expires_at=from_now(expires_at) if expires_at else None, sensitivity=sensitivity
            ),
            as_json,
            wide=wide,
        )


@grants.command("delete")
def delete_grants(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    source: Annotated[str, typer.Argument(help="`<service>`, `<tenant>/<service>` or `<tenant>/*`.")],
    yes: Yes = False,
) -> None:
    """Revoke a grant. Every gateway refuses the sender's commands within moments."""
    with connected() as client:
        confirm(f"Revoke {service}/{command} from {source}?", yes)
        client.grants.delete(service, command, source)
        typer.echo(f"revoked {service}/{command} from {source}")
