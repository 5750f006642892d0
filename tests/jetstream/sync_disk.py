"""A disk for tests of syncs: it records, holds and fails them."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from postroad.jetstream import store_sync
from postroad.jetstream.kernel_aio import KernelAio, Operation


class Disk:
    """Records syncs by the names of their files, and can hold or fail them."""

    def __init__(self) -> None:
        self.syncs: list[list[str]] = []
        self.held: list[Callable[[int], None]] = []
        self.is_holding = False
        self.error = 0
        self.filesystem_syncs = 0

    def submit(self, operations: Sequence[Operation], done: Callable[[int], None]) -> None:
        names = [Path(f"/proc/self/fd/{descriptor}").readlink().name for descriptor, _ in operations]
        self.syncs.append(sorted(names))
        if self.is_holding:
            self.held.append(done)
        else:
            asyncio.get_running_loop().call_soon(done, self.error)

    def release(self) -> None:
        self.is_holding = False
        while self.held:
            self.held.pop(0)(self.error)

    def syncfs(self, _descriptor: int) -> None:
        self.filesystem_syncs += 1
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(KernelAio, "submit", lambda _self, operations, done: disk.submit(operations, done))
    monkeypatch.setattr(store_sync, "_syncfs", disk.syncfs)
    return disk
