"""`postroad invites …`: codes that make a tenant and its first key."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, show, show_once
from postroad.cli.times import duration

if TYPE_CHECKING:
    from postroad.client import Invite

invites = typer.Typer(
    help="Invites: a code makes a tenant and its first key, once. All but claim needs a platform key.", no_args_is_help=True
)


def _row(invite: "Invite") -> list[object]:
    tenant = invite.claimed_tenant or invite.tenant or "any"
    return [invite.id, invite.state, tenant, invite.expires_at, invite.claimed_at or "", invite.note]


@invites.command("list")
def list_invites(as_json: AsJson = False, wide: Wide = False) -> None:
    """All invites, newest first, without their codes."""
    with connected() as client:
        head = ("id", "state", "tenant", "expires", "claimed", "note")
        show(list(client.invites.list()), as_json, head, _row, wide=wide)


@invites.command("create")
def create_invite(
    tenant: Annotated[str | None, typer.Option(help="The only tenant that it may make; any name if left out.")] = None,
    note: Annotated[str, typer.Option(help="For people: whom it was given to.")] = "",
    auto_create_queues: Annotated[
        bool, typer.Option("--auto-create-queues", help="In the tenant, publishing to a queue that does not exist makes it.")
    ] = False,
    expires_in: Annotated[str, typer.Option(help="`12h`, `7d`; at most 90d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """Make an invite. Its code is printed once, alone on standard output."""
    with connected() as client:
        made = client.invites.create(
            tenant=tenant, note=note, auto_create_queues=auto_create_queues, expires_in_seconds=duration(expires_in)
        )
        show_once(made, as_json, made.code, f"made the invite {made.invite.id}, good until {made.invite.expires_at}")


@invites.command("revoke")
def revoke_invite(invite_id: Annotated[str, typer.Argument(help="The invite's id; not its code.")], yes: Yes = False) -> None:
    """Take an invite back. The tenant of one that was claimed stays."""
    with connected() as client:
        confirm(f"Revoke the invite {invite_id}?", yes)
        client.invites.revoke(invite_id)
        typer.echo(f"revoked the invite {invite_id}")


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
