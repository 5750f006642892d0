"""A running installation, and shells with and without keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.installation import Installation


@pytest.fixture(scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("cli"), POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8")
    yield await installation.start().ready()
    installation.end()


@pytest.fixture
def anonymous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without server and key."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path / "config")


@pytest.fixture
def shell(anonymous: Shell, running: Installation) -> Shell:
    """A shell with the key of the tenant `default`."""
    return anonymous.with_environment(POSTROAD_URL=running.url, POSTROAD_KEY=running.credentials["tenant_key"])


@pytest.fixture
def operator(shell: Shell, running: Installation) -> Shell:
    """A shell with the platform key."""
    return shell.with_environment(POSTROAD_KEY=running.credentials["admin_key"])
