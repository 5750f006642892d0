"""`postroad backup` and `postroad restore`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.check import load_server_settings
from postroad.cli.output import AsJson, exit_on_error, to_json
from postroad.cli.progress import ProgressLine, share
from postroad.cli.server import DataDir

if TYPE_CHECKING:
    from postroad.backup.create import BackupProgress

PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="File with the passphrase that encrypts the backup.", exists=True, dir_okay=False, show_default=False),
]


def backup(
    out: Annotated[Path, typer.Option("--out", help="Directory to write the backup to; it must be new or empty.")],
    live: Annotated[
        bool, typer.Option("--live", help="Do not hold writes. Streams are then copied at different moments.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a backup of all data to a directory, with the state of one moment.

    Needs access to the engine: on the machine of `postroad up`, or with POSTROAD_NATS_URL, and the platform key. While it runs,
    all gateways answer writes with 503 `maintenance`, which SDKs repeat; --live avoids that. The directory is a backup once it
    has a manifest.json.
    """
    settings = load_server_settings(data_dir)
    os.umask(0o077)
    import asyncio

    from postroad.backup.create import create_backup
    from postroad.logs import configure_logging

    configure_logging("error", settings.log_format)
    line = ProgressLine()
    with exit_on_error():
        try:
            written = asyncio.run(
                create_backup(settings, out, _shown(line, "copied"), is_live=live, passphrase=_passphrase(passphrase_file))
            )
        finally:
            line.clear()
    if as_json:
        summary = {"id": written.id, "streams": len(written.streams), "messages": written.messages, "bytes": written.bytes}
        typer.echo(to_json({**summary, "seconds": written.seconds, "changed": written.changed}).decode())
        return
    typer.echo(
        f"backup {written.id}: {len(written.streams)} streams, {written.messages:,} messages, {written.bytes:,} bytes "
        f"in {written.seconds:.1f} s"
    )
    if written.is_live:
        changed = f": {', '.join(written.changed)}" if written.changed else ""
        typer.echo(
            f"writes were not held; {len(written.changed)} streams changed meanwhile{changed}. A message and its event, or a "
            "record and its audit entry, may be present one without the other"
        )


def restore(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Directory of the backup.", show_default=False)] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Restore this tenant only, into a running installation that does not have it.", show_default=False),
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Remove an interrupted restore instead.")] = False,
    passphrase_file: PassphraseFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty engine, all of it or nothing.

    Postroad must not run on the engine, which is that of the data directory, or at POSTROAD_NATS_URL. Files, versions and the
    platform key are verified before anything is changed. If the command is interrupted, run it again: it continues. Until then
    Postroad does not start on this engine. Leases of the backup end, so messages that were in progress are delivered again.
    """
    settings = load_server_settings(data_dir)
    os.umask(0o077)
    import asyncio

    from postroad.backup.restore import abort_restore, restore_backup
    from postroad.backup.tenant import restore_tenant
    from postroad.logs import configure_logging

    configure_logging("error", settings.log_format)
    line = ProgressLine()
    passphrase = _passphrase(passphrase_file)
    with exit_on_error():
        try:
            if abort:
                typer.echo(f"removed {asyncio.run(abort_restore(settings))} streams of the interrupted restore")
                return
            if folder is None:
                raise ValueError("name the directory of the backup")
            if tenant is not None:
                result = asyncio.run(restore_tenant(settings, folder, tenant, _shown(line, "restored"), passphrase=passphrase))
            else:
                result = asyncio.run(restore_backup(settings, folder, _shown(line, "restored"), passphrase=passphrase))
        finally:
            line.clear()
    if as_json:
        typer.echo(to_json(result).decode())
        return
    resumed = f", {result.resumed} of them by an earlier call" if result.resumed else ""
    typer.echo(
        f"restored {result.streams} streams with {result.messages:,} messages{resumed}; {result.leases} leases ended. "
        + ("The tenant is active." if tenant is not None else "Postroad can start now.")
    )


def _shown(line: ProgressLine, verb: str) -> Callable[["BackupProgress"], None]:
    return lambda now: line.show(f"{share(now.streams, now.total)} streams {verb}, {now.messages:,} messages")


def _passphrase(path: Path | None) -> str | None:
    """Raises typer.Exit if it is too short to protect anything."""
    if path is None:
        return None
    text = path.read_text(encoding="utf-8").strip()
    if len(text) < 16:
        typer.echo("postroad: a passphrase has at least 16 characters", err=True)
        raise typer.Exit(2)
    return text
