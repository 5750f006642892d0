"""What an operator does with a queue's messages: look at them, drop them, and put dead ones back."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.tasks import Progress
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import QueueNotFound
from postroad.kernel.identity import Caller
from postroad.kernel.names import QUEUE
from postroad.queues import job_events as events
from postroad.queues import metrics
from postroad.queues.dead_letters import DeadLetters, StoredDeadLetter
from postroad.queues.filters import CompiledFilter, MessageFilter
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.queues.rules import QueueRecord, StoredMessage, read_message
from postroad.queues.scan import Found, Span, scan
from postroad.queues.stats import QueueStatsReader
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks
from postroad.telemetry.outbox import Outbox

REDRIVE = "redrive"
_CHUNK_SIZE = 100


_TARGET_SCHEMA = {"pattern": f"^{QUEUE.pattern}$"}  # told, and looked at where the queue is looked for, which says more
_Target = Annotated[
    str, Meta(min_length=1, max_length=80, description="Another queue; their own if left out.", extra_json_schema=_TARGET_SCHEMA)
]


class Redrive(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Put dead letters back: those that the filter takes, or all."""

    filter: MessageFilter = MessageFilter()
    to: _Target | None = None
    rate_per_second: Annotated[int, Meta(ge=1, le=10_000)] = 100
    limit: Annotated[int, Meta(ge=1, le=10**9, description="At most so many.")] | None = None
    dry_run: Annotated[bool, Meta(description="Only count them.")] = False


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message in a queue, where it is, and whether it is due."""

    sequence: int
    stored_at_ms: int
    message: StoredMessage
    is_delayed: bool


class Upkeep:
    def __init__(
        self,
        connection: Connection,
        definitions: QueueLifecycle,
        queues: Publisher,
        dead: DeadLetters,
        meter: QueueStatsReader,
        tasks: Tasks,
        outbox: Outbox,
        audit: Audit,
    ) -> None:
        self._connection, self._definitions, self._queues, self._dead, self._meter = connection, definitions, queues, dead, meter
        self._tasks, self._outbox, self._audit = tasks, outbox, audit

    # Looking

    async def peek(
        self,
        record: QueueRecord,
        wanted: MessageFilter,
        *,
        limit: int,
        from_sequence: int,
        is_delayed: bool,
        since_ms: int | None,
        until_ms: int | None,
    ) -> Found[WaitingMessage]:
        """Messages that wait, oldest first, without leasing them: those that are due, or those that are not yet."""
        sieve = CompiledFilter(wanted)
        subject = f"{record.subject}.later.*" if is_delayed else f"{record.subject}.ready"
        span = Span(record.stream, subject, from_sequence, since_ms, until_ms)
        return await scan(self._connection, span, lambda entry: _waiting(entry, sieve, is_delayed=is_delayed), limit)

    # Dropping

    async def purge(self, context: RequestContext, name: str, *, is_dry_run: bool) -> int:
        """Drop all that waits, leased and delayed ones too; how many there were. Idempotency keys are remembered on."""
        record = await self._definitions.find(context.tenant, name)
        count = await self._meter.count(record)
        if is_dry_run:
            return count
        async with self._audit.change(context, "queue.purge", name, before={"messages": count}):
            purged = await purge_stream(self._connection, record.stream, f"{record.subject}.ready")
            purged += await purge_stream(self._connection, record.stream, f"{record.subject}.later.*")
        await self._outbox.commit(context, events.purged(name, purged))
        return purged

    async def purge_dead(self, context: RequestContext, name: str, wanted: MessageFilter, *, is_dry_run: bool) -> int:
        """Drop dead letters: all, or those that the filter takes; how many."""
        record = await self._definitions.find(context.tenant, name)
        if wanted.is_empty:
            count = await self._dead.count(record)
            if is_dry_run or not count:
                return count
            async with self._audit.change(context, "dlq.purge", name, before={"messages": count}):
                return await self._dead.drop_all(record)
        if is_dry_run:
            return await self._count_dead(record, wanted)
        count = 0
        async with self._audit.change(context, "dlq.purge", name, before={"filter": msgspec.to_builtins(wanted)}):
            position: int | None = 1
            while position is not None:
                found = await self._dead.page(record, wanted, limit=_CHUNK_SIZE, from_sequence=position)
                await asyncio.gather(*(self._dead.drop(record, one.sequence) for one in found.items))
                count += len(found.items)
                position = found.next_sequence
        return count

    async def drop_dead(self, context: RequestContext, name: str, message_id: str) -> None:
        """Raises MessageNotFound."""
        record = await self._definitions.find(context.tenant, name)
        one = await self._dead.find(record, message_id)
        async with self._audit.change(context, "dlq.delete", name, before={"messageId": message_id}):
            await self._dead.drop(record, one.sequence)

    async def _count_dead(self, record: QueueRecord, wanted: MessageFilter) -> int:
        if wanted.is_empty:
            return await self._dead.count(record)
        count, position = 0, 1
        while True:
            found = await self._dead.page(record, wanted, limit=10_000, from_sequence=position)
            count += len(found.items)
            if found.next_sequence is None:
                return count
            position = found.next_sequence

    # Putting back

    async def redrive(self, context: RequestContext, name: str, wanted: Redrive) -> tuple[int, TaskRecord | None]:
        """How many dead letters that are, and the task that puts them back; no task if it is only to be counted.

        Raises QueueNotFound, Forbidden, NotNow if one runs already.
        """
        record = await self._definitions.find(context.tenant, name)
        if wanted.to is not None:
            _check_may_use(context.caller, wanted.to)
            await self._definitions.find(context.tenant, wanted.to)
        count = await self._count_dead(record, wanted.filter)
        if wanted.limit is not None:
            count = min(count, wanted.limit)
        if wanted.dry_run:
            return count, None
        return count, await self._tasks.start(context, REDRIVE, "queue", name, wanted, count)

    async def carry_out_redrive(self, running: TaskContext) -> None:
        """The task's work: bite by bite, at its rate, saving how far it is.

        What is put back is in its queue before it leaves the dead letters. A crash between the two repeats the bite: within a
        minute the engine knows the messages' ids, after that one may come twice. Letters that arrive while it runs are not
        taken, so what fails again does not go round in circles.
        """
        wanted = msgspec.convert(running.record.wanted, Redrive)
        tenant, name = running.record.tenant, running.record.target
        record = await self._definitions.find(tenant, name)
        target = await self._definitions.find(tenant, wanted.to) if wanted.to else record
        progress = running.record.progress
        position, top = max(1, running.record.position), running.record.bound
        if not top:
            top = await self._dead.top(record)
            await running.save(position, progress, top)
        while position <= top:
            left = None if wanted.limit is None else wanted.limit - progress.moved
            if left is not None and left <= 0:
                return
            bite = min(_CHUNK_SIZE, wanted.rate_per_second, left or _CHUNK_SIZE)
            found = await self._dead.page(record, wanted.filter, limit=bite, from_sequence=position)
            mine = [one for one in found.items if one.sequence <= top]
            moved = await self._put_back(running, record, target, mine)
            progress = Progress(
                total=progress.total,
                scanned=progress.scanned + found.scanned,
                matched=progress.matched + len(mine),
                moved=progress.moved + moved,
                failed=progress.failed + len(mine) - moved,
            )
            if found.next_sequence is None:
                await running.save(top + 1, progress, top)
                return
            position = found.next_sequence
            await running.save(position, progress, top)
            await _paced(running, len(mine) / wanted.rate_per_second)

    async def _put_back(
        self, running: TaskContext, record: QueueRecord, target: QueueRecord, dead: list[StoredDeadLetter]
    ) -> int:
        if not dead:
            return 0
        task = running.record
        outcomes = await self._queues.put_back(target, [(one.message, f"{task.id}/{one.sequence}") for one in dead])
        stored = [one for one, problem in zip(dead, outcomes, strict=True) if problem is None]
        retryable = next((problem for problem in outcomes if problem is not None and problem.retryable), None)
        await self._outbox.commit(None, *(events.redriven(target, record.name, one.message, task) for one in stored))
        await asyncio.gather(*(self._dead.drop(record, one.sequence) for one in stored))
        metrics.redriven.add(task.tenant, len(stored))
        if retryable is not None:  # the engine is away or full: the task is taken up again, from the same place
            raise retryable
        return len(stored)


async def _paced(running: TaskContext, seconds: float) -> None:
    """Wait, but not for longer than it takes to notice that the task is to stop."""
    while seconds > 0:
        running.check()
        await asyncio.sleep(min(seconds, 0.25))
        seconds -= 0.25


def _check_may_use(caller: Caller, queue: str) -> None:
    if not caller.may_use("queue", queue):
        raise QueueNotFound(f"there is no queue {queue[:100]!r}")


def _waiting(entry: Entry, sieve: CompiledFilter, *, is_delayed: bool) -> WaitingMessage | None:
    if not sieve.may_take(entry.payload):
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    return WaitingMessage(entry.sequence, entry.at_ms, message, is_delayed) if sieve.takes(message) else None
