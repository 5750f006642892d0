"""Group sync on real files: what is synced, who waits, and what happens if the disk fails."""

import asyncio
import errno
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.jetstream.sync_disk import Disk, disk
from tests.waiting import eventually

from postroad.jetstream import kernel_aio, store_sync
from postroad.jetstream.store_sync import StoreSync, StoreSyncFailed
from postroad.kernel.errors import EngineUnavailable

__all__ = ["disk"]

pytestmark = pytest.mark.skipif(not kernel_aio.is_supported(), reason="this kernel does not execute asynchronous syncs")


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The directory of blocks of the stream Q, which has not changed for a while."""
    directory = tmp_path / "jetstream" / "$G" / "streams" / "Q" / "msgs"
    directory.mkdir(parents=True)
    (directory / "1.blk").write_bytes(b"one")
    age(directory)
    return directory


def age(directory: Path) -> None:
    os.utime(directory, ns=(1, directory.stat().st_mtime_ns - 10**9))


def replace(directory: Path) -> None:
    """As a purge does, or the creation of another stream of that name."""
    directory.rename(directory.with_name("__msgs__"))
    directory.mkdir()
    (directory / "1.blk").touch()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
async def sync(tmp_path: Path) -> AsyncIterator[StoreSync]:
    made = StoreSync(tmp_path)
    yield made
    made.close()


async def test_real_syncs_complete(blocks: Path, sync: StoreSync) -> None:
    await asyncio.gather(*(sync.wait("Q", number) for number in range(1, 50)))
    await sync.wait_filesystem()
    for number in range(100):  # more files than one submission has room for
        (blocks / f"{number}.blk").touch()
    await sync.wait("Q", 50)


async def test_waiting_callers_share_one_sync_and_later_ones_the_next(blocks: Path, sync: StoreSync, disk: Disk) -> None:
    disk.is_holding = True
    first = [asyncio.ensure_future(sync.wait("Q", number)) for number in (1, 2)]
    await eventually(lambda: disk.held)
    later = [asyncio.ensure_future(sync.wait("Q", number)) for number in (3, 4)]
    await asyncio.sleep(0)
    assert len(disk.syncs) == 1
    disk.release()
    await asyncio.gather(*first, *later)

    assert disk.syncs == [["1.blk", "Q", "msgs", "streams"], ["1.blk"]]


async def test_entries_that_a_sync_has_covered_are_not_waited_for(blocks: Path, sync: StoreSync, disk: Disk) -> None:
    await sync.wait("Q", 5)
    await sync.wait("Q", 5)  # the first sync of a directory proves nothing of its sequences
    syncs = len(disk.syncs)

    await sync.wait("Q", 5)
    await sync.wait("Q", 4)
    assert len(disk.syncs) == syncs
    await sync.wait("Q", 6)
    assert len(disk.syncs) == syncs + 1
    await sync.wait("Q")  # an acknowledgement has no sequence
    assert len(disk.syncs) == syncs + 2


async def test_observed_entries_are_covered_by_the_next_sync(blocks: Path, sync: StoreSync, disk: Disk) -> None:
    await sync.wait("Q", 1)
    sync.observe("Q", 9)
    await sync.wait("Q", 2)
    syncs = len(disk.syncs)

    await sync.wait("Q", 9)

    assert len(disk.syncs) == syncs


async def test_an_entry_of_a_recreated_stream_is_waited_for(blocks: Path, sync: StoreSync, disk: Disk) -> None:
    await sync.wait("Q", 5)
    await sync.wait("Q", 5)
    replace(blocks)
    syncs = len(disk.syncs)

    await sync.wait("Q", 3)

    assert disk.syncs[syncs:] == [["1.blk", "Q", "msgs", "streams"]]


async def test_a_new_block_is_synced_with_its_predecessor_and_the_directory(blocks: Path, sync: StoreSync, disk: Disk) -> None:
    await sync.wait("Q", 1)
    (blocks / "2.blk").touch()
    await sync.wait("Q", 2)
    age(blocks)
    await sync.wait("Q", 3)
    await sync.wait("Q", 4)

    assert disk.syncs[1] == ["1.blk", "2.blk", "msgs"]
    assert disk.syncs[-1] == ["2.blk"]


async def test_a_missing_directory_is_covered_by_a_sync_of_the_filesystem(sync: StoreSync, disk: Disk) -> None:
    await sync.wait("gone", 1)

    assert (disk.filesystem_syncs, disk.syncs) == (1, [])


async def test_changes_of_definitions_share_syncs_of_the_filesystem(sync: StoreSync, disk: Disk) -> None:
    await asyncio.gather(*(sync.wait_filesystem() for _ in range(10)))

    assert disk.filesystem_syncs == 2  # the first caller's, and one for all that arrived during it


@pytest.mark.parametrize("is_of_filesystem", [False, True])
async def test_a_failed_sync_is_not_repeated_and_ends_the_process(
    blocks: Path, sync: StoreSync, disk: Disk, is_of_filesystem: bool
) -> None:
    disk.error = errno.EIO
    ending = asyncio.ensure_future(sync.raise_when_failed())
    waiting = sync.wait_filesystem() if is_of_filesystem else sync.wait("Q", 1)
    with pytest.raises(EngineUnavailable, match="may or may not"):
        await waiting
    disk.error = 0
    with pytest.raises(EngineUnavailable):
        await sync.wait("Q", 2)

    with pytest.raises(StoreSyncFailed, match="Input/output error"):
        await ending
    assert len(disk.syncs) + disk.filesystem_syncs == 1


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_known", [False, True], ids=["a new stream", "a new block"])
async def test_without_descriptors_the_filesystem_is_synced(blocks: Path, sync: StoreSync, disk: Disk, is_known: bool) -> None:
    if is_known:
        await sync.wait("Q", 1)
        (blocks / "2.blk").touch()
    syncs = len(disk.syncs)
    with no_descriptor_left():
        await sync.wait("Q", 2)
    assert (len(disk.syncs), disk.filesystem_syncs) == (syncs, 1)

    await sync.wait("Q", 3)

    files = ["1.blk", "2.blk"] if is_known else ["1.blk"]
    assert disk.syncs[-1] == [*files, "Q", "msgs", "streams"]  # everything again
    assert disk.filesystem_syncs == 1


@pytest.mark.parametrize("accepted", [0, 1], ids=["at once", "after the first operations"])
async def test_if_the_kernel_accepts_no_operations_the_filesystem_is_synced(
    tmp_path: Path, sync: StoreSync, monkeypatch: pytest.MonkeyPatch, accepted: int
) -> None:
    for stream in ("Q", "R"):  # together more files than one submission has room for
        directory = tmp_path / "jetstream" / "$G" / "streams" / stream / "msgs"
        directory.mkdir(parents=True)
        for number in range(40):
            (directory / f"{number}.blk").touch()
    really, really_syncfs = kernel_aio._Context.submit, store_sync._syncfs
    submissions, filesystem_syncs = list[int](), list[int]()

    def submit(context: Any, count: int, pointers: Any) -> int:
        submissions.append(count)
        if len(submissions) == accepted + 1:
            raise BlockingIOError(errno.EAGAIN, "no space")
        return really(context, count, pointers)

    def syncfs(descriptor: int) -> None:
        filesystem_syncs.append(descriptor)
        really_syncfs(descriptor)

    monkeypatch.setattr(kernel_aio._Context, "submit", submit)
    monkeypatch.setattr(store_sync, "_syncfs", syncfs)

    await asyncio.gather(sync.wait("Q", 1), sync.wait("R", 1))
    assert filesystem_syncs
    filesystem_syncs.clear()
    await asyncio.gather(sync.wait("Q", 2), sync.wait("R", 2))

    assert not filesystem_syncs
    assert len(submissions) == accepted + 3  # all files again, in two


@pytest.mark.parametrize("error", [0, errno.EIO], ids=["synced", "failed"])
@pytest.mark.parametrize("stream", ["Q", "gone"], ids=["a stream", "the filesystem"])
async def test_a_callback_that_raises_leaves_no_other_without_an_answer(
    blocks: Path, sync: StoreSync, disk: Disk, stream: str, error: int
) -> None:
    answers: list[EngineUnavailable | None] = []

    def crash(_problem: EngineUnavailable | None) -> None:
        raise ValueError("a bug")

    disk.error = error
    for callback in (crash, answers.append, crash, answers.append):
        sync.request(stream, 1, callback)
    await eventually(lambda: len(answers) == 2)

    assert [answer is None for answer in answers] == [not error] * 2


async def test_callers_fail_if_the_disk_does_not_answer(tmp_path: Path, blocks: Path, disk: Disk) -> None:
    sync = StoreSync(tmp_path, deadline_seconds=0.05)
    disk.is_holding = True
    try:
        waiting = [asyncio.ensure_future(sync.wait("Q", 1))]
        await eventually(lambda: disk.held)
        waiting.append(asyncio.ensure_future(sync.wait("Q", 2)))
        for one in waiting:
            with pytest.raises(EngineUnavailable):
                await one
        disk.release()
        await sync.wait("Q", 3)  # it answers again
    finally:
        sync.close()


async def test_the_files_of_few_streams_stay_open(
    tmp_path: Path, blocks: Path, sync: StoreSync, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_sync, "STREAMS_OPEN_MAX", 2)
    for number in range(20):
        directory = blocks.parent.parent / f"S{number}" / "msgs"
        directory.mkdir(parents=True)
        (directory / "1.blk").touch()
    before = open_descriptors()

    await asyncio.gather(*(sync.wait(f"S{number}", 1) for number in range(20)))
    await asyncio.gather(*(sync.wait(f"S{number}", 1) for number in range(20)))

    assert open_descriptors() <= before + 2 * 2
