"""Commands of `postroad manifests`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list

manifests = typer.Typer(help="Which resources `postroad apply` has created.", no_args_is_help=True)


@manifests.command("list")
def list_manifests(
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List manifests."""
    with connected() as client:
        show_list(
            list(islice(client.manifests.list(page_size=min(limit, 1000)), limit)),
            as_json,
            ("name", "resources", "created_at", "updated_at"),
            wide=wide,
        )


@manifests.command("get")
def get_manifests(
    manifest: Annotated[str, typer.Argument(help="Name of the manifest.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a manifest. Which resources `postroad apply` has created under this name."""
    with connected() as client:
        show_item(client.manifests.get(manifest), as_json, wide=wide)


@manifests.command("delete")
def delete_manifests(manifest: Annotated[str, typer.Argument(help="Name of the manifest.")], yes: Yes = False) -> None:
    """Forget a manifest. Its resources stay, and no later apply deletes them."""
    with connected() as client:
        confirm(f"Forget what {manifest} has created?", yes)
        client.manifests.delete(manifest)
        typer.echo(f"deleted {manifest}")
