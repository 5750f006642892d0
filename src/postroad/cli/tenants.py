"""`postroad tenants enable`, `disable` and `delete`."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Yes, connected, show

if TYPE_CHECKING:
    from postroad.client import Tenant

tenants = typer.Typer(help="Tenants. All commands need a platform key.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Tenant id.")]


def _row(tenant: "Tenant") -> list[object]:
    return [tenant.id, tenant.state, tenant.description, tenant.created_at]


_HEAD = ("id", "state", "description", "created")


@tenants.command("enable")
def enable_tenant(tenant: Name, as_json: AsJson = False) -> None:
    """Enable a tenant, so that its credentials are accepted again."""
    with connected() as client:
        show(client.tenants.update(tenant, enabled=True), as_json, _HEAD, _row)


@tenants.command("disable")
def disable_tenant(tenant: Name, as_json: AsJson = False) -> None:
    """Disable a tenant: its credentials are refused until it is enabled again. Its data is kept."""
    with connected() as client:
        show(client.tenants.update(tenant, enabled=False), as_json, _HEAD, _row)


@tenants.command("delete")
def delete_tenant(tenant: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a tenant with its queues, messages, keys and settings. This cannot be undone."""
    with connected() as client:
        found = client.tenants.get(tenant)
        if not yes:
            question = f"This deletes {found.id} and all its data permanently. Type the tenant id to continue"
            if typer.prompt(question, err=as_json) != found.id:
                typer.echo("the tenant id does not match; nothing was deleted", err=True)
                raise typer.Abort
        show(client.tenants.delete(tenant), as_json, _HEAD, _row)
