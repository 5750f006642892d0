"""Redrive: a task that tries to deliver dead letters once more. Those that are delivered are removed, the others stay.

The limits of the subscription hold: `maxInFlight`, `maxPerSecond`, `ordering`, and its pauses. The live delivery goes on beside
it, so both together may reach twice the limits. A pause that the endpoint asks for in a response is kept, and 410 disables the
subscription, as in the live delivery.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from postroad.api.subscriptions import Ordering, SubscriptionRedriveRequest
from postroad.api.tasks import Progress
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.names import dead_stream
from postroad.subscriptions.attempt_log import AttemptLog
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.dead_letters import FoundDeadLetter, SubscriptionDeadLetterStore
from postroad.subscriptions.endpoint_rules import RETRY_AFTER_MS_MAX, Outcome
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.progress_store import ProgressStore
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import SubscriptionRecord, record_key
from postroad.subscriptions.service import Subscriptions
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks

REDRIVE = "subscription-redrive"
_CHUNK_SIZE = 50
_PAUSE_SECONDS = 1.0  # between looks at a subscription that delivers nothing at the moment


class SubscriptionRedriver:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        dead_letters: SubscriptionDeadLetterStore,
        attempter: Attempter,
        attempts: AttemptLog,
        progress: ProgressStore,
        tasks: Tasks,
        clock: Clock,
        *,
        disable: Callable[[SubscriptionRecord, str], Awaitable[None]],
    ) -> None:
        self._connection, self._table, self._subscriptions = connection, table, subscriptions
        self._dead_letters, self._attempter, self._attempts = dead_letters, attempter, attempts
        self._progress, self._tasks, self._clock, self._disable = progress, tasks, clock, disable

    async def start(
        self, context: RequestContext, subscription: str, request: SubscriptionRedriveRequest
    ) -> tuple[int, TaskRecord | None]:
        """The number of matching dead letters, and the task; no task for a dry run.

        Raises SubscriptionNotFound, PreconditionFailed if a redrive of the subscription is active, or nothing is delivered.
        """
        record = await self._subscriptions.find(context.caller, subscription)
        count = await self._dead_letters.count(record, request.filter)
        if request.limit is not None:
            count = min(count, request.limit)
        if request.dry_run:
            return count, None
        if not record.is_active:
            raise PreconditionFailed(f"the subscription is {record.state.value}; resume it before you redrive its dead letters")
        return count, await self._tasks.start(context, REDRIVE, "topic", record.topic, request, count, part=record.id)

    async def run(self, task: TaskContext) -> None:
        """Deliver in chunks, at the rate of the request. Dead letters that arrive meanwhile are not redriven.

        A dead letter is removed after its delivery: a crash in between delivers it twice.
        """
        request = msgspec.convert(task.record.wanted, SubscriptionRedriveRequest)
        record = await self._deliverable(task)
        if record is None:
            return
        progress, position, last = task.record.progress, max(1, task.record.position), task.record.bound
        if not last:
            info = await stream_info(self._connection, dead_stream(record.tenant))
            last = info.state.last_seq if info else 0
            await task.save(position, progress, last)
        while position <= last and (record := await self._deliverable(task)) is not None:
            left = None if request.limit is None else request.limit - progress.matched
            if left is not None and left <= 0:
                return
            rate = min(request.rate_per_second, record.max_per_second or request.rate_per_second)
            in_flight = 1 if record.ordering is Ordering.KEY else record.max_in_flight
            size = min(_CHUNK_SIZE, rate, in_flight, left or _CHUNK_SIZE)
            scan = await self._dead_letters.scan(record, request.filter, size, position)
            chunk = [one for one in scan.found if one.position <= last]
            results = await asyncio.gather(*(self._deliver(record, one) for one in chunk))
            await self._attempts.flush()
            delivered = sum(one.is_delivered for one in results)
            progress = Progress(
                total=progress.total,
                scanned=progress.scanned + scan.scanned,
                matched=progress.matched + len(chunk),
                moved=progress.moved + delivered,
                failed=progress.failed + len(chunk) - delivered,
            )
            position = last + 1 if scan.next_position is None else scan.next_position
            await task.save(position, progress, last)
            await task.sleep(max(len(chunk) / rate, _pause_seconds(results)))

    async def _deliverable(self, task: TaskContext) -> SubscriptionRecord | None:
        """The subscription, once it delivers: neither paused nor disabled, nor held up by its breaker or a Retry-After. None if
        it was deleted. Raises TaskCancelled, TaskPaused."""
        while True:
            record = await self._table.fetch(record_key(task.record.tenant, task.record.part))
            if record is None:
                return None
            if record.is_active:
                stored = (await self._progress.load(record)).record
                if stored is None or (stored.resumes_at_ms or 0) <= self._clock():
                    return record
            await task.sleep(_PAUSE_SECONDS)

    async def _deliver(self, record: SubscriptionRecord, found: FoundDeadLetter) -> AttemptResult:
        """One attempt. A dead letter that fails again is stored with the new reason."""
        letter = found.letter
        result = await self._attempter.attempt_again(record, OutgoingMessage(letter.message), letter.attempts + 1)
        if result.is_delivered:
            await self._dead_letters.remove(record, found.position)
            return result
        await self._dead_letters.store(record, letter.message, result.cause, letter.attempts + 1, self._clock())
        if result.outcome is Outcome.GONE:
            await self._disable(record, result.cause)
        return result


def _pause_seconds(results: Sequence[AttemptResult]) -> float:
    """The longest pause that a response asks for."""
    return min(max((one.retry_after_ms or 0 for one in results), default=0), RETRY_AFTER_MS_MAX) / 1000
