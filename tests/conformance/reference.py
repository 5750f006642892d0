"""The reference server of the protocol, in a process of its own: what we compare with, and what the runner was tried on."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.node import NODE

HERE = Path(__file__).parent


@contextlib.contextmanager
def reference_server(directory: Path | None = None, *, webhooks: bool = False) -> Iterator[tuple[str, int]]:
    """Its URL and process id. With a directory it stores in files, without one in memory. `scripts/setup-node` comes first."""
    if not (HERE / "node_modules").exists():
        raise SystemExit("the reference server is not installed: sh scripts/setup-node")
    command = [NODE, str(HERE / "reference.mjs"), *(["--webhooks"] if webhooks else [])]
    command += ["--dir", str(directory)] if directory else []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise SystemExit("the reference server did not start")
            yield url, process.pid
        finally:
            process.terminate()
