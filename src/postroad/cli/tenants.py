"""`postroad tenants …`: the platform's tenants."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Yes, connected, show

if TYPE_CHECKING:
    from postroad.client import Tenant

tenants = typer.Typer(help="Tenants. All of it needs a platform key.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The tenant's id.")]


def _row(tenant: "Tenant") -> list[object]:
    return [tenant.id, tenant.state, tenant.description, tenant.created_at]


_HEAD = ("id", "state", "description", "created")


@tenants.command("enable")
def enable_tenant(tenant: Name, as_json: AsJson = False) -> None:
    """Let a tenant's credentials work again."""
    with connected() as client:
        show(client.tenants.update(tenant, enabled=True), as_json, _HEAD, _row)


@tenants.command("disable")
def disable_tenant(tenant: Name, as_json: AsJson = False) -> None:
    """Refuse all of a tenant's credentials, everywhere, until it is enabled again. What it has stays."""
    with connected() as client:
        show(client.tenants.update(tenant, enabled=False), as_json, _HEAD, _row)


@tenants.command("delete")
def delete_tenant(tenant: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a tenant with its queues, messages, keys and settings. There is no way back."""
    with connected() as client:
        found = client.tenants.get(tenant)
        if not yes:
            question = f"This deletes {found.id} and all that it has, for ever. Type its id to go on"
            if typer.prompt(question, err=as_json) != found.id:
                typer.echo("that is not its id; nothing was deleted", err=True)
                raise typer.Abort
        gone = client.tenants.delete(tenant)
        show(gone, as_json, _HEAD, _row)
