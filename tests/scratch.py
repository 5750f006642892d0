"""Folders for what a test leaves behind: removed when the process ends."""

import tempfile
from pathlib import Path

_SCRATCH = tempfile.TemporaryDirectory(prefix="postroad-tests-", ignore_cleanup_errors=True)


def scratch_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_SCRATCH.name))
