"""`postroad secrets …`: secrets that the tenant signs JWTs with."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, show, show_once
from postroad.cli.times import from_now

if TYPE_CHECKING:
    from postroad.client import JwtSecret

secrets = typer.Typer(
    help="Secrets that the tenant signs JWTs for its own users with (HS256). Needs the scope admin.", no_args_is_help=True
)


def _row(secret: "JwtSecret") -> list[object]:
    return [secret.id, secret.name, secret.expires_at or "never", secret.created_at]


@secrets.command("list")
def list_secrets(as_json: AsJson = False, wide: Wide = False) -> None:
    """All JWT secrets, without their texts."""
    with connected() as client:
        show(list(client.jwt_secrets.list()), as_json, ("id", "name", "expires", "created"), _row, wide=wide)


@secrets.command("create")
def create_secret(
    name: Annotated[str, typer.Argument(help="For people: who signs with it.")],
    secret_file: Annotated[
        typer.FileText | None, typer.Option(help="A secret of your own, of at least 32 characters; `-` is standard input.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="In `30d`, or at `2027-01-31T12:00:00Z`; never if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a JWT secret: a new one, which is printed once, or your own. Up to five at a time, for rotation."""
    own = secret_file.read().strip() if secret_file else None
    with connected() as client:
        made = client.jwt_secrets.create(name, secret=own, expires_at=from_now(expires) if expires else None)
        if own is not None and not as_json:
            typer.echo(f"added the JWT secret {made.record.id} {name!r}")
            return
        show_once(made, as_json, made.secret, f"made the JWT secret {made.record.id} {name!r}")


@secrets.command("delete")
def delete_secret(secret_id: Annotated[str, typer.Argument(help="The secret's id.")], yes: Yes = False) -> None:
    """Delete a JWT secret; what it signed is refused from then on."""
    with connected() as client:
        confirm(f"Delete the JWT secret {secret_id}?", yes)
        client.jwt_secrets.delete(secret_id)
        typer.echo(f"deleted the JWT secret {secret_id}")
