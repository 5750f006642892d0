"""The job index: a SQLite file that can be rebuilt from `JOBS` at any time.

Synchronous, for one thread. A job is one row: its encoded state, and the columns that it is looked up by. `status` is the status
when the row was written, `changes_at` the time when it changes. `sweep` updates the rows whose time has come; queries handle the
few that it has not reached yet.
"""

import bisect
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from postroad.jobs.event_decoder import Batch, EventLine
from postroad.jobs.rules import UNFINISHED, JobRecord, Purge, ended_at, expiry_of, fold, status_until, with_purge

SCHEMA_VERSION = 3  # of the tables and of the encoded job
_LOAD_SIZES = (8, 64, 500)

_SCHEMA = """
CREATE TABLE about (
    one INTEGER PRIMARY KEY CHECK (one = 1), stream TEXT NOT NULL, position INTEGER NOT NULL, next_number INTEGER NOT NULL,
    is_complete INTEGER NOT NULL
);
CREATE TABLE tenants (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE queues (id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE (tenant, name));
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, job TEXT NOT NULL, queue INTEGER NOT NULL, message TEXT NOT NULL,
    correlation TEXT, status TEXT NOT NULL, created_at INTEGER NOT NULL, begun_at INTEGER NOT NULL, changes_at INTEGER,
    body BLOB NOT NULL, "group" TEXT
);
CREATE UNIQUE INDEX jobs_by_id ON jobs (tenant, job);
CREATE INDEX jobs_newest ON jobs (tenant, created_at);
CREATE INDEX jobs_of_queue ON jobs (queue, created_at);
CREATE INDEX jobs_of_status ON jobs (tenant, status, created_at);
CREATE INDEX jobs_of_queue_and_status ON jobs (queue, status, created_at);
CREATE INDEX jobs_of_correlation ON jobs (tenant, correlation, created_at) WHERE correlation IS NOT NULL;
CREATE INDEX jobs_of_group ON jobs (tenant, "group", created_at) WHERE "group" IS NOT NULL;
CREATE INDEX jobs_of_message ON jobs (tenant, message);
CREATE INDEX jobs_changing ON jobs (changes_at) WHERE changes_at IS NOT NULL;
CREATE TABLE events (
    job INTEGER NOT NULL, at INTEGER NOT NULL, rank INTEGER NOT NULL, event TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (job, at, rank, event)
) WITHOUT ROWID;
CREATE TABLE purges (
    queue INTEGER NOT NULL, at INTEGER NOT NULL, why TEXT NOT NULL, is_pending INTEGER NOT NULL, PRIMARY KEY (queue, at, why)
) WITHOUT ROWID;
"""

_INSERT = """INSERT INTO jobs
(tenant, job, queue, message, correlation, "group", status, created_at, begun_at, changes_at, body, number)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_UPDATE = "UPDATE jobs SET status = ?, changes_at = ?, body = ? WHERE number = ?"
_MOVE = """UPDATE jobs SET tenant = ?, job = ?, queue = ?, message = ?, correlation = ?, "group" = ?, status = ?, created_at = ?,
begun_at = ?, changes_at = ?, body = ? WHERE number = ?"""
_PURGED = f"""SELECT number, body FROM jobs INDEXED BY jobs_of_queue_and_status
WHERE queue = ? AND status IN ({", ".join(f"'{status}'" for status in UNFINISHED)}) AND created_at < ? AND begun_at < ?
LIMIT ?"""  # noqa: S608  # constants

_encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(JobRecord).decode


class ConcurrentWriter(Exception):
    """Another process has written to the file. Open it again."""


class InvalidStoreFile(Exception):
    """Not a complete file of this version and this stream."""


class Store:
    """One open file. Raises sqlite3.Error if the disk or the file fails."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        self.pending: list[tuple[int, Purge]] = []  # purges that were not applied to all rows of the queue yet
        self._purges: dict[int, list[Purge]] = defaultdict(list)
        self.position, self._next_number = self._about()
        self.complete_since = self._complete_since()
        self._tenants: dict[str, int] = {name: number for number, name in connection.execute("SELECT id, name FROM tenants")}
        self._queues: dict[int, dict[str, int]] = defaultdict(dict)
        for number, tenant, name in connection.execute("SELECT id, tenant, name FROM queues"):
            self._queues[tenant][name] = number
        for queue, at, why, is_pending in connection.execute("SELECT queue, at, why, is_pending FROM purges ORDER BY at, why"):
            self._purges[queue].append(Purge(at, why))
            if is_pending:
                self.pending.append((queue, Purge(at, why)))

    def close(self) -> None:
        self.connection.close()

    def _about(self) -> tuple[int, int]:
        position, next_number = self.connection.execute("SELECT position, next_number FROM about").fetchone()
        return position, next_number

    def _complete_since(self) -> int:
        connection = self.connection  # the table was added without a new schema version
        connection.execute("CREATE TABLE IF NOT EXISTS gaps (one INTEGER PRIMARY KEY CHECK (one = 1), until INTEGER NOT NULL)")
        found = connection.execute("SELECT until FROM gaps").fetchone()
        return int(found[0]) if found else 0

    def note_gap(self, until: int) -> None:
        """Record that events before `until` were removed from `JOBS` before they were read: jobs of that time may be missing."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO gaps VALUES (1, ?)", (until,))
        self.complete_since = until

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its beginning."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    # Tenants and queues have numbers in the file

    def tenant_number(self, tenant: str) -> int | None:
        return self._tenants.get(tenant)

    def queue_numbers(self, tenant: str) -> dict[str, int]:
        return self._queues.get(self._tenants.get(tenant, 0), {})

    def _numbers_of(self, tenant: str, queue: str) -> tuple[int, int]:
        """Numbers of the tenant and the queue; new ones are assigned."""
        number = self._tenants.get(tenant)
        if number is None:
            number = self._tenants[tenant] = len(self._tenants) + 1
            self.connection.execute("INSERT INTO tenants VALUES (?, ?)", (number, tenant))
        queues = self._queues[number]
        queue_number = queues.get(queue)
        if queue_number is None:
            added = self.connection.execute("INSERT INTO queues (tenant, name) VALUES (?, ?)", (number, queue))
            queue_number = queues[queue] = added.lastrowid or 0
        return number, queue_number

    # Applying frames

    def apply(self, batch: Batch, now: int) -> None:
        """Apply a batch and its position in one transaction. Raises ConcurrentWriter if the file has another position."""
        try:
            with self._transaction() as connection:
                if self._about() != (self.position, self._next_number):
                    raise ConcurrentWriter
                self._note_purges(batch)
                numbers = self._write_jobs(batch, now)
                connection.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", _event_rows(batch.lines, numbers))
                position = max(batch.last, self.position)
                connection.execute("UPDATE about SET position = ?, next_number = ?", (position, self._next_number))
        except BaseException:
            self.position = -1  # memory may be ahead of the file: a new Store is needed
            raise
        self.position = position

    def _note_purges(self, batch: Batch) -> None:
        for tenant, queue, purge in batch.purges:
            _, number = self._numbers_of(tenant, queue)
            if purge not in self._purges[number]:
                bisect.insort(self._purges[number], purge)
                self.pending.append((number, purge))
                self.connection.execute("INSERT INTO purges VALUES (?, ?, ?, 1)", (number, *purge))

    def with_purges(self, job: JobRecord) -> JobRecord:
        """The job, with the purges of its queue applied."""
        if not self._purges:
            return job
        number = self.queue_numbers(job.tenant).get(job.queue, 0)
        known = self._purges.get(number)
        if not known:
            return job
        index = bisect.bisect_right(known, job.begun_at, key=lambda purge: purge.at)
        return with_purge(job, known[index] if index < len(known) else None)

    def _write_jobs(self, batch: Batch, now: int) -> dict[tuple[str, str], int]:
        """Write each job once, even with many events in the batch. Returns the numbers of the jobs."""
        wanted = list({(one.tenant, one.job_id) for one in batch.transitions})
        stored = self._load(wanted)
        jobs: dict[tuple[str, str], JobRecord] = {key: job for key, (_, job) in stored.items()}
        for transition in batch.transitions:
            key = (transition.tenant, transition.job_id)
            jobs[key] = fold(jobs.get(key), transition)
        numbers: dict[tuple[str, str], int] = {}
        new: list[tuple[object, ...]] = []
        moved: list[tuple[object, ...]] = []
        changed: list[tuple[object, ...]] = []
        for key, job in jobs.items():
            job = self.with_purges(job)
            number, before = stored.get(key, (self._next_number, None))
            numbers[key] = number
            if before is None:
                self._next_number += 1
                new.append(self._row(job, now, number))
            elif before == job:
                continue
            elif _lookup_columns(before) == _lookup_columns(job):  # nearly always: then most indexes need not be touched
                changed.append((*status_until(job, now), _encode(job), number))
            else:
                moved.append(self._row(job, now, number))
        self.connection.executemany(_INSERT, new)
        self.connection.executemany(_UPDATE, changed)
        self.connection.executemany(_MOVE, moved)
        return numbers

    def _load(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, JobRecord]]:
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for tenant, job_id in keys:
            by_tenant[tenant].append(job_id)
        found: dict[tuple[str, str], tuple[int, JobRecord]] = {}
        for tenant, ids in by_tenant.items():
            tenant_number = self._tenants.get(tenant)
            if tenant_number is None:
                continue
            for start in range(0, len(ids), _LOAD_SIZES[-1]):
                some = ids[start : start + _LOAD_SIZES[-1]]
                places = next(
                    size for size in _LOAD_SIZES if size >= len(some)
                )  # few different statements, so that they stay prepared
                rows = self.connection.execute(_LOADS[places], (tenant_number, *some, *[""] * (places - len(some))))
                found.update({(tenant, job_id): (number, decode_job(body)) for number, job_id, body in rows})
        return found

    def _row(self, job: JobRecord, now: int, number: int) -> tuple[object, ...]:
        tenant, queue = self._numbers_of(job.tenant, job.queue)
        status, changes_at = status_until(job, now)
        return (
            tenant,
            job.job_id,
            queue,
            job.message_id,
            job.correlation_id,
            job.group or None,
            status,
            job.created_at,
            job.begun_at,
            changes_at,
            _encode(job),
            number,
        )

    # Changes over time

    def sweep(self, now: int, limit: int) -> int:
        """Update up to `limit` rows whose status has changed by time. Returns their number; fewer than `limit`: none are left."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT number, body FROM jobs INDEXED BY jobs_changing WHERE changes_at <= ? LIMIT ?", (now, limit)
            ).fetchall()
            if not rows and self.pending:
                rows = self._purged_rows(*self.pending[0], limit)
                if len(rows) < limit:
                    queue, purge = self.pending.pop(0)
                    connection.execute("UPDATE purges SET is_pending = 0 WHERE (queue, at, why) = (?, ?, ?)", (queue, *purge))
            self._rewrite(rows, now)
        return limit if self.pending else len(rows)

    def expiring(self, now: int, limit: int) -> list[JobRecord]:
        """Jobs that expired since the last sweep, among the rows that the next sweep updates."""
        rows = self.connection.execute(
            "SELECT body FROM jobs INDEXED BY jobs_changing WHERE changes_at <= ? LIMIT ?", (now, limit)
        )
        jobs = [self.with_purges(decode_job(body)) for (body,) in rows]
        return [job for job in jobs if expiry_of(job, now)]

    def _purged_rows(self, queue: int, purge: Purge, limit: int) -> list[tuple[int, bytes]]:
        """Rows that the purge was not applied to yet."""
        return self.connection.execute(_PURGED, (queue, purge.at, purge.at, limit)).fetchall()

    def _rewrite(self, rows: Iterable[tuple[int, bytes]], now: int) -> None:
        changed: list[tuple[object, ...]] = []
        for number, body in rows:
            job = self.with_purges(decode_job(body))
            changed.append((*status_until(job, now), _encode(job), number))
        self.connection.executemany(_UPDATE, changed)

    def prune(self, now: int, older_than: int, after: int, limit: int) -> tuple[int, int | None]:
        """Delete the jobs that ended before `older_than`, among up to `limit` jobs beyond the number `after`.

        Returns the number of deleted jobs, and the number to continue from; None when all following jobs are too young.
        """
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT number, created_at, body FROM jobs WHERE number > ? ORDER BY number LIMIT ?", (after, limit)
            ).fetchall()
            old = [(number,) for number, _, body in rows if (ended_at(decode_job(body), now) or older_than) < older_than]
            connection.executemany("DELETE FROM jobs WHERE number = ?", old)
            connection.executemany("DELETE FROM events WHERE job = ?", old)
            if len(rows) < limit or rows[-1][1] >= older_than:
                connection.execute("DELETE FROM purges WHERE at < ? AND NOT is_pending", (older_than,))
                return len(old), None
        return len(old), rows[-1][0]

    def complete(self) -> None:
        """Mark the file as complete: from now on `open_store` accepts it."""
        with self._transaction() as connection:
            connection.execute("UPDATE about SET is_complete = 1")


def _lookup_columns(job: JobRecord) -> tuple[object, ...]:
    """The columns that a job is looked up by, apart from its status."""
    return job.queue, job.message_id, job.correlation_id, job.group, job.created_at, job.begun_at


def _event_rows(lines: Iterable[EventLine], numbers: dict[tuple[str, str], int]) -> Iterator[tuple[object, ...]]:
    for transition, event_id, text in lines:
        yield numbers[transition.tenant, transition.job_id], transition.step.at, transition.step.rank, event_id, text


_LOADS = {
    places: f"SELECT number, job, body FROM jobs WHERE tenant = ? AND job IN ({', '.join('?' * places)})"  # noqa: S608
    for places in _LOAD_SIZES
}


# Files


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=2.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def make_store(path: Path, stream: str, position: int = 0, *, is_complete: bool = True) -> Store:
    """Create a file for the stream with this creation time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    connection = _connect(path)
    connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    connection.execute("INSERT INTO about VALUES (1, ?, ?, 1, ?)", (stream, position, int(is_complete)))
    return Store(path, connection)


def open_store(path: Path, stream: str) -> Store:
    """Open a file. Raises InvalidStoreFile."""
    connection = None
    try:
        connection = _connect(path)
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise InvalidStoreFile(f"schema {version}, not {SCHEMA_VERSION}")
        found = connection.execute("SELECT stream, is_complete FROM about").fetchone()
        if found is None or not found[1]:
            raise InvalidStoreFile("incomplete")
        if found[0] != stream:
            raise InvalidStoreFile("belongs to another stream")
        return Store(path, connection)
    except sqlite3.OperationalError as problem:
        if connection is not None:
            connection.close()
        if problem.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN):
            raise
        raise InvalidStoreFile(str(problem)) from problem
    except (sqlite3.DatabaseError, InvalidStoreFile) as problem:
        if connection is not None:
            connection.close()
        raise InvalidStoreFile(str(problem)) from problem


def files_in(folder: Path) -> list[Path]:
    """Newest first. A name is never used twice, so that a process with an old file open does no harm."""
    return sorted(folder.glob("*.sqlite"), key=lambda path: (len(path.name), path.name), reverse=True)


def fresh_path(folder: Path, now: int) -> Path:
    newest = max((int(path.stem) for path in files_in(folder) if path.stem.isdecimal()), default=0)
    return folder / f"{max(now, newest + 1)}.sqlite"


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
