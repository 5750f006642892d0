"""`postroad invites …`: codes that create a tenant and its first key."""

import sys
from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, show_once

invites = typer.Typer(
    help="Invites: single-use codes that create a tenant and its first key. All but claim need a platform key.",
    no_args_is_help=True,
)


@invites.command("claim")
def claim_invite(
    code: Annotated[str, typer.Argument(help="Invite code; `-` reads standard input.")],
    tenant: Annotated[str | None, typer.Option(help="Tenant id; can be left out if the invite names it.")] = None,
    key_name: Annotated[str | None, typer.Option(help="Name of the first key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant and its first key with an invite code. Needs no key. Prints only the new key on standard output."""
    text = sys.stdin.readline().strip() if code == "-" else code
    with connected(anonymous=True) as client:
        claimed = client.invites.claim(text, tenant=tenant, key_name=key_name)
        show_once(claimed, as_json, claimed.key, f"created the tenant {claimed.record.tenant} and its key {claimed.record.id}")
