"""Merges jobs of the index and of the archive into one page. Pure.

Both lists are ordered newest first. A page may have read a part of the archive only: everything down to the key `reached`. Jobs
of either list below that key are left to the next page, so that no page has a job that should follow one of a later page.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from postroad.api.jobs import Job

Key = tuple[int, str]  # position of a job: time of creation and id

LOWEST = "!"  # below every id: `(at, LOWEST)` is the position below all jobs created at that moment or later


class KeyedJob(NamedTuple):
    key: Key
    job: Job


class KeyRange(NamedTuple):
    """The positions between two keys, both excluded."""

    below: Key
    above: Key

    @property
    def is_empty(self) -> bool:
        return self.above >= self.below

    def has(self, key: Key) -> bool:
        return self.above < key < self.below


class MergedPage(NamedTuple):
    jobs: list[Job]
    following: Key | None


def latest_of_each(jobs: Iterable[KeyedJob]) -> dict[str, KeyedJob]:
    """By id. A job that was redriven and ended again is in the archive twice: the later end counts."""
    found: dict[str, KeyedJob] = {}
    for one in jobs:
        known = found.get(one.job.job_id)
        if known is None or one.job.updated_at > known.job.updated_at:
            found[one.job.job_id] = one
    return found


def merge(
    indexed: Sequence[KeyedJob], indexed_following: Key | None, archived: Sequence[KeyedJob], reached: Key | None, limit: int
) -> MergedPage:
    """`reached` None: the archive was read completely. Indexed jobs take precedence over archived ones."""
    known = {one.job.job_id for one in indexed}
    both = [*indexed, *(one for one in archived if one.job.job_id not in known)]
    both.sort(key=lambda one: one.key, reverse=True)
    if reached is not None:
        both = [one for one in both if one.key >= reached]
    page = both[:limit]
    following = page[-1].key if len(both) > limit else (reached or indexed_following)
    return MergedPage([one.job for one in page], following)
