"""The message of `postroad up` and `postroad serve` once they are ready."""

import sys
from typing import TYPE_CHECKING

import typer

from postroad import __version__

if TYPE_CHECKING:
    from postroad.runtime.supervisor import StartupInfo


def print_banner(running: "StartupInfo") -> None:
    """Print addresses and paths, on the first start also the keys if the output is a terminal: elsewhere it is a log.

    Lines are not wrapped, so that they can be copied.
    """
    lines = [("API", running.url), ("Docs", f"{running.url}/docs"), ("Engine", running.engine), ("Data", str(running.data_dir))]
    if running.credentials:
        lines.append(("Keys", str(running.data_dir / "credentials.toml")))
    if running.console_url is not None:
        lines.insert(0, ("Console", running.console_url))
    typer.secho(f"\nPostroad {__version__} is ready. Ctrl-C stops it.\n", bold=True)
    for name, value in lines:
        typer.echo(f"  {name:<8}{value}")
    if running.console_url is not None:
        typer.echo("\nThe link of the console signs in once, within an hour; `postroad console` prints another one.")
    if running.is_first_start:
        if sys.stdout.isatty():
            typer.echo("\nFirst start: two keys and AWS credentials were created. They are also in the file above:")
            for name, key in running.credentials.items():
                typer.echo(f'  {name} = "{key}"')
        else:
            typer.echo("\nFirst start: two keys and AWS credentials were created. They are in the file above.")
    typer.echo()
