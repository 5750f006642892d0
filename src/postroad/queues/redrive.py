"""Redrive: a task that moves dead letters back to a queue."""

import asyncio

import msgspec

from postroad.api.dead_letters import DeadLetterFilter, RedriveRequest
from postroad.api.queues import QueueNotFound
from postroad.api.tasks import Progress
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.queues import job_events, metrics
from postroad.queues.dead_letters import DeadLetters, StoredDeadLetter
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.outbox import Outbox

REDRIVE = "redrive"
_CHUNK_SIZE = 100


class Redriver:
    def __init__(
        self,
        lifecycle: QueueLifecycle,
        publisher: Publisher,
        dead_letters: DeadLetters,
        tasks: Tasks,
        outbox: Outbox,
        flows: FlowCounters,
    ) -> None:
        self._lifecycle, self._publisher, self._dead_letters = lifecycle, publisher, dead_letters
        self._tasks, self._outbox, self._flows = tasks, outbox, flows

    async def start(self, context: RequestContext, queue: str, request: RedriveRequest) -> tuple[int, TaskRecord | None]:
        """Return the number of matching dead letters and the task that moves them; no task for a dry run.

        Raises QueueNotFound, PreconditionFailed if a redrive of the queue is active.
        """
        record = await self._lifecycle.find(context.tenant, queue)
        if request.to is not None:
            if not context.caller.may_use("queue", request.to):
                raise QueueNotFound(f"there is no queue {request.to[:100]!r}")
            await self._lifecycle.find(context.tenant, request.to)
        count = await self._dead_letters.count(record, request.filter)
        if request.limit is not None:
            count = min(count, request.limit)
        if request.dry_run:
            return count, None
        return count, await self._tasks.start(context, REDRIVE, "queue", queue, request, count)

    async def run(self, task: TaskContext) -> None:
        """Move dead letters in chunks, at the rate of the request, and save the progress after each chunk.

        A message is stored in the queue before its dead letter is deleted. A crash in between repeats the chunk: JetStream
        detects the duplicates for a minute; later, a message may be delivered twice. Dead letters that arrive while the task
        runs are not moved, so a message that fails again does not loop.
        """
        request = msgspec.convert(task.record.wanted, RedriveRequest)
        tenant, queue = task.record.tenant, task.record.target
        record = await self._lifecycle.find(tenant, queue)
        target = await self._lifecycle.find(tenant, request.to) if request.to else record
        progress = task.record.progress
        position, last = max(1, task.record.position), task.record.bound
        if not last:
            last = await self._dead_letters.last_sequence(record)
            await task.save(position, progress, last)
        while position <= last:
            left = None if request.limit is None else request.limit - progress.moved
            if left is not None and left <= 0:
                return
            size = min(_CHUNK_SIZE, request.rate_per_second, left or _CHUNK_SIZE)
            found = await self._dead_letters.page(record, request.filter, limit=size, from_sequence=position)
            chunk = [one for one in found.items if one.sequence <= last]
            moved = await self._move(task.record, record, target, chunk)
            progress = Progress(
                total=progress.total,
                scanned=progress.scanned + found.scanned,
                matched=progress.matched + len(chunk),
                moved=progress.moved + moved,
                failed=progress.failed + len(chunk) - moved,
            )
            if found.next_sequence is None:
                await task.save(last + 1, progress, last)
                return
            position = found.next_sequence
            await task.save(position, progress, last)
            await task.sleep(len(chunk) / request.rate_per_second)

    async def died_again(self, record: TaskRecord) -> int | None:
        """How many of the messages that a redrive moved are dead letters again; None if their queue is gone."""
        request = msgspec.convert(record.wanted, RedriveRequest)
        queue = self._lifecycle.cached(record.tenant, request.to or record.target)
        if queue is None:
            return None
        return await self._dead_letters.count(queue, DeadLetterFilter(redrive=record.id))

    async def _move(self, task: TaskRecord, record: QueueRecord, target: QueueRecord, chunk: list[StoredDeadLetter]) -> int:
        if not chunk:
            return 0
        marked = [(msgspec.structs.replace(one.message, redrive=task.id), f"{task.id}/{one.sequence}") for one in chunk]
        outcomes = await self._publisher.republish(target, marked)
        stored = [one for one, outcome in zip(chunk, outcomes, strict=True) if isinstance(outcome, int)]
        retryable = next((one for one in outcomes if isinstance(one, PostroadError) and one.retryable), None)
        await self._outbox.commit(None, *(job_events.redriven(target, record.name, one.message, task) for one in stored))
        await asyncio.gather(*(self._dead_letters.remove(record, one.sequence) for one in stored))
        metrics.redriven.add(task.tenant, len(stored))
        if stored:
            self._flows.add(task.tenant, f"dead:{record.name}", f"queue:{target.name}", len(stored))
        if retryable is not None:  # JetStream is unavailable or full: the task is resumed from the same position
            raise retryable
        return len(stored)
