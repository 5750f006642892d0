"""Commands of `postroad secrets`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import Yes, confirm, connected
from postroad.cli.secrets import secrets


@secrets.command("delete")
def delete_secrets(secret: Annotated[str, typer.Argument(help="Id or name of the secret.")], yes: Yes = False) -> None:
    """Delete a JWT secret. JWTs signed with it are refused from then on."""
    with connected() as client:
        confirm(f"Delete the JWT secret {secret}?", yes)
        client.jwt_secrets.delete(secret)
        typer.echo(f"deleted the JWT secret {secret}")
