"""A running installation, and shells with and without keys."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.alerts.mail_server import Mailbox, mail_server
from tests.cli.shell import Shell
from tests.installation import Installation


@pytest.fixture(scope="session")
def mailbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mailbox]:
    with mail_server(tmp_path_factory.mktemp("mail")) as serving:
        yield serving


@pytest.fixture(scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory, mailbox: Mailbox) -> AsyncIterator[Installation]:
    installation = Installation(
        tmp_path_factory.mktemp("cli"),
        POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8",
        POSTROAD_SMTP_URL=mailbox.url,
        POSTROAD_SMTP_FROM="alerts@postroad.example",
        POSTROAD_SMTP_CA_FILE=mailbox.ca_file,
    )
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
