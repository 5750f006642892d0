"""`postroad upgrade`: whether this version can run on the stored data."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.check import load_server_settings
from postroad.cli.output import AsJson, Wide, exit_on_error, show, to_json
from postroad.cli.server import DataDir

if TYPE_CHECKING:
    from postroad.installation.formats import FormatCheck


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Only compare; nothing else is needed, since a start upgrades.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Compare the formats of the stored data with those of this version. Exit code 1 if this version cannot read them.

    Run it with the new version before its first process starts. It needs access to the engine, like `check`. Starting the new
    version upgrades what has to be upgraded; there is no other step.
    """
    settings = load_server_settings(data_dir)
    if not check:
        typer.echo("postroad: use --check; a start of the new version upgrades the data", err=True)
        raise typer.Exit(2)
    import asyncio

    from postroad.backup.formats import stored_formats
    from postroad.logs import configure_logging

    configure_logging("error", settings.log_format)
    with exit_on_error():
        by, checks = asyncio.run(stored_formats(settings))
    is_refused = any(one.is_too_new for one in checks)
    if as_json:
        typer.echo(to_json({"writtenBy": by, "canRun": not is_refused, "formats": checks}).decode())
    else:
        show(checks, False, ("format", "stored as", "recorded", "writes", "reads", "result"), _row, wide=wide)
        typer.echo(f"written by Postroad {by}" if by else "no version is recorded: written before formats were, or empty")
    if is_refused:
        raise typer.Exit(1)


def _row(one: "FormatCheck") -> list[object]:
    return [one.name, one.subject, one.recorded or "", one.writes, one.reads, one.result]
