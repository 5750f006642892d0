"""Ends jobs whose message has left its queue although no event says so.

A worker can die after the engine removed a message and before the event was stored. The message then shows what happened: it is
among the dead letters, or the cancelled messages; or its queue does not exist any more; or the queue was purged, according to the
audit log; else it was acknowledged, because a message leaves a queue in no other way (an expiry is computed from the job itself).

A message has no subject of its own, and the job does not know its sequence. But the job bounds the time when the message was
stored, so the search reads this part of the stream only. Of a healthy queue it reads one page: the oldest unfinished jobs are
those of the oldest messages. The messages of another backend cannot be searched: their jobs are ended by what is stored about
them in the engine, such as the marker of an acknowledgement. A job is ended if two searches in succession miss its message, and
the job did not change meanwhile.
"""

from collections.abc import Sequence

import structlog

from postroad.api.governance import AuditMode
from postroad.api.queues import MessageNotFound
from postroad.governance.audit import Audit, AuditFilter
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import has_current_replicas
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.jobs import metrics
from postroad.jobs.event_decoder import millis
from postroad.jobs.projection import Projection
from postroad.jobs.rules import JobRecord
from postroad.jobs.unfinished import BEGINNING, JobKey, UnfinishedJobs, unfinished
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.names import escape
from postroad.queues import job_events
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.events import JobEvent, QueuePurged
from postroad.queues.records import ACK_MARK, QueueRecord, read_message
from postroad.telemetry.outbox import Outbox

GRACE_MS = 60_000  # since the last event of a job: by then the events of its last operation are stored
SKEW_MS = 60_000  # between the time of an event and the engine's time of the message, with the duration of a publish
_FAR_MS = 2**62
_QUEUES_MAX = 200  # per query of the index: milliseconds
_QUERIES_MAX = 20  # per round; the next round continues
_JOBS_MAX = 200  # of a queue per round
_PAGES_MAX = 20  # of a stream per round and queue
_PAGE_BYTES = 1024 * 1024
_PAGE_SIZE = 500
_CATCH_UP_SECONDS = 5.0

log = structlog.get_logger("postroad.jobs")


def stored_between(job: JobRecord) -> tuple[int, int]:
    """The interval of time in which the engine stored the message of the job's current run."""
    step = job.step
    begun_at = max(job.begun_at, step.due_at if step.rank == 0 else 0)
    if step.rank > 0:  # it has been delivered since
        return begun_at - SKEW_MS, max(step.at, begun_at) + SKEW_MS
    # The time of a redrive is that of its task's progress: the message may have been stored much later.
    return begun_at - SKEW_MS, _FAR_MS if job.redriven_at else begun_at + SKEW_MS


class JobReconciler:
    """Call `run_once` periodically in the process that has the job index. Two leaders at the same time do no harm."""

    def __init__(
        self,
        connection: Connection,
        projection: Projection,
        queues: ReplicatedTable[QueueRecord],
        dead_letters: DeadLetters,
        cancelled: CancelledMessages,
        audit: Audit,
        tenant_settings: TenantSettingsStore,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self._connection, self._projection, self._queues = connection, projection, queues
        self._dead_letters, self._cancelled = dead_letters, cancelled
        self._audit, self._tenant_settings = audit, tenant_settings
        self._outbox, self._clock = outbox, clock
        self._after = 0
        self._positions: dict[int, JobKey] = {}
        self._missing: dict[int, dict[str, JobRecord]] = {}  # jobs by queue whose message the previous search missed

    async def run_once(self) -> int:
        """Check the unfinished jobs of some queues; return how many jobs were ended. Raises EngineUnavailable, EngineRefused."""
        if not self._projection.is_loaded:
            return 0
        target = (await self._projection.progress()).target
        if not await self._projection.wait_for(target, _CATCH_UP_SECONDS):
            return 0
        ended = 0
        for _ in range(_QUERIES_MAX):
            now = self._clock()
            page = await self._projection.read(
                unfinished,
                now,
                now - GRACE_MS,
                after=self._after,
                queues_max=_QUEUES_MAX,
                jobs_max=_JOBS_MAX,
                positions=self._positions,
            )
            for found in page.queues:
                if self._tenant_settings.of(found.tenant).audit_mode is not AuditMode.OFF:  # else events are not stored
                    ended += await self._reconcile(found)
            self._after = page.after or 0
            if page.after is None:
                break
        return ended

    async def _reconcile(self, found: UnfinishedJobs) -> int:
        record = await self._queues.fetch(f"{found.tenant}.{escape(found.queue)}")
        if record is not None and record.state is not RecordState.READY:
            return 0
        # Jobs from before the queue was created belong to a deleted queue of the same name.
        exists_since = _FAR_MS if record is None else record.created_at_ms - SKEW_MS
        deleted = [job for job in found.jobs if job.begun_at < exists_since]
        missing = [] if record is None else await self._search(record, [job for job in found.jobs if job not in deleted])
        before = self._missing.pop(found.number, {})
        confirmed = [job for job in (*deleted, *missing) if before.get(job.job_id) == job]
        unconfirmed = {job.job_id: job for job in (*deleted, *missing) if job not in confirmed}
        if unconfirmed:
            self._missing[found.number] = unconfirmed
        else:
            self._advance(found)
        if confirmed:
            await self._end(found, record, confirmed, exists_since)
        return len(confirmed)

    def _advance(self, found: UnfinishedJobs) -> None:
        self._positions.pop(found.number, None)
        if found.following != BEGINNING:
            self._positions[found.number] = found.following

    async def _search(self, record: QueueRecord, jobs: Sequence[JobRecord]) -> list[JobRecord]:
        """The jobs whose messages are certainly not in the queue."""
        if not jobs or not await has_current_replicas(self._connection, record.stream):
            return []
        if not record.is_readable:
            purged_at = await self._purged_at(record, min(job.begun_at for job in jobs))
            return [job for job in jobs if await self._has_left(record, job, purged_at)]
        missing = list(jobs)
        for subject in record.deferred_subjects:  # first: from there a message may become ready meanwhile, at any time
            missing = await self._search_subject(record, subject, missing) if missing else []
        for subject in record.ready_subjects:
            missing = await self._search_subject(record, subject, missing) if missing else []
        return [job for job in missing if not await self._is_stored(record, job)]

    async def _search_subject(self, record: QueueRecord, subject: str, jobs: Sequence[JobRecord]) -> list[JobRecord]:
        wanted = {job.message_id: job for job in jobs}
        searched_until = 0
        is_late = record.has_deferred and subject in record.ready_subjects

        def ends(job: JobRecord) -> int:
            return _FAR_MS if is_late else stored_between(job)[1]

        page = await stream_reader.read_since(
            self._connection, record.stream, subject, min(stored_between(job)[0] for job in jobs), 1
        )
        for _ in range(_PAGES_MAX):
            for entry in page.entries:
                wanted.pop(_message_id(entry), None)
                searched_until = entry.at_ms
            if page.is_end:
                searched_until = _FAR_MS
            if all(ends(job) <= searched_until for job in wanted.values()):
                break
            page = await stream_reader.read(self._connection, record.stream, subject, page.next_sequence, _PAGE_SIZE, _PAGE_BYTES)
        return [job for job in wanted.values() if ends(job) <= searched_until]

    async def _is_stored(self, record: QueueRecord, job: JobRecord) -> bool:
        """True if the engine has not made the message ready yet, or it is at the last known position."""
        if await stream_reader.last(self._connection, record.stream, f"{record.subject}.later.{job.message_id}") is not None:
            return True
        entry = await stream_reader.at(self._connection, record.stream, job.located.sequence) if job.located else None
        return entry is not None and _message_id(entry) == job.message_id

    async def _has_left(self, record: QueueRecord, job: JobRecord, purged_at: int) -> bool:
        """True if it is known how the message left a queue that cannot be searched."""
        if await self._known_end(record, job, purged_at) is not None:
            return True
        if not job.located:
            return False
        subject = record.ack_marker_subject(job.located.sequence, "*")
        marker = await stream_reader.last(self._connection, record.stream, subject)
        return marker is not None and marker.payload == ACK_MARK

    async def _end(self, found: UnfinishedJobs, record: QueueRecord | None, jobs: Sequence[JobRecord], exists_since: int) -> None:
        """Store the events that are missing."""
        events: list[JobEvent | QueuePurged] = []
        deleted = [job.begun_at for job in jobs if job.begun_at < exists_since]
        if deleted:
            at = min(max(deleted) + 1, exists_since)
            events.append(_purged(found, at, is_deleted=True))
        if record is not None:
            purged_at = await self._purged_at(record, min(job.begun_at for job in jobs))
            events += [await self._event(record, job, purged_at) for job in jobs if job.begun_at >= exists_since]
        await self._outbox.commit(None, *dict.fromkeys(events))
        metrics.reconciled.inc(len(jobs))
        log.warning("jobs_reconciled", tenant=found.tenant, queue=found.queue, jobs=len(jobs), first=jobs[0].job_id)

    async def _event(self, record: QueueRecord, job: JobRecord, purged_at: int) -> JobEvent | QueuePurged:
        known = await self._known_end(record, job, purged_at)
        return known or job_events.reconciled(record, job.job_id, job.message_id, job.step.attempt, self._clock())

    async def _known_end(self, record: QueueRecord, job: JobRecord, purged_at: int) -> JobEvent | QueuePurged | None:
        """The end of a job whose message was dead-lettered, cancelled or purged."""
        try:
            dead = await self._dead_letters.find(record, job.message_id)
        except MessageNotFound:
            dead = None
        if dead is not None and dead.letter.dead_at >= job.begun_at:
            return job_events.dead(record, dead.message, dead.letter)
        cancelled = await self._cancelled.find(record, job.message_id)
        if cancelled is not None and cancelled.letter.cancelled_at >= job.begun_at:
            return job_events.cancelled(record, cancelled.message, cancelled.letter)
        if purged_at > job.begun_at:
            return QueuePurged(tenant=job.tenant, timestamp=rfc3339(purged_at), queue=job.queue, count=0)
        return None

    async def _purged_at(self, record: QueueRecord, since: int) -> int:
        """Time of the last purge since then, according to the audit log; 0 if there was none."""
        wanted = AuditFilter(since=rfc3339(since), action="queue.purge", target=record.name)
        found = await self._audit.page(record.tenant, wanted, limit=1, before=None)
        return millis(found.entries[0].at) if found.entries else 0


def _purged(found: UnfinishedJobs, at: int, *, is_deleted: bool) -> QueuePurged:
    return QueuePurged(tenant=found.tenant, timestamp=rfc3339(at), queue=found.queue, count=0, is_deleted=is_deleted)


def _message_id(entry: Entry) -> str:
    try:
        return read_message(entry.payload).id
    except ValueError:
        return ""
