"""Redrive: a task that tries to deliver dead letters once more. Those that are delivered are removed, the others stay."""

import asyncio

import msgspec

from postroad.api.subscriptions import SubscriptionRedriveRequest
from postroad.api.tasks import Progress
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.names import dead_stream
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.dead_letters import FoundDeadLetter, SubscriptionDeadLetterStore
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.records import SubscriptionRecord, record_key
from postroad.subscriptions.service import Subscriptions
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks

REDRIVE = "subscription-redrive"
_CHUNK_SIZE = 50


class SubscriptionRedriver:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        dead_letters: SubscriptionDeadLetterStore,
        attempter: Attempter,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._connection, self._table, self._subscriptions = connection, table, subscriptions
        self._dead_letters, self._attempter, self._tasks, self._clock = dead_letters, attempter, tasks, clock

    async def start(
        self, context: RequestContext, subscription: str, request: SubscriptionRedriveRequest
    ) -> tuple[int, TaskRecord | None]:
        """The number of matching dead letters, and the task; no task for a dry run.

        Raises SubscriptionNotFound, PreconditionFailed if a redrive of the subscription is active.
        """
        record = await self._subscriptions.find(context.caller, subscription)
        count = await self._dead_letters.count(record, request.filter)
        if request.limit is not None:
            count = min(count, request.limit)
        if request.dry_run:
            return count, None
        return count, await self._tasks.start(context, REDRIVE, "topic", record.topic, request, count, part=record.id)

    async def run(self, task: TaskContext) -> None:
        """Deliver in chunks, at the rate of the request. Dead letters that arrive meanwhile are not redriven.

        A dead letter is removed after its delivery: a crash in between delivers it twice.
        """
        request = msgspec.convert(task.record.wanted, SubscriptionRedriveRequest)
        record = await self._table.fetch(record_key(task.record.tenant, task.record.part))
        if record is None:
            return
        progress, position, last = task.record.progress, max(1, task.record.position), task.record.bound
        if not last:
            info = await stream_info(self._connection, dead_stream(record.tenant))
            last = info.state.last_seq if info else 0
            await task.save(position, progress, last)
        while position <= last:
            left = None if request.limit is None else request.limit - progress.matched
            if left is not None and left <= 0:
                return
            size = min(_CHUNK_SIZE, request.rate_per_second, left or _CHUNK_SIZE)
            scan = await self._dead_letters.scan(record, request.filter, size, position)
            chunk = [one for one in scan.found if one.position <= last]
            outcomes = await asyncio.gather(*(self._deliver(record, one) for one in chunk))
            delivered = sum(outcomes)
            progress = Progress(
                total=progress.total,
                scanned=progress.scanned + scan.scanned,
                matched=progress.matched + len(chunk),
                moved=progress.moved + delivered,
                failed=progress.failed + len(chunk) - delivered,
            )
            position = last + 1 if scan.next_position is None else scan.next_position
            await task.save(position, progress, last)
            await task.sleep(len(chunk) / request.rate_per_second)

    async def _deliver(self, record: SubscriptionRecord, found: FoundDeadLetter) -> bool:
        """One attempt. A dead letter that fails again is stored with the new reason."""
        letter = found.letter
        result = await self._attempter.send(record, OutgoingMessage(letter.message), letter.attempts + 1)
        if result.outcome is Outcome.DELIVERED:
            await self._dead_letters.remove(record, found.position)
            return True
        await self._dead_letters.store(record, letter.message, result.cause, letter.attempts + 1, self._clock())
        return False
