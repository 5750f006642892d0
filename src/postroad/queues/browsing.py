"""Operations on the messages in a queue: peek and purge."""

from dataclasses import dataclass

from postroad.api.queues import MessageFilter
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.queues.events import QueuePurged
from postroad.queues.filters import CompiledFilter
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_states import Step, Transition
from postroad.queues.records import QueueRecord, StoredMessage, read_message
from postroad.queues.scan import ScanRange, ScanResult, scan
from postroad.queues.stats import QueueStatsReader
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message, its state, and the end of its lease or of its wait for a retry."""

    message: StoredMessage
    state: str
    until_ms: int | None


class QueueBrowser:
    def __init__(
        self,
        connection: Connection,
        stats: QueueStatsReader,
        lease_log: LeaseLog,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._connection, self._stats, self._outbox, self._audit = connection, stats, outbox, audit
        self._lease_log, self._clock = lease_log, clock

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
    ) -> ScanResult[BrowsedMessage]:
        """Read messages without leasing them, oldest first: the delayed ones, or all others."""
        compiled = CompiledFilter(wanted)
        await self._lease_log.loaded()
        subjects = record.delayed_subjects if is_delayed else record.ready_subjects
        scan_range = ScanRange(record.stream, subjects, from_sequence, since_ms, until_ms)

        def convert(entry: Entry) -> BrowsedMessage | None:
            message = _matching(entry, compiled)
            if message is None:
                return None
            lease = None if is_delayed else self._lease_log.lease_of(record, entry.sequence)
            return BrowsedMessage(message, "delayed" if is_delayed else _state(lease), None if lease is None else lease.until_ms)

        return await scan(self._connection, scan_range, convert, limit)

    async def purge(self, context: RequestContext, record: QueueRecord, *, is_dry_run: bool) -> int:
        """Delete all messages, leased and delayed ones included, and return their number. Idempotency keys are kept."""
        count = await self._stats.count(record)
        if is_dry_run:
            return count
        async with self._audit.change(context, "queue.purge", record.name, before={"messages": count}):
            now, purged = self._clock(), 0
            for subject in (*record.ready_subjects, *record.delayed_subjects):
                purged += await purge_stream(self._connection, record.stream, subject)
        await self._lease_log.commit(record, [Transition(0, 0, Step.PURGED, now)])
        await self._outbox.commit(context, QueuePurged(queue=record.name, count=purged))
        return purged


def _state(lease: Transition | None) -> str:
    if lease is None:
        return "ready"
    return "leased" if lease.step <= Step.SHORTENED else "retrying"


def _matching(entry: Entry, wanted: CompiledFilter) -> StoredMessage | None:
    if not wanted.may_match(entry.payload):
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    return message if wanted.matches(message) else None
