"""Commands of `postroad invites`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.invites import invites
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_list, show_secret
from postroad.cli.times import seconds


@invites.command("list")
def list_invites(
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List invites."""
    with connected() as client:
        show_list(
            list(islice(client.invites.list(page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "state", "tenant", "claimed_tenant", "expires_at", "claimed_at", "note"),
            wide=wide,
        )


@invites.command("create")
def create_invites(
    tenant: Annotated[str | None, typer.Option("--tenant", help="The only tenant id that it can create; any if omitted.")] = None,
    note: Annotated[str | None, typer.Option("--note", help="Note for people, such as the recipient.")] = None,
    auto_create_queues: Annotated[
        bool, typer.Option("--auto-create-queues", help="In the tenant, publishing to a queue that does not exist creates it.")
    ] = False,
    expires_in_seconds: Annotated[
        str | None, typer.Option("--expires-in", help="Seconds until the invite expires. Such as `90s`, `12h`, `7d`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an invite. Its code creates one tenant and its first key, once. The code is shown once."""
    with connected() as client:
        show_secret(
            client.invites.create(
                tenant=tenant, note=note, auto_create_queues=auto_create_queues, expires_in_seconds=seconds(expires_in_seconds)
            ),
            as_json,
            "code",
        )


@invites.command("revoke")
def revoke_invites(
    invite: Annotated[str, typer.Argument(help="Invite id, as `invites list` shows it; not the code.")], yes: Yes = False
) -> None:
    """Revoke an invite."""
    with connected() as client:
        confirm(f"Revoke the invite {invite}?", yes)
        client.invites.revoke(invite)
        typer.echo(f"revoked the invite {invite}")
