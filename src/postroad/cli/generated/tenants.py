"""Commands of `postroad tenants`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_item, show_list
from postroad.cli.tenants import tenants


@tenants.command("list")
def list_tenants(
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List tenants."""
    with connected() as client:
        show_list(
            list(islice(client.tenants.list(page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "state", "description", "created_at"),
            wide=wide,
        )


@tenants.command("create")
def create_tenants(
    tenant_id: Annotated[str, typer.Argument(help="Id of the tenant.")],
    description: Annotated[str | None, typer.Option("--description", help="Note for people.")] = None,
    auto_create_queues: Annotated[
        bool, typer.Option("--auto-create-queues", help="Publishing to a queue that does not exist creates it.")
    ] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create a tenant."""
    with connected() as client:
        show_item(
            client.tenants.create(tenant_id, description=description, auto_create_queues=auto_create_queues), as_json, wide=wide
        )


@tenants.command("show")
def show_tenants(
    tenant: Annotated[str, typer.Argument(help="Id of the tenant.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a tenant."""
    with connected() as client:
        show_item(client.tenants.get(tenant), as_json, wide=wide)


@tenants.command("update")
def update_tenants(
    tenant: Annotated[str, typer.Argument(help="Id of the tenant.")],
    description: Annotated[str | None, typer.Option("--description", help="Note for people.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="The credentials of a disabled tenant are refused.")
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Update, disable or enable a tenant."""
    with connected() as client:
        show_item(client.tenants.update(tenant, description=description, enabled=enabled), as_json, wide=wide)
