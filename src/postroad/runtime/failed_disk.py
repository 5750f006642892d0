"""What follows from a failed sync of the embedded server's store: the installation ends, and forgets what is not on the disk."""

import contextlib
import os
from pathlib import Path

EXIT_CODE = 74  # of a worker whose sync failed: EX_IOERR of sysexits.h


def forget_cached_pages(directory: Path) -> None:
    """Drop the files' pages from the kernel's cache, after the server has ended.

    After a failed sync the kernel takes the pages that it could not write for clean. A server that reads them at its next start
    would take them for stored, and acknowledge further writes behind data that are not on the disk.
    """
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
