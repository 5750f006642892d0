"""Finding jobs in a store: one by its id, pages of many with the newest first, and the events of one."""

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from postroad.jobs.rules import UNFINISHED, Job, JobStatus, status_at
from postroad.jobs.store import Store, decode_job
from postroad.kernel.matching import glob_matches

_QUEUES_MERGED_MAX = 200
_FAR = 2**62

Key = tuple[int, str]  # a job's place in the order: when it was created, and its id
EventKey = tuple[int, int, str]  # an event's: when it was, its rank, its id


class Wanted(NamedTuple):
    """Which jobs of a tenant. `globs`: only those of queues that one of them fits; None: of any."""

    tenant: str
    queue: str | None = None
    status: JobStatus | None = None
    since: int = 0
    until: int = _FAR
    correlation_id: str | None = None
    message_id: str | None = None
    globs: tuple[str, ...] | None = None


class JobEventRow(NamedTuple):
    key: EventKey
    text: bytes


def find(store: Store, tenant: str, job_id: str, globs: tuple[str, ...] | None = None) -> Job | None:
    found = _numbered(store, tenant, job_id, globs)
    return found[1] if found else None


def known(store: Store, tenant: str, job_ids: Sequence[str]) -> list[str]:
    """Those of them that are there."""
    number = store.tenant_number(tenant)
    marks = ", ".join("?" * len(job_ids))
    rows = store.connection.execute(f"SELECT job FROM jobs WHERE tenant = ? AND job IN ({marks})", (number, *job_ids))  # noqa: S608
    return [job for (job,) in rows]


def _numbered(store: Store, tenant: str, job_id: str, globs: tuple[str, ...] | None) -> tuple[int, Job] | None:
    where = (store.tenant_number(tenant), job_id)
    row = store.connection.execute("SELECT number, body FROM jobs WHERE tenant = ? AND job = ?", where).fetchone()
    if row is None:
        return None
    job = decode_job(row[1])
    return (row[0], store.settled(job)) if _is_allowed(job.queue, globs) else None


def events(
    store: Store, tenant: str, job_id: str, after: EventKey, limit: int, bytes_max: int, globs: tuple[str, ...] | None = None
) -> tuple[list[JobEventRow], bool] | None:
    """The job's events, oldest first, and whether there are more; None if there is no such job."""
    found = _numbered(store, tenant, job_id, globs)
    if found is None:
        return None
    rows = store.connection.execute(
        "SELECT at, rank, event, body FROM events WHERE job = ? AND (at, rank, event) > (?, ?, ?) ORDER BY at, rank, event",
        (found[0], *after),
    )
    taken: list[JobEventRow] = []
    size = 0
    for at, rank, event_id, body in rows:
        size += len(body)
        if len(taken) == limit or (taken and size > bytes_max):
            return taken, True
        taken.append(JobEventRow((at, rank, event_id), body))
    return taken, False


def page(store: Store, wanted: Wanted, now: int, limit: int, before: Key | None = None) -> list[Job]:
    """Up to `limit` jobs, newest first, of those that come after `before` in that order.

    The indexes narrow it down and bring them in order; whether a job is wanted is decided by the rules.
    """
    found: list[Job] = []
    last: Key | None = None
    for created_at, job_id, body in heapq.merge(*_sources(store, wanted, now, before), key=_key, reverse=True):
        if (created_at, job_id) == last:  # it came from two sources
            continue
        last = (created_at, job_id)
        job = store.settled(decode_job(body))
        if _fits(job, wanted, now):
            found.append(job)
            if len(found) == limit:
                break
    return found


Row = tuple[int, str, bytes]


def _key(row: Row) -> Key:
    return row[0], row[1]


def _fits(job: Job, wanted: Wanted, now: int) -> bool:
    return (
        (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.status is None or status_at(job, now) == wanted.status)
        and (wanted.correlation_id is None or job.correlation_id == wanted.correlation_id)
        and (wanted.message_id is None or job.message_id == wanted.message_id)
        and _is_allowed(job.queue, wanted.globs)
    )


def _is_allowed(queue: str, globs: tuple[str, ...] | None) -> bool:
    return globs is None or any(glob_matches(glob, queue) for glob in globs)


class _Reader:
    """Makes the queries of one page: the same bounds and order for all."""

    def __init__(self, connection: sqlite3.Connection, wanted: Wanted, before: Key | None) -> None:
        self._connection = connection
        created_at, job_id = min(before or (_FAR, ""), (wanted.until, ""))
        self._bounds = (wanted.since, created_at, created_at, job_id)

    def rows(self, index: str, where: str, *values: object) -> Iterator[Row]:
        """Read as they are needed, so that merging many sources costs what is taken from them. The indexes bring them by the
        millisecond; SQLite sorts those of one millisecond, so that the indexes need not have the long ids in them."""
        return self._connection.execute(
            f"SELECT created_at, job, body FROM jobs INDEXED BY {index} WHERE {where} AND created_at >= ?"  # noqa: S608
            " AND created_at <= ? AND (created_at, job) < (?, ?) ORDER BY created_at DESC, job DESC",
            (*values, *self._bounds),
        )


def _sources(store: Store, wanted: Wanted, now: int, before: Key | None) -> list[Iterator[Row]]:
    reader = _Reader(store.connection, wanted, before)
    tenant = store.tenant_number(wanted.tenant)
    if tenant is None:
        return []
    if wanted.message_id is not None:
        return [reader.rows("jobs_of_message", "tenant = ? AND message = ?", tenant, wanted.message_id)]
    if wanted.correlation_id is not None:
        return [reader.rows("jobs_of_correlation", "tenant = ? AND correlation = ?", tenant, wanted.correlation_id)]
    queues = _queues(store, wanted)
    if wanted.status is not None:
        return _sources_by_status(store, reader, wanted.status, tenant, queues, now)
    if queues is None:
        return [reader.rows("jobs_newest", "tenant = ?", tenant)]
    return [reader.rows("jobs_of_queue", "queue = ?", queue) for queue in queues]


def _sources_by_status(
    store: Store, reader: _Reader, status: JobStatus, tenant: int, queues: Sequence[int] | None, now: int
) -> list[Iterator[Row]]:
    """Those whose row says so, and still does; those whose time has come since their row was written; and those of queues that
    were purged just now, if it is the expired ones that are wanted."""
    still = "status = ? AND (changes_at IS NULL OR changes_at > ?)"
    if queues is None:
        sources = [reader.rows("jobs_of_status", f"tenant = ? AND {still}", tenant, status.value, now)]
    else:
        sources = [
            reader.rows("jobs_of_queue_and_status", f"queue = ? AND {still}", queue, status.value, now) for queue in queues
        ]
    sources.append(reader.rows("jobs_changing", "changes_at <= ? AND tenant = ?", now, tenant))
    if status is JobStatus.EXPIRED:
        of_queue = "queue = ? AND status = ? AND tenant = ?"
        sources += [
            reader.rows("jobs_of_queue_and_status", of_queue, queue, unfinished.value, tenant)
            for queue, _ in store.pending
            for unfinished in UNFINISHED
        ]
    return sources


def _queues(store: Store, wanted: Wanted) -> list[int] | None:
    """The queues to look into; None for all. Where that would be very many, looking at everything is quicker."""
    known = store.queue_numbers(wanted.tenant)
    if wanted.queue is not None:
        return [known[wanted.queue]] if wanted.queue in known and _is_allowed(wanted.queue, wanted.globs) else []
    if wanted.globs is None:
        return None
    fitting = [number for name, number in known.items() if _is_allowed(name, wanted.globs)]
    if fitting and (len(fitting) > _QUEUES_MERGED_MAX or len(fitting) == len(known)):
        return None
    return fitting
