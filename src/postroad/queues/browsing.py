"""Operations on the messages in a queue: peek and purge."""

from postroad.api.queues import MessageFilter
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.context import RequestContext
from postroad.queues.events import QueuePurged
from postroad.queues.filters import CompiledFilter
from postroad.queues.records import QueueRecord, StoredMessage, read_message
from postroad.queues.scan import ScanRange, ScanResult, scan
from postroad.queues.stats import QueueStatsReader
from postroad.telemetry.outbox import Outbox


class QueueBrowser:
    def __init__(self, connection: Connection, stats: QueueStatsReader, outbox: Outbox, audit: Audit) -> None:
        self._connection, self._stats, self._outbox, self._audit = connection, stats, outbox, audit

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
    ) -> ScanResult[StoredMessage]:
        """Read messages without leasing them, oldest first: the ready and leased ones, or the delayed ones."""
        compiled = CompiledFilter(wanted)
        subject = f"{record.subject}.later.*" if is_delayed else f"{record.subject}.ready"
        scan_range = ScanRange(record.stream, subject, from_sequence, since_ms, until_ms)
        return await scan(self._connection, scan_range, lambda entry: _matching(entry, compiled), limit)

    async def purge(self, context: RequestContext, record: QueueRecord, *, is_dry_run: bool) -> int:
        """Delete all messages, leased and delayed ones included, and return their number. Idempotency keys are kept."""
        count = await self._stats.count(record)
        if is_dry_run:
            return count
        async with self._audit.change(context, "queue.purge", record.name, before={"messages": count}):
            purged = await purge_stream(self._connection, record.stream, f"{record.subject}.ready")
            purged += await purge_stream(self._connection, record.stream, f"{record.subject}.later.*")
        await self._outbox.commit(context, QueuePurged(queue=record.name, count=purged))
        return purged


def _matching(entry: Entry, wanted: CompiledFilter) -> StoredMessage | None:
    if not wanted.may_match(entry.payload):
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    return message if wanted.matches(message) else None
