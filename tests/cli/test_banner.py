import os
import pty
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine  # starts processes

SCRIPT = """
from pathlib import Path
from postroad.cli.banner import print_banner
from postroad.runtime.supervisor import StartupInfo
print_banner(StartupInfo("http://127.0.0.1:8080", "nats-server", Path("/srv/var"), {"tenant_key": "pr_live_x"}, True, "http://127.0.0.1:8080/?access=c"))
"""


def _output(*, is_terminal: bool) -> str:
    reader, writer = pty.openpty() if is_terminal else os.pipe()
    try:
        subprocess.run([sys.executable, "-c", SCRIPT], stdout=writer, check=True, timeout=60)
        return os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_new_keys_are_printed_on_a_terminal_only(is_terminal: bool) -> None:
    output = _output(is_terminal=is_terminal)

    assert "/srv/var/credentials.toml" in output
    assert "Console http://127.0.0.1:8080/?access=c" in output
    assert ("pr_live_x" in output) == is_terminal
