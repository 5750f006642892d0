"""Removal of single messages: by id, or all that match a filter.

A removed message is kept with the cancelled ones, so its job is cancelled and can be retried for a week. It is stored there
before it leaves its queue: a crash in between only repeats the operation.
"""

import asyncio
from functools import partial

from postroad.api.queue_purging import WaitingFilter
from postroad.api.queues import MessageNotFound
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import epoch_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.ids import id_time_ms
from postroad.queues import job_events
from postroad.queues.backend import require_readable
from postroad.queues.cancelled_messages import CancelledMessages
from postroad.queues.consuming import Consumer
from postroad.queues.deferred_messages import DeferredMessages, StoredMoves, is_deferred_entry
from postroad.queues.filters import CompiledFilter
from postroad.queues.lease_log import LeaseLog
from postroad.queues.message_locator import LocatedMessage, MessageLocator
from postroad.queues.records import QueueRecord, StoredMessage, read_message
from postroad.queues.scan import ScanRange, scan
from postroad.telemetry.outbox import Outbox

REMOVED = "removed from the queue by request"
_CHUNK_SIZE = 100
_ATTEMPTS = 3
_PASSES_MAX = 10


class MessageRemoval:
    def __init__(
        self,
        connection: Connection,
        locator: MessageLocator,
        cancelled: CancelledMessages,
        consumer: Consumer,
        lease_log: LeaseLog,
        outbox: Outbox,
        audit: Audit,
        deferred: DeferredMessages,
    ) -> None:
        self._deferred = deferred
        self._connection, self._locator, self._cancelled = connection, locator, cancelled
        self._consumer, self._lease_log, self._outbox, self._audit = consumer, lease_log, outbox, audit

    async def find(self, record: QueueRecord, message_id: str) -> LocatedMessage:
        """A message in the queue, in any state. Ids begin with the time, so the search begins there.

        Raises MessageNotFound, BackendCannot, EngineUnavailable, and Overloaded if too many messages were stored since.
        """
        at_ms = id_time_ms(message_id)
        found = await self._locator.find(record, message_id, 0, at_ms) if at_ms is not None else None
        if found is None:
            require_readable(record)
            raise MessageNotFound(f"{message_id[:64]!r} is not in the queue {record.name!r}")
        return found

    async def remove(self, context: RequestContext, record: QueueRecord, message_id: str) -> None:
        """Raises MessageNotFound, BackendCannot, EngineUnavailable, Overloaded."""
        found = await self.find(record, message_id)
        async with self._audit.change(context, "message.delete", record.name, before={"messageId": message_id}):
            for _ in range(_ATTEMPTS):
                if await self._remove(context, record, found.entry, found.message):
                    return
                if not is_deferred_entry(record, found.entry):
                    break
                found = await self.find(record, message_id)  # it was moved back to the ready ones
            raise MessageNotFound(f"{message_id[:64]!r} has just left the queue {record.name!r}")

    async def purge(self, context: RequestContext, record: QueueRecord, wanted: WaitingFilter) -> int:
        """Remove the messages that match, and return their number. Raises BackendCannot."""
        count, ranges = 0, self._ranges(record, wanted)
        async with self._audit.change(context, "queue.purge", record.name, before={"filter": wanted}):
            for scan_range in ranges:
                count += await self._purge(context, scan_range, record, CompiledFilter(wanted))
        return count

    async def count(self, record: QueueRecord, wanted: WaitingFilter) -> int:
        """The number of messages that match. Raises BackendCannot."""
        count, compiled = 0, CompiledFilter(wanted)
        for scan_range in self._ranges(record, wanted):
            position = 1
            while True:
                range_, match = _from(scan_range, position), partial(_matching, compiled, await self._deferred.moves(record))
                found = await scan(self._connection, range_, match, 10_000, bytes_max=None)
                count += len(found.items)
                if found.next_sequence is None:
                    break
                position = found.next_sequence
        return count

    def _ranges(self, record: QueueRecord, wanted: WaitingFilter) -> list[ScanRange]:
        if wanted.state != "delayed":
            require_readable(record)
        subjects = {"ready": (*record.deferred_subjects, *record.ready_subjects), "delayed": record.delayed_subjects}
        states = ("ready", "delayed") if wanted.state is None else (wanted.state,)
        since, until = epoch_ms(wanted.since), epoch_ms(wanted.until)
        return [ScanRange(record.stream, subjects[state], 1, since, until) for state in states]

    async def _purge(self, context: RequestContext, scan_range: ScanRange, record: QueueRecord, compiled: CompiledFilter) -> int:
        count, position, passes, has_moved = 0, 1, 1, False
        while True:
            match = partial(_matching, compiled, await self._deferred.moves(record))
            found = await scan(self._connection, _from(scan_range, position), match, _CHUNK_SIZE)
            removed = await asyncio.gather(*(self._remove(context, record, *one) for one in found.items))
            count += sum(removed)
            for is_removed, (entry, _) in zip(removed, found.items, strict=True):
                has_moved = has_moved or (not is_removed and is_deferred_entry(record, entry))
            if found.next_sequence is not None:
                position = found.next_sequence
            elif has_moved and passes < _PASSES_MAX:  # deferred messages have become ready meanwhile
                position, passes, has_moved = 1, passes + 1, False
            else:
                return count

    async def _remove(self, context: RequestContext, record: QueueRecord, entry: Entry, message: StoredMessage) -> bool:
        """False if the message has left the queue."""
        sequence = entry.sequence
        lease = self._lease_log.lease_of(record, sequence)
        attempts, lease_until = (0, 0) if lease is None else (lease.attempt, lease.until_ms)
        letter = await self._cancelled.store(
            record, message, sequence, attempts=attempts, lease_until=lease_until, reason=REMOVED
        )
        if not await self._consumer.delete(record, entry, attempts):
            stored = await self._cancelled.find(record, message.id)
            if stored is not None:
                await self._cancelled.remove(record, stored.sequence)
            return False
        await self._outbox.commit(context, job_events.cancelled(record, message, letter))
        return True


def _from(scan_range: ScanRange, position: int) -> ScanRange:
    return ScanRange(scan_range.stream, scan_range.subjects, position, scan_range.since_ms, scan_range.until_ms)


def _matching(compiled: CompiledFilter, moves: StoredMoves, entry: Entry) -> tuple[Entry, StoredMessage] | None:
    if not compiled.may_match(entry.payload) or moves.is_moved(entry):
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    return (entry, message) if compiled.matches(message) else None
