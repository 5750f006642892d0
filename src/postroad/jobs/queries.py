"""Queries of the store: a job by its id, pages of jobs with the newest first, and the events of a job."""

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from postroad.api.jobs import JobStatus
from postroad.jobs.page_merge import Key
from postroad.jobs.rules import UNFINISHED, JobRecord, status_at
from postroad.jobs.store import Store, decode_job
from postroad.kernel.matching import glob_matches

_QUEUES_MERGED_MAX = 200
_FAR = 2**62

EventKey = tuple[int, int, str]  # position of an event: time, rank and id


class JobFilter(NamedTuple):
    """Selects jobs of a tenant. `globs` restricts their queues; None: any queue."""

    tenant: str
    queue: str | None = None
    status: JobStatus | None = None
    since: int = 0
    until: int = _FAR
    correlation_id: str | None = None
    message_id: str | None = None
    group_id: str | None = None
    globs: tuple[str, ...] | None = None


class JobEventRow(NamedTuple):
    key: EventKey
    text: bytes


def find(store: Store, tenant: str, job_id: str, globs: tuple[str, ...] | None = None) -> JobRecord | None:
    found = _numbered(store, tenant, job_id, globs)
    return found[1] if found else None


def known(store: Store, tenant: str, job_ids: Sequence[str]) -> list[str]:
    """The ids that are in the store."""
    number = store.tenant_number(tenant)
    marks = ", ".join("?" * len(job_ids))
    rows = store.connection.execute(f"SELECT job FROM jobs WHERE tenant = ? AND job IN ({marks})", (number, *job_ids))  # noqa: S608
    return [job for (job,) in rows]


def _numbered(store: Store, tenant: str, job_id: str, globs: tuple[str, ...] | None) -> tuple[int, JobRecord] | None:
    where = (store.tenant_number(tenant), job_id)
    row = store.connection.execute("SELECT number, body FROM jobs WHERE tenant = ? AND job = ?", where).fetchone()
    if row is None:
        return None
    job = decode_job(row[1])
    return (row[0], store.with_purges(job)) if _is_allowed(job.queue, globs) else None


def events(
    store: Store, tenant: str, job_id: str, after: EventKey, limit: int, bytes_max: int, globs: tuple[str, ...] | None = None
) -> tuple[list[JobEventRow], bool] | None:
    """Events of a job, oldest first, and whether there are more; None if the job does not exist."""
    found = _numbered(store, tenant, job_id, globs)
    if found is None:
        return None
    rows = store.connection.execute(
        "SELECT at, rank, event, body FROM events WHERE job = ? AND (at, rank, event) > (?, ?, ?) ORDER BY at, rank, event",
        (found[0], *after),
    )
    page_events: list[JobEventRow] = []
    size = 0
    for at, rank, event_id, body in rows:
        size += len(body)
        if len(page_events) == limit or (page_events and size > bytes_max):
            return page_events, True
        page_events.append(JobEventRow((at, rank, event_id), body))
    return page_events, False


def page(store: Store, selected: JobFilter, now: int, limit: int, before: Key | None = None) -> list[JobRecord]:
    """Up to `limit` jobs, newest first, older than `before`.

    The indexes preselect and order the rows; the rules decide whether a job matches.
    """
    found: list[JobRecord] = []
    last: Key | None = None
    for created_at, job_id, body in heapq.merge(*_sources(store, selected, now, before), key=_key, reverse=True):
        if (created_at, job_id) == last:  # returned by two sources
            continue
        last = (created_at, job_id)
        job = store.with_purges(decode_job(body))
        if _matches(job, selected, now):
            found.append(job)
            if len(found) == limit:
                break
    return found


Row = tuple[int, str, bytes]


def _key(row: Row) -> Key:
    return row[0], row[1]


def _matches(job: JobRecord, selected: JobFilter, now: int) -> bool:
    return (
        (selected.queue is None or job.queue == selected.queue)
        and (selected.status is None or status_at(job, now) == selected.status)
        and (selected.correlation_id is None or job.correlation_id == selected.correlation_id)
        and (selected.message_id is None or job.message_id == selected.message_id)
        and (selected.group_id is None or job.group == selected.group_id)
        and _is_allowed(job.queue, selected.globs)
    )


def _is_allowed(queue: str, globs: tuple[str, ...] | None) -> bool:
    return globs is None or any(glob_matches(glob, queue) for glob in globs)


class _Reader:
    """Queries of one page, with common bounds and order."""

    def __init__(self, connection: sqlite3.Connection, selected: JobFilter, before: Key | None) -> None:
        self._connection = connection
        created_at, job_id = min(before or (_FAR, ""), (selected.until, ""))
        self._bounds = (selected.since, created_at, created_at, job_id)

    def rows(self, index: str, where: str, *values: object) -> Iterator[Row]:
        """Rows are read on demand, so that merging many sources costs only the rows used. The indexes order by millisecond, and
        SQLite sorts the rows of one millisecond: the long ids need not be in the indexes."""
        return self._connection.execute(
            f"SELECT created_at, job, body FROM jobs INDEXED BY {index} WHERE {where} AND created_at >= ?"  # noqa: S608
            " AND created_at <= ? AND (created_at, job) < (?, ?) ORDER BY created_at DESC, job DESC",
            (*values, *self._bounds),
        )


def _sources(store: Store, selected: JobFilter, now: int, before: Key | None) -> list[Iterator[Row]]:
    reader = _Reader(store.connection, selected, before)
    tenant = store.tenant_number(selected.tenant)
    if tenant is None:
        return []
    if selected.message_id is not None:
        return [reader.rows("jobs_of_message", "tenant = ? AND message = ?", tenant, selected.message_id)]
    if selected.correlation_id is not None:
        return [reader.rows("jobs_of_correlation", "tenant = ? AND correlation = ?", tenant, selected.correlation_id)]
    if selected.group_id is not None:
        return [reader.rows("jobs_of_group", 'tenant = ? AND "group" = ?', tenant, selected.group_id)]
    queues = _queues(store, selected)
    if selected.status is not None:
        return _sources_by_status(store, reader, selected.status, tenant, queues, now)
    if queues is None:
        return [reader.rows("jobs_newest", "tenant = ?", tenant)]
    return [reader.rows("jobs_of_queue", "queue = ?", queue) for queue in queues]


def _sources_by_status(
    store: Store, reader: _Reader, status: JobStatus, tenant: int, queues: Sequence[int] | None, now: int
) -> list[Iterator[Row]]:
    """Rows with this status that still holds; rows whose status changed by time since they were written; and for `expired` the
    unfinished rows of queues whose purge was not applied to all rows yet."""
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


def _queues(store: Store, selected: JobFilter) -> list[int] | None:
    """Numbers of the queues to query; None for all, which is faster if there are very many."""
    known = store.queue_numbers(selected.tenant)
    if selected.queue is not None:
        return [known[selected.queue]] if selected.queue in known and _is_allowed(selected.queue, selected.globs) else []
    if selected.globs is None:
        return None
    allowed = [number for name, number in known.items() if _is_allowed(name, selected.globs)]
    if allowed and (len(allowed) > _QUEUES_MERGED_MAX or len(allowed) == len(known)):
        return None
    return allowed
