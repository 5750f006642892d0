"""The directory in which the processes of one supervisor share their metrics, and the supervisor's own counters in it."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key

_PREFIX = "postroad-supervisor-"


@contextmanager
def metrics_directory() -> Iterator[Path]:
    """A locked directory for the duration of the block. Directories that a killed supervisor left behind are removed."""
    _remove_expired(Path(tempfile.gettempdir()))
    path, lock = _create_locked()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _create_locked() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # else another supervisor removed it before it was locked
            return path, lock
        os.close(lock)


def _remove_expired(parent: Path) -> None:
    """Remove the directories of this user that no running supervisor has locked."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, removed meanwhile, or of another user
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(path)
            finally:
                os.close(lock)


class SupervisorMetrics:
    """Metrics of the supervisor in files beside those of the workers, which serve all of them at `/metrics`."""

    def __init__(self, directory: Path) -> None:
        untyped: Any = MmapedDict
        self._counters = untyped(str(directory / "counter_supervisor.db"))
        self._gauges = untyped(str(directory / "gauge_mostrecent_supervisor.db"))

    def increment(self, name: str, description: str, **labels: str) -> None:
        """Add 1 to a counter, whose `name` is without the suffix `_total`."""
        key = _key(name, f"{name}_total", description, labels)
        self._counters.write_value(key, self._counters.read_value(key)[0] + 1, 0.0)

    def set(self, name: str, description: str, value: float, **labels: str) -> None:
        self._gauges.write_value(_key(name, name, description, labels), value, time.time())

    def close(self) -> None:
        self._counters.close()
        self._gauges.close()


def _key(metric: str, sample: str, description: str, labels: Mapping[str, str]) -> str:
    return str(mmap_key(metric, sample, list(labels), list(labels.values()), description))
