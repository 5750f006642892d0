"""Queries of the store: unfinished jobs without a recent event, by queue; the oldest unfinished job of a queue."""

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from postroad.api.jobs import JobStatus
from postroad.jobs.rules import JobRecord, status_at
from postroad.jobs.store import Store, decode_job

# A delayed job is checked when it is due.
_STATUSES = (JobStatus.QUEUED, JobStatus.LEASED, JobStatus.RETRYING)
_JOBS = """SELECT created_at, number, body FROM jobs INDEXED BY jobs_of_queue_and_status
WHERE queue = ? AND status = ? AND (created_at, number) > (?, ?) AND created_at < ? ORDER BY created_at, number LIMIT ?"""

_FAR_MS = 2**62
_PURGED_MAX = 100  # jobs that a purge has ended and whose rows do not show it yet

JobKey = tuple[int, int]  # time of creation, and number in the store
BEGINNING: JobKey = (0, 0)


class UnfinishedJobs(NamedTuple):
    """Unfinished jobs of one queue, oldest first, and the key to continue from; `BEGINNING` if there are no more."""

    number: int
    tenant: str
    queue: str
    jobs: list[JobRecord]
    following: JobKey


class UnfinishedPage(NamedTuple):
    """Queues with such jobs, and the number of the queue to continue after; None at the end."""

    queues: list[UnfinishedJobs]
    after: int | None


def unfinished(
    store: Store, now: int, quiet_since: int, *, after: int, queues_max: int, jobs_max: int, positions: Mapping[int, JobKey]
) -> UnfinishedPage:
    """Unfinished jobs without an event since `quiet_since`: up to `jobs_max` of each of the `queues_max` queues that follow.

    `positions` has the keys to continue from. The cost depends on the number of queues and of unfinished jobs, not of others.
    """
    found: list[UnfinishedJobs] = []
    for _ in range(queues_max):
        row = store.connection.execute(
            "SELECT queue FROM jobs INDEXED BY jobs_of_queue WHERE queue > ? ORDER BY queue LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            return UnfinishedPage(found, None)
        after = row[0]
        one = _of_queue(store, after, now, quiet_since, jobs_max, positions.get(after, BEGINNING))
        if one is not None:
            found.append(one)
    return UnfinishedPage(found, after)


def oldest(store: Store, tenant: str, queue: str, now: int) -> JobRecord | None:
    """The oldest job of a queue whose message is ready, leased, or waits for a retry."""
    number = store.queue_numbers(tenant).get(queue)
    found = None if number is None else _of_queue(store, number, now, _FAR_MS, _PURGED_MAX, BEGINNING)
    return found.jobs[0] if found is not None and found.jobs else None


def _of_queue(store: Store, number: int, now: int, quiet_since: int, jobs_max: int, position: JobKey) -> UnfinishedJobs | None:
    sources = [
        store.connection.execute(_JOBS, (number, status.value, *position, quiet_since, jobs_max)).fetchall()
        for status in _STATUSES
    ]
    rows = list(heapq.merge(*sources))[:jobs_max]
    if not rows:
        return None
    jobs = [store.with_purges(decode_job(body)) for _, _, body in rows]
    jobs = [job for job in jobs if job.updated_at < quiet_since and status_at(job, now) in _STATUSES]
    following = rows[-1][:2] if len(rows) == jobs_max else BEGINNING
    names = "SELECT tenants.name, queues.name FROM queues JOIN tenants ON tenants.id = queues.tenant WHERE queues.id = ?"
    tenant, queue = store.connection.execute(names, (number,)).fetchone()
    return UnfinishedJobs(number, tenant, queue, jobs, following)
