"""`postroad tenants …`: the platform's tenants."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, connected, show

if TYPE_CHECKING:
    from postroad.client import Tenant

tenants = typer.Typer(help="Tenants. All of it needs a platform key.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The tenant's id.")]


def _row(tenant: "Tenant") -> list[object]:
    return [tenant.id, tenant.state, tenant.description, tenant.created_at]


_HEAD = ("id", "state", "description", "created")


@tenants.command("list")
def list_tenants(as_json: AsJson = False, wide: Wide = False) -> None:
    """All tenants."""
    with connected() as client:
        show(list(client.tenants.list()), as_json, _HEAD, _row, wide=wide)


@tenants.command("show")
def show_tenant(tenant: Name, as_json: AsJson = False) -> None:
    """A tenant and its state."""
    with connected() as client:
        show(client.tenants.get(tenant), as_json, _HEAD, _row)


@tenants.command("create")
def create_tenant(
    tenant: Name,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    auto_create_queues: Annotated[
        bool, typer.Option("--auto-create-queues", help="Publishing to a queue that does not exist makes it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a tenant. It has no key yet: `postroad --tenant NAME keys create …` makes one."""
    with connected() as client:
        made = client.tenants.create(tenant, description=description, auto_create_queues=auto_create_queues)
        show(made, as_json, _HEAD, _row)


@tenants.command("update")
def update_tenant(tenant: Name, description: Annotated[str, typer.Option(help="For people.")], as_json: AsJson = False) -> None:
    """Describe a tenant differently."""
    with connected() as client:
        show(client.tenants.update(tenant, description=description), as_json, _HEAD, _row)


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
