"""Two lists of jobs as one: those that are known, and those that only the archive has. Pure.

Both come newest first. Of the archive a page may see a part only: everything down to the key `reached`. What is below that, of
either list, waits for the next page, so that no page has a job that should have come after one of a later page.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from postroad.jobs.views import JobView

Key = tuple[int, str]  # a job's place in the order: when it was created, and its id

LOWEST = "!"  # no id is below it: `(at, LOWEST)` is the place below everything that was created at that moment or later


class KeyedJob(NamedTuple):
    key: Key
    job: JobView


class KeyRange(NamedTuple):
    """The places between two keys; neither is in it."""

    below: Key
    above: Key

    @property
    def is_empty(self) -> bool:
        return self.above >= self.below

    def has(self, key: Key) -> bool:
        return self.above < key < self.below


class MergedPage(NamedTuple):
    jobs: list[JobView]
    following: Key | None


def latest_of_each(placed: Iterable[KeyedJob]) -> dict[str, KeyedJob]:
    """A job that ended twice, since it was put back in between, is in the archive twice: the later end counts."""
    found: dict[str, KeyedJob] = {}
    for one in placed:
        known = found.get(one.job.job_id)
        if known is None or one.job.updated_at > known.job.updated_at:
            found[one.job.job_id] = one
    return found


def merge(
    hot: Sequence[KeyedJob], hot_following: Key | None, archived: Sequence[KeyedJob], reached: Key | None, limit: int
) -> MergedPage:
    """A page of both. `reached` None: the archive was seen to the end of what was asked. The known one wins over the archived."""
    known = {one.job.job_id for one in hot}
    both = [*hot, *(one for one in archived if one.job.job_id not in known)]
    both.sort(key=lambda one: one.key, reverse=True)
    if reached is not None:
        both = [one for one in both if one.key >= reached]
    taken = both[:limit]
    following = taken[-1].key if len(both) > limit else (reached or hot_following)
    return MergedPage([one.job for one in taken], following)
