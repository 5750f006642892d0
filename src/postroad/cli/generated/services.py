"""Commands of `postroad services`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list, show_secret
from postroad.cli.times import seconds

services = typer.Typer(help="Services that send and receive commands.", no_args_is_help=True)


@services.command("list")
def list_services(
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List services."""
    with connected() as client:
        show_list(
            list(islice(client.services.list(page_size=min(limit, 1000)), limit)),
            as_json,
            ("name", "source", "trusted_keys", "contact", "created_at"),
            wide=wide,
        )


@services.command("put")
def put_services(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    trusted_keys: Annotated[
        list[str] | None, typer.Option("--trusted-key", help="Ids of keys of the tenant that may send commands as this service.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="Note for people.")] = None,
    contact: Annotated[str | None, typer.Option("--contact", help="People to ask, such as an address.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Register a service. Creates the service `<tenant>/<service>` with its first secret, or replaces its settings."""
    with connected() as client:
        show_item(
            client.services.put(service, trusted_keys=trusted_keys, description=description, contact=contact), as_json, wide=wide
        )


@services.command("show")
def show_services(
    service: Annotated[str, typer.Argument(help="Name of the service.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a service."""
    with connected() as client:
        show_item(client.services.get(service), as_json, wide=wide)


@services.command("delete")
def delete_services(service: Annotated[str, typer.Argument(help="Name of the service.")], yes: Yes = False) -> None:
    """Delete a service. Its tokens and secrets end. A service that has routes is not deleted."""
    with connected() as client:
        confirm(f"Delete the service {service}?", yes)
        client.services.delete(service)
        typer.echo(f"deleted the service {service}")


@services.command("token")
def token_services(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    expires_in_seconds: Annotated[
        str | None, typer.Option("--expires-in", help="Seconds until the token expires. Such as `90s`, `12h`, `7d`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Get an emit token. For keys that the service trusts. The token sends commands of this service and nothing else."""
    with connected() as client:
        show_secret(client.services.token(service, expires_in_seconds=seconds(expires_in_seconds)), as_json, "token")


@services.command("rotate")
def rotate_services(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    overlap_seconds: Annotated[
        int | None,
        typer.Option(
            "--overlap-seconds",
            help="How long the previous version stays valid; by default as the installation sets, 0 to end it now.",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Rotate the secret of a service.

    A new version becomes current; the previous one stays valid for the overlap, earlier ones end.
    """
    with connected() as client:
        show_item(client.services.rotate(service, overlap_seconds=overlap_seconds), as_json, wide=wide)
