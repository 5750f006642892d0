"""Files and directories that only their owner can read."""

import os
import stat
from pathlib import Path

PRIVATE_UMASK = 0o077


def make_private_directory(path: Path) -> None:
    """Create the directory, or restrict the permissions of an existing one. Logs a warning if another user owns it."""
    path.mkdir(parents=True, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) & PRIVATE_UMASK:
        try:
            path.chmod(0o700)
        except PermissionError:
            import structlog  # slow to import, and the command line writes its profiles with this module

            log = structlog.get_logger("postroad")
            log.warning("directory_not_private", path=str(path), remedy="change its owner, or its permissions to 0700")


def write_private(path: Path, text: str) -> None:
    """Write a file atomically and durably, with permissions for its owner only from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # makes the rename durable
    finally:
        os.close(directory)
