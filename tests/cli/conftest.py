"""A started Postroad, and shells of those who call it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.installation import Installation


@pytest.fixture(scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("cli"))
    yield await installation.start().ready()
    installation.end()


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Knows no server and has no key."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path / "config")


@pytest.fixture
def shell(stranger: Shell, running: Installation) -> Shell:
    """Has the key of the tenant `default`."""
    return stranger.with_environment(POSTROAD_URL=running.url, POSTROAD_KEY=running.credentials["tenant_key"])


@pytest.fixture
def operator(shell: Shell, running: Installation) -> Shell:
    """Has the platform's key."""
    return shell.with_environment(POSTROAD_KEY=running.credentials["admin_key"])
