"""Choice of how writes of the embedded server become durable: `group` where that is proven to be safe, else `always`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from postroad.jetstream import kernel_aio

log = structlog.get_logger("postroad")

# The server replaces a compacted block by a rename without a sync. With these options ext4 writes the data before the rename.
_EXT4_NEEDED = frozenset({"auto_da_alloc", "barrier"})
_EXT4_DATA = frozenset({"data=ordered", "data=journal"})


@dataclass(frozen=True, slots=True)
class Filesystem:
    """The filesystem of a directory; `options` of ext4, with its defaults; `has_journal` if it has one."""

    kind: str = "unknown"
    options: frozenset[str] = frozenset()
    has_journal: bool = False


def objection(filesystem: Filesystem) -> str | None:
    """The reason why group sync is not proven to be safe there. None if it is."""
    if filesystem.kind != "ext4":
        return f"the filesystem is {filesystem.kind}, not ext4"
    if not filesystem.has_journal:
        return "the filesystem has no journal"
    if not filesystem.options & _EXT4_DATA:
        return "the filesystem is not mounted with data=ordered"
    missing = sorted(_EXT4_NEEDED - filesystem.options)
    return f"the filesystem is mounted without {', '.join(missing)}" if missing else None


def filesystem_of(directory: Path, proc: Path = Path("/proc"), sys_dir: Path = Path("/sys")) -> Filesystem:
    """Read what the kernel reports of the mount; needs no privileges."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        kind = _mounted_kind((proc / "self" / "mountinfo").read_text(), number)
        if kind != "ext4":
            return Filesystem(kind)
        name = (sys_dir / "dev" / "block" / number).resolve().name
        options = frozenset((proc / "fs" / "ext4" / name / "options").read_text().split("\n"))
        has_journal = any((proc / "fs" / "jbd2").glob(f"{name}-*"))
    except OSError:
        return Filesystem()
    return Filesystem(kind, options, has_journal)


def _mounted_kind(mountinfo: str, number: str) -> str:
    """The type of the filesystem of a device: the first field after the separator."""
    for line in mountinfo.splitlines():
        mounted, _, described = line.partition(" - ")
        if re.match(rf"\d+ \d+ {number} ", mounted):
            return described.split(" ")[0]
    return "unknown"


def choose_sync(chosen: str, store_dir: Path) -> str:
    """Replace `auto` by `group` or `always`; `group` itself by `always` if the kernel cannot do it. Logs the reason."""

    if chosen not in ("auto", "group"):
        return chosen
    if not kernel_aio.is_supported():
        log.info("sync_always", reason="the kernel does not execute asynchronous syncs")
        return "always"
    reason = objection(filesystem_of(store_dir))
    if reason is None:
        return "group"
    if chosen == "auto":
        log.info("sync_always", reason=reason)
        return "always"
    log.warning("sync_group_unproven", reason=reason, effect="a power failure may lose acknowledged writes")
    return "group"
