"""What `postroad up` and `postroad serve` say once they are ready."""

from typing import TYPE_CHECKING

import typer

from postroad import __version__

if TYPE_CHECKING:
    from postroad.runtime.supervisor import StartupInfo


def print_banner(running: "StartupInfo") -> None:
    """Keys are shown on the first start only; after that the file has them. Nothing here is wrapped, so it can be copied."""
    lines = [("API", running.url), ("Docs", f"{running.url}/docs"), ("Engine", running.engine), ("Data", str(running.data_dir))]
    if running.credentials:
        lines.append(("Keys", str(running.data_dir / "credentials.toml")))
    typer.secho(f"\nPostroad {__version__} is ready. Ctrl-C stops it.\n", bold=True)
    for name, value in lines:
        typer.echo(f"  {name:<8}{value}")
    if running.is_first_start:
        typer.echo("\nThis is the first start. Two keys were made; the file above has them too:")
        for name, key in running.credentials.items():
            typer.echo(f'  {name} = "{key}"')
    typer.echo()
