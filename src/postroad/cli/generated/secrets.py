"""Commands of `postroad secrets`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_list
from postroad.cli.secrets import secrets


@secrets.command("list")
def list_secrets(as_json: AsJson = False, wide: Wide = False) -> None:
    """List JWT secrets. Oldest first, without their texts."""
    with connected() as client:
        show_list(
            list(client.jwt_secrets.list()),
            as_json,
            ("id", "name", "scopes", "allowed_streams", "created_by", "expires_at", "created_at"),
            wide=wide,
        )


@secrets.command("delete")
def delete_secrets(secret: Annotated[str, typer.Argument(help="Id of the secret.")], yes: Yes = False) -> None:
    """Delete a JWT secret. JWTs signed with it are refused from then on."""
    with connected() as client:
        confirm(f"Delete the JWT secret {secret}?", yes)
        client.jwt_secrets.delete(secret)
        typer.echo(f"deleted the JWT secret {secret}")
