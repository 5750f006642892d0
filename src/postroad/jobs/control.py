"""Changes of jobs on request: cancel, run now, retry.

Each is one write to a stream that decides, followed by its event. If the process dies in between, the event follows: of a
cancellation by the reconciler, of the others with the next delivery. A request that is repeated has no further effect.
"""

from dataclasses import dataclass

from postroad.api.jobs import Job, JobEnded, JobInProgress, JobNotFound, JobStatus, PayloadGone
from postroad.api.queues import MessageNotFound
from postroad.governance.audit import Audit
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_message
from postroad.jetstream.protocol import header_lines
from postroad.jobs.event_decoder import millis
from postroad.jobs.rpc import JobResponse
from postroad.jobs.rules import UNFINISHED
from postroad.jobs.service import JobService
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineUnavailable, PostroadError, PreconditionFailed
from postroad.queues import job_events, metrics
from postroad.queues.backend import require_readable
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.consuming import Consumer
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_locator import LocatedMessage, MessageLocator
from postroad.queues.publishing import Publisher
from postroad.queues.records import CancelledMessage, QueueRecord, StoredMessage
from postroad.telemetry.outbox import Outbox

_ATTEMPTS = 3  # a delayed message may become ready while it is cancelled
_SCHEDULE_HEADERS = ("Nats-Schedule-Target", "Nats-Schedule-TTL")


@dataclass(frozen=True, slots=True)
class _Letter:
    """A message outside its queue that can return to it. `id` identifies it, `ended_at` is when its run ended."""

    id: str
    sequence: int
    ended_at: int
    message: StoredMessage


class JobControl:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        service: JobService,
        lifecycle: QueueLifecycle,
        publisher: Publisher,
        consumer: Consumer,
        dead_letters: DeadLetters,
        cancelled: CancelledMessages,
        locator: MessageLocator,
        audit: Audit,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self._connection, self._committers, self._service, self._lifecycle = connection, committers, service, lifecycle
        self._publisher, self._consumer, self._dead_letters, self._cancelled = publisher, consumer, dead_letters, cancelled
        self._locator, self._audit, self._outbox, self._clock = locator, audit, outbox, clock

    async def cancel(self, context: RequestContext, job_id: str, reason: str | None) -> Job:
        """Take the message of an unfinished job out of its queue: no delivery begins any more.

        A worker that has the message learns of it when it extends its lease or reports progress. If it acknowledges before, the
        job is done. Raises JobNotFound, JobEnded, BackendCannot, EngineUnavailable, Overloaded.
        """
        found = await self._service.locate(context.caller, job_id)
        job = found.job
        if job.status is JobStatus.CANCELLED:
            return job
        if job.status not in UNFINISHED:
            raise JobEnded(f"the job is {job.status.value}")
        record = await self._lifecycle.find(context.tenant, job.queue)
        async with self._audit.change(context, "job.cancel", job_id, before={"queue": job.queue, "status": job.status.value}):
            message, letter = await self._take_out(record, found, reason)
        await self._outbox.commit(context, job_events.cancelled(record, message, letter))
        metrics.cancelled.add(context.tenant)
        return await self._service.find(context.caller, job_id)

    async def _take_out(
        self, record: QueueRecord, found: JobResponse, reason: str | None
    ) -> tuple[StoredMessage, CancelledMessage]:
        """Store the message with the cancelled ones, then delete it from its queue: a crash in between only repeats it."""
        job = found.job
        lease_until = millis(job.lease_until) if job.lease_until else 0
        for _ in range(_ATTEMPTS):
            located = await self._locator.find(record, job.message_id, found.sequence, found.ready_at_ms)
            if located is None:
                return await self._taken_out(record, found)
            message, sequence = located.message, located.entry.sequence
            letter = await self._cancelled.store(
                record, message, sequence, attempts=job.attempts, lease_until=lease_until, reason=reason
            )
            if await self._consumer.delete(record, located.entry, job.attempts):
                return message, letter
            stored = await self._cancelled.find(record, message.id)
            if stored is not None:
                await self._cancelled.remove(record, stored.sequence)
        raise EngineUnavailable("the message changes its place in the queue; repeat the request", retry_after=1)

    async def _taken_out(self, record: QueueRecord, found: JobResponse) -> tuple[StoredMessage, CancelledMessage]:
        """The message, if a process took it out and died before it stored the event. Raises JobEnded, BackendCannot."""
        stored = await self._cancelled.find(record, found.job.message_id)
        if stored is None or stored.letter.cancelled_at < found.begun_at_ms:
            require_readable(record)
            raise JobEnded("the message of the job has just left its queue")
        return stored.message, stored.letter

    async def run_now(self, context: RequestContext, job_id: str) -> Job:
        """Make a delayed or retrying job ready. A job that is ready already stays as it is.

        Raises JobNotFound, JobEnded, JobInProgress, BackendCannot, EngineUnavailable, Overloaded.
        """
        found = await self._service.locate(context.caller, job_id)
        job, now = found.job, self._clock()
        if job.status is JobStatus.LEASED:
            raise JobInProgress(f"a worker has the job until {job.lease_until}")
        if job.status not in UNFINISHED:
            raise JobEnded(f"the job is {job.status.value}; a dead or cancelled job can be retried")
        if job.due_at is None or millis(job.due_at) <= now:
            return job
        record = await self._lifecycle.find(context.tenant, job.queue)
        async with self._audit.change(context, "job.run", job_id, before={"queue": job.queue, "dueAt": job.due_at}):
            located = await self._locator.find(record, job.message_id, found.sequence, found.ready_at_ms)
            if located is None:
                require_readable(record)
                raise JobEnded("the message of the job has just left its queue")
            sequence = located.entry.sequence
            if located.is_delayed:
                sequence = await self._reschedule(record, located, now)
            elif job.status is JobStatus.RETRYING:
                await self._consumer.redeliver_now(record, located.entry, job.attempts)
        await self._outbox.commit(context, job_events.promoted(record, located.message, job.attempts, sequence, now))
        metrics.promoted.add(context.tenant)
        return await self._service.find(context.caller, job_id)

    async def _reschedule(self, record: QueueRecord, located: LocatedMessage, now: int) -> int:
        """Replace the delayed message by one that is due. Returns the sequence to look for it at; 0 if it is ready already."""
        entry = located.entry
        headers = [("Nats-Schedule", f"@at {rfc3339(now)}"), ("Nats-Expected-Last-Subject-Sequence", str(entry.sequence))]
        headers += [(name, entry.headers[name]) for name in _SCHEDULE_HEADERS if name in entry.headers]
        write = PendingMessage(
            entry.subject, entry.payload, f"{located.message.id}/{entry.sequence}/run", header_lines(headers), is_conditional=True
        )
        try:
            return (await self._committers.of(record.stream).append(write, uses_reserve=True)).sequence
        except Conflict:
            return 0

    async def retry(self, context: RequestContext, job_id: str) -> Job:
        """Bring a dead or cancelled job back to its queue. Its attempts start at 1 again.

        Raises JobNotFound, PayloadGone, PreconditionFailed, JobInProgress, QueueNotFound, EngineFull, EngineUnavailable.
        """
        job = await self._service.find(context.caller, job_id)
        if job.status in UNFINISHED:
            raise PreconditionFailed(f"the job is {job.status.value}: only a dead or cancelled job can be retried")
        record = await self._lifecycle.find(context.tenant, job.queue)
        letter = await self._letter(record, job)
        async with self._audit.change(context, "job.retry", job_id, before={"queue": job.queue, "status": job.status.value}):
            at = max(self._clock(), letter.ended_at + 1)
            [outcome] = await self._publisher.republish(record, [(letter.message, letter.id)])
            if isinstance(outcome, PostroadError):
                raise outcome
            await self._outbox.commit(context, job_events.retried_by_request(record, letter.message, letter.id, at, outcome))
            await delete_message(self._connection, record.dead_stream, letter.sequence)
        metrics.redriven.add(context.tenant)
        try:
            return await self._service.find(context.caller, job_id)
        except JobNotFound:  # the audit mode is off
            return job

    async def _letter(self, record: QueueRecord, job: Job) -> _Letter:
        if job.status is JobStatus.DEAD:
            try:
                dead = await self._dead_letters.find(record, job.message_id)
            except MessageNotFound as exc:
                raise PayloadGone("the dead letter was deleted or redriven") from exc
            return _Letter(f"{record.incarnation}/retry/{dead.sequence}", dead.sequence, dead.letter.dead_at, dead.message)
        if job.status is not JobStatus.CANCELLED:
            raise PayloadGone(f"the job is {job.status.value}, and its payload was deleted with its message")
        found = await self._cancelled.find(record, job.message_id)
        if found is None:
            raise PayloadGone("the job was cancelled too long ago, or its queue was deleted since")
        if found.letter.lease_until > self._clock():
            raise JobInProgress(f"a worker may have the cancelled message until {rfc3339(found.letter.lease_until)}")
        return _Letter(f"{record.incarnation}/retry/{found.sequence}", found.sequence, found.letter.cancelled_at, found.message)
