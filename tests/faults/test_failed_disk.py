"""A disk that cannot write any more: nothing is acknowledged that it lacks, and the installation ends instead of going on."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.faults.loop_disk import LoopDisk, loop_disk
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A disk whose medium ends after 80 MB, although it says to have 512: writes beyond that fail."""
    medium = tmp_path / "medium"
    medium.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(medium)], check=False).returncode:
        pytest.skip("only root can mount a filesystem")
    try:
        with loop_disk(medium, 512) as disk:
            yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(medium)], check=True)


async def publish(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.post(f"{url}/v1/queues/orders/messages", json={"payload": "x" * 1_000_000}) as answer:
            return answer.status
    except aiohttp.ClientError:
        return 0


def install(home: Path, disk: LoopDisk, *, is_log_on_disk: bool) -> Installation:
    if is_log_on_disk:
        return Installation(disk.folder)
    home.mkdir()
    (disk.folder / "var").mkdir(mode=0o700)
    (home / "var").symlink_to(disk.folder / "var")
    return Installation(home)


@pytest.mark.parametrize("is_log_on_disk", [False, True])
async def test_the_installation_ends_if_its_disk_fails(tmp_path: Path, failing_disk: LoopDisk, is_log_on_disk: bool) -> None:
    running = install(tmp_path / "home", failing_disk, is_log_on_disk=is_log_on_disk).start()
    try:
        await running.ready()
        async with aiohttp.ClientSession(headers=running.headers, timeout=aiohttp.ClientTimeout(total=30)) as session:
            statuses = {201}
            while running.is_running and len(statuses) == 1:
                statuses |= set(await asyncio.gather(*(publish(session, running.url) for _ in range(4))))
        await eventually(lambda: not running.is_running, 60)
    finally:
        running.end()

    assert running.process is not None
    assert running.process.returncode not in (0, None)
    assert statuses <= {201, 0, 503}
    if not is_log_on_disk:
        assert "store_sync_failed" in running.log()
        assert running.process.returncode == 1
