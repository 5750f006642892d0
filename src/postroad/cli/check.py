"""`postroad check`: verify the stored data."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, exit_on_error, show, to_json
from postroad.cli.server import DataDir

if TYPE_CHECKING:
    from postroad.jetstream.integrity import Damage, StreamCheck
    from postroad.settings import Settings

_SHOWN_MAX = 5


def check(
    data_dir: DataDir = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Delete the reports of damage found at earlier starts, after the check.")
    ] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Verify the stored data: read every message of every stream and compare the counts. Exit code 1 if there is damage.

    Checks the engine that runs in the data directory, or at POSTROAD_NATS_URL, while it is in use. If Postroad is stopped, a
    nats-server is started on the data directory for the duration of the check. Reading costs as much I/O as the store is large.

    The check finds messages that a stream counts and that cannot be read. Messages that nats-server has discarded at a start,
    since a block file was damaged, are found at that start by comparison with records of the earlier state; the check lists those
    reports until they are deleted with --accept. /readyz and the metric postroad_store_damage show their number.
    """
    settings = load_server_settings(data_dir)
    os.umask(0o077)
    import asyncio

    from postroad.jetstream.integrity import DAMAGE_FILE, read_damage
    from postroad.logs import configure_logging
    from postroad.runtime.store_check import check_store

    configure_logging("error", settings.log_format)
    checks: list[StreamCheck] = []
    with exit_on_error():
        asyncio.run(check_store(settings, checks.append))
    reports = list(read_damage(settings.data_dir)) if settings.nats_url is None else []
    _print(checks, reports, as_json, wide)
    if accept:
        (settings.data_dir / DAMAGE_FILE).unlink(missing_ok=True)
    if reports or not all(one.is_intact for one in checks):
        raise typer.Exit(1)


def _print(checks: "list[StreamCheck]", reports: "list[Damage]", as_json: bool, wide: bool) -> None:
    if as_json:
        typer.echo(to_json({"streams": checks, "reports": reports}).decode())
        return
    show(checks, False, ("stream", "messages", "first", "last", "read", "result"), _row, wide=wide)
    for report in reports:
        typer.echo(f"damage found at a start: {report.stream}: {report.detail}")
    damaged = [one for one in checks if not one.is_intact]
    lost = sum(len(one.unreadable) for one in damaged)
    typer.echo(
        f"{len(checks)} streams, {sum(one.read for one in checks):,} messages read; "
        f"{len(damaged)} streams damaged, {lost} messages unreadable, {len(reports)} earlier reports"
    )


def _row(one: "StreamCheck") -> list[object]:
    return [one.stream, one.messages, one.first, one.last, one.read, _result(one)]


def _result(one: "StreamCheck") -> str:
    if one.is_intact:
        return "ok"
    if one.problem:
        return one.problem
    shown = ", ".join(map(str, one.unreadable[:_SHOWN_MAX])) + (" …" if len(one.unreadable) > _SHOWN_MAX else "")
    return f"{len(one.unreadable)} unreadable: {shown}"


def load_server_settings(data_dir: object) -> "Settings":
    """The settings of the server, for commands that use its engine. Faults end the command."""
    from postroad.settings import SettingsInvalid, load_settings

    try:
        return load_settings(overrides={"data_dir": data_dir})
    except SettingsInvalid as faults:
        typer.echo(f"Invalid settings:\n{faults}", err=True)
        raise typer.Exit(2) from None
