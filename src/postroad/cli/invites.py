"""`postroad invites …`: codes that make a tenant and its first key."""

import sys
from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, show_once

invites = typer.Typer(
    help="Invites: a code makes a tenant and its first key, once. All but claim needs a platform key.", no_args_is_help=True
)


@invites.command("claim")
def claim_invite(
    code: Annotated[str, typer.Argument(help="The code; `-` reads it from standard input.")],
    tenant: Annotated[str | None, typer.Option(help="The tenant's id; may be left out if the invite names it.")] = None,
    key_name: Annotated[str | None, typer.Option(help="What the first key is called.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the tenant and its first key, with an invite's code and no key. The key is printed once, alone on standard output."""
    text = sys.stdin.readline().strip() if code == "-" else code
    with connected(anonymous=True) as client:
        made = client.invites.claim(text, tenant=tenant, key_name=key_name)
        show_once(made, as_json, made.key, f"made the tenant {made.record.tenant} and its key {made.record.id}")
