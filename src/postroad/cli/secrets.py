"""`postroad secrets create`: secrets that verify the tenant's JWTs."""

from typing import Annotated

import typer

from postroad.api.access import JwtScope
from postroad.cli.output import AsJson, connected, show_once
from postroad.cli.times import from_now

secrets = typer.Typer(
    help="JWT secrets: the tenant signs JWTs for its own users with them (HS256). Needs the scope admin.", no_args_is_help=True
)


@secrets.command("create")
def create_secret(
    name: Annotated[str, typer.Argument(help="Name of the secret, such as the service that signs with it.")],
    secret_file: Annotated[
        typer.FileText | None,
        typer.Option(help="File with an existing secret of at least 32 characters; `-` reads standard input."),
    ] = None,
    scopes: Annotated[
        list[JwtScope] | None,
        typer.Option("--scope", help="Scopes that its JWTs can have; those of the key itself if left out."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Expiry: a span such as `30d`, or `2027-01-31T12:00:00Z`; never if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a JWT secret: a generated one, which is printed once, or an existing one. A tenant has at most five."""
    existing = secret_file.read().strip() if secret_file else None
    with connected() as client:
        created = client.jwt_secrets.create(
            name, secret=existing, scopes=scopes, expires_at=from_now(expires) if expires else None
        )
        if existing is not None and not as_json:
            typer.echo(f"added the JWT secret {created.record.id} {name!r}")
            return
        show_once(created, as_json, created.secret, f"created the JWT secret {created.record.id} {name!r}")
