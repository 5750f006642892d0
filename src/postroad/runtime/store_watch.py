"""Restarts the embedded server after its disk was full.

After a failed write nats-server stops a stream until its next start, even for purges, although there is space again. The reserve
of the store keeps Postroad's own writes away from that point, but other programs can fill the disk as well.
"""

import asyncio
import os
from pathlib import Path

import structlog

from postroad.runtime.embedded_server import EmbeddedServer
from postroad.runtime.process_supervisor import SupervisedProcess

_INTERVAL_SECONDS = 1.0
_FULL_BYTES = 1024 * 1024  # below this even the server's log may not show the failed write
_FAILED_WRITE = b"no space left on device"

log = structlog.get_logger("postroad.process")


class DiskFailure:
    """Whether a write of the server may have failed since its start for want of disk space."""

    def __init__(self, directory: Path, log_file: Path) -> None:
        self._directory, self._log_file = directory, log_file
        self._position = self._log_size()
        self.has_failed = False
        self.free_bytes = 0

    def check(self) -> None:
        """Read the free space, and the part of the server's log since the last check."""
        found = os.statvfs(self._directory)
        self.free_bytes = found.f_bavail * found.f_frsize
        self.has_failed = self.has_failed or self.free_bytes < _FULL_BYTES or self._is_in_log()

    def _is_in_log(self) -> bool:
        size = self._log_size()
        if size < self._position:  # rotated
            self._position = 0
        if size == self._position:
            return False
        with self._log_file.open("rb") as opened:
            opened.seek(self._position)
            added = opened.read(size - self._position)
        self._position = size
        return _FAILED_WRITE in added

    def _log_size(self) -> int:
        try:
            return self._log_file.stat().st_size
        except OSError:
            return 0


async def watch_store(process: SupervisedProcess, server: EmbeddedServer, reserve: int) -> None:
    """Restart the server once half of the reserve is free again after a failed write. Runs until cancelled."""
    failure = DiskFailure(server.store_dir, server.log_file)
    while True:
        await asyncio.sleep(_INTERVAL_SECONDS)
        was_failed = failure.has_failed
        try:
            failure.check()
        except OSError as problem:
            log.warning("store_not_checked", error=repr(problem))
            continue
        if not failure.has_failed:
            continue
        if not was_failed:
            log.error("disk_full", free_bytes=failure.free_bytes, remedy="free disk space; the engine is then restarted")
        if failure.free_bytes > reserve // 2:
            log.error("engine_restarted_after_full_disk", free_bytes=failure.free_bytes)
            failure.has_failed = False
            process.restart()
