"""Sync of the filesystem that has the store of a NATS server on the same machine."""

import ctypes
import os
import sys

from spark_jetstream.errors import JetStreamError


def sync_filesystem(directory: str) -> None:
    """Return when everything written to the filesystem of the directory is on the disk. Raises JetStreamError."""
    if sys.platform != "linux":
        os.sync()
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise JetStreamError(f"the directory {directory!r} cannot be opened: {problem.strerror}") from problem
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise JetStreamError(f"the filesystem of {directory!r} cannot be synced: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
