"""An ext4 filesystem on a loop device, which can be copied as a power failure would leave it. Needs root."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.installation import Installation
from tests.waiting import eventually

_MIB = 1024 * 1024
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class LoopDisk:
    """`folder` is where the filesystem is mounted. Its journal is not committed periodically: only a sync writes soon."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder
        self.device = ""

    @classmethod
    def create(cls, image: Path, folder: Path, mebibytes: int) -> "LoopDisk":
        image.touch()
        os.truncate(image, mebibytes * _MIB)
        _run("mkfs.ext4", "-q", "-F", str(image))
        return cls(image, folder).mount()

    def mount(self) -> "LoopDisk":
        self.folder.mkdir()
        self.device = _run("losetup", "--find", "--show", str(self.image))
        _run("mount", "-o", "commit=600", self.device, str(self.folder))
        return self

    def remove(self) -> None:
        for command in (("umount", "--lazy", str(self.folder)), ("losetup", "--detach", self.device)):
            subprocess.run(command, check=False, capture_output=True)
        self.image.unlink()

    def written_sectors(self) -> int:
        return int(Path("/sys/block", Path(self.device).name, "stat").read_text().split()[6])

    def copy_device(self, image: Path) -> None:
        """What the device has received. Data that the kernel has only in its page cache are not in it."""
        _run("cp", "--sparse=always", str(self.image), str(image))


@contextlib.contextmanager
def loop_disk(folder: Path, mebibytes: int) -> Iterator[LoopDisk]:
    """A new disk, or a skipped test if this machine does not allow it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a filesystem")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    try:
        disk = LoopDisk.create(folder / "disk.img", folder / "disk", mebibytes)
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"loop devices are not allowed here: {problem.stderr}")
    try:
        yield disk
    finally:
        disk.remove()


def _processes(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += _processes(int(child))
    return found


@contextlib.asynccontextmanager
async def stopped(running: Installation, disk: LoopDisk) -> AsyncIterator[None]:
    """All processes of the installation stand still, and the disk is idle. Clients read responses that were sent before."""
    pids = _processes(running.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        last = -1

        async def is_idle() -> bool:
            nonlocal last
            before, last = last, disk.written_sectors()
            await asyncio.sleep(0.05)
            return before == last

        await eventually(is_idle)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
