"""`postroad snapshot` beside a running installation: it reads the engine, not the API."""

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.installation import Installation


def test_a_snapshot_is_written_shown_and_compared(shell: Shell, running: Installation) -> None:
    """Requirements 76, 77, 88"""
    shell.run("queues", "put", "snapped")
    shell.run("services", "put", "snapped")
    shell.run("routes", "put", "snapped", "post", "snapped")
    shell.run("grants", "put", "snapped", "post", "snapped")
    data = ("--data", str(running.home / "var"))
    written = shell.run_process("snapshot", "write", *data)
    assert written.code == 0 and "published snapshot " in written.stdout, written
    version = written.stdout.split()[-1]
    shown = shell.run_process("snapshot", "show", *data, "--json").json
    assert shown["routes"] >= 1 and shown["grants"] >= 1 and shown["services"] >= 1 and shown["expiresInSeconds"] > 0
    assert [one for one in shown["stored"] if one["latest"]] and shown["versionId"].split("-")[0] >= version.split("-")[0]
    shell.run("grants", "delete", "snapped", "post", "snapped", "--yes")
    compared = shell.run_process("snapshot", "verify", *data)
    assert compared.code == 0 and "agrees with the registry" in compared.stdout, compared


@pytest.mark.engine
def test_it_needs_a_running_engine(anonymous: Shell, tmp_path: Path) -> None:
    done = anonymous.run_process("snapshot", "show", "--data", str(tmp_path))
    assert done.code != 0 and "POSTROAD_NATS_URL is not set" in done.stderr, done
