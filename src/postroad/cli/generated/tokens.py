"""Commands of `postroad tokens`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected
from postroad.cli.rendering import json_value, show_secret
from postroad.cli.times import seconds

tokens = typer.Typer(
    help="Stream tokens, for live reads where the client cannot send a header. Needs the scope read.", no_args_is_help=True
)


@tokens.command("create")
def create_tokens(
    resource: Annotated[str, typer.Argument(help="Resource to read, such as `telemetry`.")],
    expires_in_seconds: Annotated[
        str | None, typer.Option("--expires-in", help="Seconds until the token expires. Such as `90s`, `12h`, `7d`.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Valid for one connection.")] = False,
    grants: Annotated[list[str] | None, typer.Option("--grant", help="For `live`: topics with patterns, as JSON.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="For `bucket/{bucket}`: only keys that start with this text.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream token.

    For live reads where the client cannot send a header. The token is read-only and valid for one resource. It
    becomes invalid with the key.
    """
    with connected() as client:
        show_secret(
            client.tokens.create(
                resource,
                expires_in_seconds=seconds(expires_in_seconds),
                once=once,
                grants=[json_value(text, "grants") for text in grants or ()] or None,
                prefix=prefix,
            ),
            as_json,
            "token",
        )
