"""Every release's backup is restored, started and verified by this version."""

import shutil
from pathlib import Path

import pytest

from tests.backup.commands import run
from tests.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RELEASES = sorted(path.name for path in Path(__file__).parent.iterdir() if (path / "backup" / "manifest.json").exists())


def test_there_is_a_backup_of_a_release() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES)
async def test_the_backup_of_a_release_is_restored_and_verified(release: str, tmp_path: Path) -> None:
    folder = Path(__file__).parent / release
    installation = Installation(tmp_path)
    (tmp_path / "var").mkdir()
    shutil.copy(folder / "platform.key", tmp_path / "var" / "platform.key")
    done = await run(tmp_path, "restore", str(folder / "backup"))
    assert done.code == 0, done
    try:
        await installation.start().ready(300)
        key = (folder / "tenant.key").read_text().strip()
        done = await run(tmp_path, "verify", POSTROAD_URL=installation.url, POSTROAD_KEY=key)
        assert done.code == 0, done
    finally:
        installation.end()
