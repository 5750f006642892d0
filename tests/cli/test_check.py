from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.installation import Installation


def test_check_reads_every_stream_of_a_running_installation(shell: Shell, running: Installation) -> None:
    shell.run("queues", "publish", "checked", '{"id": 1}')

    done = shell.run_process("check", "--data", str(running.home / "var"))

    assert done.code == 0, done
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert lines["Q_default__checked"][-1] == "ok"
    assert "0 streams damaged, 0 messages unreadable" in done.stdout


@pytest.mark.engine
def test_check_needs_data(anonymous: Shell, tmp_path: Path) -> None:
    done = anonymous.run_process("check", "--data", str(tmp_path / "none"))

    assert done.code == 1
    assert "there is no data in" in done.stderr
    assert not (tmp_path / "none").exists()
