"""`postroad apply`: make the registry of commands that of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import Yes, confirm, connected

if TYPE_CHECKING:
    from postroad.cli.registry_file import Change
    from postroad.client import Postroad


def apply(
    file: Annotated[
        Path,
        typer.Option(
            "--file", "-f", help="File with services, routes and grants: TOML, JSON or YAML.", exists=True, dir_okay=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the differences.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete services, routes and grants that are not in the file.")] = False,
    yes: Yes = False,
) -> None:
    """Make services, routes and grants those of a file; show the differences first. Repeating it changes nothing."""
    with connected() as client:
        from postroad.cli.registry_file import current, plan, read_file

        wanted = read_file(file, client.keys.whoami().tenant)
        known = current(
            client.services.list(page_size=1000), client.routes.list(page_size=1000), client.grants.list(page_size=1000)
        )
        changes = plan(known, wanted, prune=prune)
        for change in changes:
            typer.echo(str(change))
        if not changes:
            typer.echo("no differences")
        elif not dry_run:
            confirm(f"Make {len(changes)} changes?", yes, err=True)
            for change in changes:
                _make(client, change)
            typer.echo(f"made {len(changes)} changes")


def _make(client: "Postroad", change: "Change") -> None:
    import msgspec

    namespace: Any = {"service": client.services, "route": client.routes, "grant": client.grants}[change.kind]
    if change.wanted is None:
        namespace.delete(*change.key)
    else:
        fields = msgspec.structs.asdict(change.wanted)
        namespace.put(*change.key, **fields)
