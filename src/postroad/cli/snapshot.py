"""`postroad snapshot`: the snapshots of the registry of commands. They are read from the engine, never over HTTP."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from postroad.cli.output import AsJson, exit_on_error, print_json, show_one
from postroad.cli.server import DataDir

if TYPE_CHECKING:
    from postroad.settings import Settings

T = TypeVar("T")

snapshot = typer.Typer(
    help="Snapshots of the registry of commands, from which workers start. Needs access to the engine.", no_args_is_help=True
)


@snapshot.command("show")
def show_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the newest snapshot: its version, age, content, and which older ones are kept. Exit code 1 if it is not usable."""
    from postroad.runtime.snapshot_tools import show_snapshots

    found = _run(show_snapshots, data_dir)
    if as_json:
        print_json(found)
        return
    show_one(
        found,
        False,
        version=found.version_id,
        generated_at=found.generated_at,
        expires_in=f"{found.expires_in_seconds:g} s",
        routes=f"{found.routes:,} at revision {found.routes_revision}",
        grants=f"{found.grants:,}",
        services=f"{found.services:,} at revision {found.services_revision}",
        stored=", ".join(_stored(one) for one in found.stored),
    )


def _stored(one: Any) -> str:
    return f"{one.name} ({one.bytes:,} bytes{', latest' if one.latest else ''})"


@snapshot.command("verify")
def verify_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare the newest snapshot with the registry, read as a whole. Exit code 1 if they differ or it is not usable."""
    from postroad.runtime.snapshot_tools import verify_snapshot

    found = _run(verify_snapshot, data_dir)
    if as_json:
        print_json(found)
    else:
        for one in found.differences:
            typer.echo(f"differs: {one}")
        state = "differs from" if found.differences else "agrees with"
        typer.echo(
            f"snapshot {found.version_id} {state} the registry: {found.routes:,} routes, {found.services:,} services; "
            f"{found.changed:,} records have changed since"
        )
    if found.differences:
        raise typer.Exit(1)


@snapshot.command("write")
def write_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Write and publish a snapshot now, from the registry as the engine has it."""
    from postroad.runtime.snapshot_tools import write_snapshot

    head = _run(write_snapshot, data_dir)
    if as_json:
        print_json(head)
    else:
        typer.echo(f"published snapshot {head.version_id}")


def _run(work: "Callable[[Settings], Coroutine[Any, Any, T]]", data_dir: object) -> T:
    import asyncio

    from postroad.commands.snapshot_format import SnapshotRefused
    from postroad.logs import configure_logging
    from postroad.settings import SettingsInvalid, load_settings

    try:
        settings = load_settings(overrides={"data_dir": data_dir})
    except SettingsInvalid as faults:
        typer.echo(f"Invalid settings:\n{faults}", err=True)
        raise typer.Exit(2) from None
    configure_logging("error", settings.log_format)
    with exit_on_error():
        try:
            return asyncio.run(work(settings))
        except SnapshotRefused as refused:
            typer.echo(f"postroad: the snapshot is not usable: {refused}", err=True)
            raise typer.Exit(1) from None
