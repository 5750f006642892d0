"""`postroad init`: the secrets of a new installation."""

from pathlib import Path
from typing import Annotated

import typer

from postroad.cli.output import exit_on_error


def init(out: Annotated[Path, typer.Option("--out", help="Directory to write the files to.")]) -> None:
    """Write the secrets of a new installation for containers: platform key, first keys, NATS user.

    Processes read them as mounted files (deploy/compose.yaml, deploy/kubernetes). `postroad up` needs none of them. Keep a copy
    of the platform key: a backup can be restored only with it.
    """
    from postroad.runtime.deployment_secrets import FILES, write_secrets

    with exit_on_error():
        write_secrets(out)
    typer.echo(f"wrote {', '.join(FILES)} to {out}")
