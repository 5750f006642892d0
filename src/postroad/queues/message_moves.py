"""Moves: a task that consumes a queue and publishes its messages to another one, or each to the queue that it comes from."""

from collections.abc import Sequence

import msgspec

from postroad.api.dead_letters import MoveRequest
from postroad.api.queues import QueueNotFound
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.queues import job_events, metrics
from postroad.queues.consuming import Consumer
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord, StoredMessage
from postroad.queues.stats import QueueStatsReader
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks
from postroad.telemetry.outbox import Outbox

MOVE = "move"
_CHUNK_SIZE = 100
_LEASE_MS = 30_000

Leased = tuple[StoredMessage, str]  # and its receipt


class MessageMover:
    def __init__(
        self,
        lifecycle: QueueLifecycle,
        publisher: Publisher,
        consumer: Consumer,
        stats: QueueStatsReader,
        tasks: Tasks,
        outbox: Outbox,
    ) -> None:
        self._lifecycle, self._publisher, self._consumer, self._stats = lifecycle, publisher, consumer, stats
        self._tasks, self._outbox = tasks, outbox

    async def start(self, context: RequestContext, queue: str, request: MoveRequest) -> TaskRecord:
        """Raises QueueNotFound, and PreconditionFailed if a move of the queue is active."""
        record = await self._lifecycle.find(context.tenant, queue)
        if request.to is not None:
            if not context.caller.may_use("queue", request.to):
                raise QueueNotFound(f"there is no queue {request.to[:100]!r}")
            await self._lifecycle.find(context.tenant, request.to)
        stats = await self._stats.stats(record, is_fresh=True)
        return await self._tasks.start(context, MOVE, "queue", queue, request, stats.ready)

    async def run(self, task: TaskContext) -> None:
        """Move as many messages as were ready at the start, at the rate of the request.

        A message is stored in its new queue before it is acknowledged. A crash in between repeats it: JetStream detects the
        duplicate for a minute; later, a message may be delivered twice. A message whose queue does not exist stays.
        """
        request = msgspec.convert(task.record.wanted, MoveRequest)
        tenant, queue = task.record.tenant, task.record.target
        context = RequestContext(Caller(tenant, task.record.created_by, frozenset(ALL_SCOPES)), task.record.request_id)
        progress = task.record.progress
        size = min(_CHUNK_SIZE, request.rate_per_second)
        while progress.moved + progress.failed < progress.total:
            count = min(size, progress.total - progress.moved - progress.failed)
            chunk = await self._consumer.pull_as(_leased, context, queue, count=count, visibility_timeout_ms=_LEASE_MS, wait_ms=0)
            if not chunk:
                return
            moved = await self._move(task.record, context, chunk, request.to)
            progress = msgspec.structs.replace(
                progress,
                scanned=progress.scanned + len(chunk),
                matched=progress.matched + len(chunk),
                moved=progress.moved + moved,
                failed=progress.failed + len(chunk) - moved,
            )
            await task.save(progress.scanned, progress)
            await task.sleep(len(chunk) / request.rate_per_second)

    async def _move(self, task: TaskRecord, context: RequestContext, chunk: Sequence[Leased], to: str | None) -> int:
        by_queue: dict[str, list[Leased]] = {}
        for message, receipt in chunk:
            target = to or (message.dead.queue if message.dead is not None else "")
            by_queue.setdefault(target, []).append((message, receipt))
        moved = 0
        for name, some in by_queue.items():
            target_record = self._lifecycle.cached(task.tenant, name) if name else None
            if target_record is not None:
                moved += await self._publish(task, context, target_record, some)
        return moved

    async def _publish(self, task: TaskRecord, context: RequestContext, target: QueueRecord, some: Sequence[Leased]) -> int:
        outcomes = await self._publisher.republish(target, [(one, f"{task.id}/{one.id}") for one, _ in some])
        stored = [one for one, outcome in zip(some, outcomes, strict=True) if isinstance(outcome, int)]
        retryable = next((one for one in outcomes if isinstance(one, PostroadError) and one.retryable), None)
        await self._outbox.commit(None, *(job_events.redriven(target, task.target, one, task) for one, _ in stored))
        await self._consumer.remove(context, task.target, [receipt for _, receipt in stored])
        metrics.redriven.add(task.tenant, len(stored))
        if retryable is not None:
            raise retryable
        return len(stored)


def _leased(message: StoredMessage, _attempt: int, receipt: str, _first_ms: int, _sequence: int | None) -> Leased:
    return message, receipt
