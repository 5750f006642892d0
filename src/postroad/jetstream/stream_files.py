"""The block files of one stream of the embedded server, as a sync needs them: open descriptors, and what has changed."""

import contextlib
import errno
import os
import time
from pathlib import Path

from postroad.jetstream.kernel_aio import Operation
from postroad.jetstream.sync_rules import BlockListing, is_synced_file, needs_listing, plan_sync

_DISK_ERRORS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class FilesystemSyncNeeded(Exception):
    """Only a sync of the filesystem covers the stream: its files changed while they were listed, too many are new, or the process
    lacks descriptors or memory to open them."""


def is_disk_error(problem: OSError) -> bool:
    """True if the disk has failed, and not a resource of this process."""
    return problem.errno in _DISK_ERRORS


class StreamFiles:
    """Files of one stream. Its directory and last block stay open, so that their inodes cannot be reused meanwhile."""

    def __init__(self, stream_directory: Path) -> None:
        self._parents = (stream_directory, stream_directory.parent)
        self._path = str(stream_directory / "msgs")  # a string: it is looked up for every sync
        self._directory = -1
        self._last = -1
        self._known: BlockListing | None = None
        self._opened: list[int] = []
        self._observed = self._covered = self._durable = 0

    def observe(self, sequence: int) -> None:
        """Note that the engine has reported this sequence as stored: the next sync covers it."""
        if sequence > self._observed:
            self._observed = sequence

    def is_durable(self, sequence: int) -> bool:
        """True if a sync has covered the message. False after the directory was replaced: its sequences may start again."""
        if sequence > self._durable or self._known is None:
            return False
        try:
            return os.stat(self._path).st_ino == self._known.inode  # noqa: PTH116
        except FileNotFoundError:
            return False

    def operations(self) -> list[Operation]:
        """The syncs that make all writes before this call durable. Raises FilesystemSyncNeeded, and OSError if the disk fails.

        The descriptors are open until `release`.
        """
        self._covered = self._observed
        try:
            now_ns = time.time_ns()
            found = os.stat(self._path)  # noqa: PTH116
            if not needs_listing(self._known, found.st_ino, found.st_mtime_ns):
                return [(self._last, True)] if self._last >= 0 else []
            return self._list(found.st_ino, found.st_mtime_ns, now_ns)
        except OSError as exc:
            if is_disk_error(exc):
                raise
            self.close()  # what is open may not be what was listed
            raise FilesystemSyncNeeded from exc

    def _list(self, inode: int, mtime_ns: int, now_ns: int) -> list[Operation]:
        known = self._known
        if known is None or known.inode != inode:
            self._open_directory(inode)
        with os.scandir(self._directory) as entries:
            files = {entry.name: entry.inode() for entry in entries if is_synced_file(entry.name)}
        listing = BlockListing(inode, mtime_ns, now_ns, files)
        plan = plan_sync(known, listing)
        operations: list[Operation] = [(self._open(name), True) for name in plan.files]
        if plan.is_directory_synced:
            operations.append((self._directory, False))
        if plan.are_parents_synced:
            operations += [(self._opened_path(path), False) for path in self._parents]
        self._keep_last(listing)
        self._known = listing
        if plan.is_filesystem_synced:
            raise FilesystemSyncNeeded
        return operations

    def _open_directory(self, inode: int) -> None:
        self.close()
        self._observed = self._covered = self._durable = 0  # perhaps another stream of the same name
        self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(self._directory).st_ino != inode:  # replaced since it was looked at
            raise FilesystemSyncNeeded

    def _open(self, name: str) -> int:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        self._opened.append(descriptor)
        return descriptor

    def _opened_path(self, path: Path) -> int:
        self._opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return self._opened[-1]

    def _keep_last(self, listing: BlockListing) -> None:
        if self._last >= 0:
            self._opened.append(self._last)  # closed after the sync that may use it
            self._last = -1
        if listing.last_block is not None:
            self._last = os.open(listing.last_block, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)

    def end_sync(self) -> None:
        """Note that the sync of `operations` has succeeded."""
        self._durable = max(self._durable, self._covered)

    def release(self) -> None:
        """Close the descriptors that only one sync needs."""
        while self._opened:
            os.close(self._opened.pop())

    def close(self) -> None:
        self.release()
        for descriptor in (self._directory, self._last):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._directory = self._last = -1
        self._known = None
