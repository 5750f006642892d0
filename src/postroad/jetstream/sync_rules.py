"""Group sync, part 1: which files of a stream make its writes durable, and which callers share a sync. Pure, no I/O.

The embedded server has written a message, or the record of an acknowledgement, to the stream's last block file when it answers,
but has not synced it. `fdatasync` acts on the file, whichever process has written it, so one sync serves every caller whose
answer came before it began. Decision 0043 has the experiments.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

YOUNG_NS = 20_000_000  # a change within the granularity of the kernel's clock may leave the time of the last change as it was
FILES_MAX = 64  # beyond that one sync of the whole filesystem is cheaper

_BLOCK = re.compile(r"(\d+)\.blk")
W = TypeVar("W")


def is_synced_file(name: str) -> bool:
    """True for blocks and their keys. Everything else in the directory is rebuilt from them."""
    return name.endswith((".blk", ".key"))


@dataclass(frozen=True, slots=True)
class BlockListing:
    """A directory of blocks: its inode, the time of its last change before it was listed, and the inodes of its files by name.

    `listed_at_ns` is before that time was read: a change that the listing lacks came later.
    """

    inode: int
    mtime_ns: int
    listed_at_ns: int
    files: Mapping[str, int]

    @property
    def last_block(self) -> str | None:
        numbers = [int(found[1]) for name in self.files if (found := _BLOCK.fullmatch(name))]
        return f"{max(numbers)}.blk" if numbers else None


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Files to fdatasync, directories to fsync (of blocks, and those above it), or the whole filesystem instead."""

    files: tuple[str, ...] = ()
    is_directory_synced: bool = False
    are_parents_synced: bool = False
    is_filesystem_synced: bool = False


def needs_listing(known: BlockListing | None, inode: int, mtime_ns: int) -> bool:
    """True if the directory may have changed since it was listed.

    A change that followed the listed one within a tick of the kernel's clock has left the time as it was. Only a listing that is
    clearly later than the last change has everything.
    """
    if known is None or (known.inode, known.mtime_ns) != (inode, mtime_ns):
        return True
    return known.listed_at_ns - mtime_ns < YOUNG_NS


def plan_sync(known: BlockListing | None, found: BlockListing) -> SyncPlan:
    """What to sync after a listing: files with a new inode, the block that was last, the one that is last, and the directory.

    A purge replaces the directory of blocks by another one, so the entry in its parent must be synced, too.
    """
    is_replaced = known is None or known.inode != found.inode
    before: Mapping[str, int] = {} if known is None or is_replaced else known.files
    names = {name for name, inode in found.files.items() if before.get(name) != inode}
    lasts = (None if known is None or is_replaced else known.last_block, found.last_block)
    names |= {name for name in lasts if name is not None and name in found.files}
    if len(names) > FILES_MAX:
        return SyncPlan(is_filesystem_synced=True)
    return SyncPlan(tuple(sorted(names)), is_directory_synced=True, are_parents_synced=is_replaced)


class SyncGroups(Generic[W]):
    """Callers by stream. At most one group is being synced; callers that arrive meanwhile form the next one.

    A caller never joins the group in progress: its write may have happened after that sync began.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[W]] = {}
        self._in_progress: dict[str, list[W]] | None = None

    def add(self, stream: str, *callers: W) -> None:
        self._waiting.setdefault(stream, []).extend(callers)

    @property
    def is_due(self) -> bool:
        return bool(self._waiting) and self._in_progress is None

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._in_progress is None

    def begin(self) -> Sequence[str]:
        """Close the group of waiting callers, which is then in progress; its streams. Only valid if one is due."""
        self._in_progress, self._waiting = self._waiting, {}
        return list(self._in_progress)

    def remove(self, stream: str) -> list[W]:
        """Take the callers of a stream out of the group in progress."""
        return (self._in_progress or {}).pop(stream, [])

    def end(self) -> list[W]:
        """The callers of the group in progress, which has ended."""
        ended, self._in_progress = self._in_progress or {}, None
        return [caller for callers in ended.values() for caller in callers]

    def remove_where(self, is_removed: Callable[[W], bool]) -> list[W]:
        """Remove the callers, waiting or in progress, for which the condition holds, and return them."""
        removed: list[W] = []
        for group in (self._in_progress or {}, self._waiting):
            for stream, callers in group.items():
                removed += [caller for caller in callers if is_removed(caller)]
                group[stream] = [caller for caller in callers if not is_removed(caller)]
        return removed
