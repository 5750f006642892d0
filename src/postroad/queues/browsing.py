"""Operations on the messages in a queue: peek and purge."""

from dataclasses import dataclass

from postroad.api.queues import MessageFilter, MessageNotFound
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.queues.backend import QueueBackend, require_readable
from postroad.queues.deferred_messages import DeferredMessages
from postroad.queues.events import QueuePurged
from postroad.queues.filters import CompiledFilter
from postroad.queues.lease_log import LeaseLog
from postroad.queues.lease_states import Step, Transition
from postroad.queues.message_locator import LocatedMessage
from postroad.queues.message_writes import delay_ms_of_entry
from postroad.queues.ordered_browsing import OrderedBrowser
from postroad.queues.ordered_leases import OrderedLeases
from postroad.queues.records import QueueRecord, StoredMessage, read_message
from postroad.queues.rules import group_token
from postroad.queues.scan import SCANNED_MAX, ScanRange, ScanResult, scan
from postroad.queues.stats import QueueStatsReader
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message, its state, and the end of its lease or of its wait for a retry. `sequence`: in an ordered queue."""

    message: StoredMessage
    state: str
    until_ms: int | None
    sequence: int = 0


class QueueBrowser:
    def __init__(
        self,
        connection: Connection,
        backend: QueueBackend,
        stats: QueueStatsReader,
        lease_log: LeaseLog,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        ordered: OrderedLeases,
        deferred: DeferredMessages,
    ) -> None:
        self._backend, self._deferred = backend, deferred
        self._ordered, self._ordered_browser = ordered, OrderedBrowser(connection, clock)
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
        is_newest_first: bool = False,
        scanned_max: int = SCANNED_MAX,
    ) -> ScanResult[BrowsedMessage]:
        """Read messages without leasing them: the delayed ones, or all others.

        Oldest first from `from_sequence`, or newest first from before it; 0 is the end then. Raises BackendCannot.
        """
        compiled = CompiledFilter(wanted)
        if not is_delayed:
            require_readable(record)
        if record.is_ordered:
            return await self._peek_ordered(
                record,
                compiled,
                limit,
                from_sequence,
                is_delayed=is_delayed,
                since_ms=since_ms,
                until_ms=until_ms,
                is_newest_first=is_newest_first,
                scanned_max=scanned_max,
            )
        await self._lease_log.loaded()
        subjects = record.delayed_subjects if is_delayed else (*record.deferred_subjects, *record.ready_subjects)
        moves, seen = await self._deferred.moves(record), set[str]()
        scan_range = ScanRange(record.stream, subjects, from_sequence, since_ms, until_ms)
        if is_newest_first:
            scan_range = ScanRange(record.stream, subjects, 1, since_ms, until_ms, from_sequence or None, is_newest_first=True)

        def convert(entry: Entry) -> BrowsedMessage | None:
            message = None if moves.is_moved(entry) else _matching(entry, compiled)
            if message is None or message.id in seen:
                return None
            if record.has_deferred:  # one that is moved meanwhile is read twice
                seen.add(message.id)
            lease = None if is_delayed else self._lease_log.lease_of(record, entry.sequence)
            state, until_ms = "delayed" if is_delayed else _state(lease), None if lease is None else lease.until_ms
            return BrowsedMessage(message, state, until_ms, entry.sequence)

        return await scan(self._connection, scan_range, convert, limit, scanned_max=scanned_max)

    async def browsed(self, record: QueueRecord, located: LocatedMessage) -> BrowsedMessage:
        """A message that was found by its id, with its state. Raises MessageNotFound."""
        if record.is_ordered:
            state_of = (await self._ordered_browser.states(record, [located.entry])).get(located.entry.sequence)
            if state_of is None:
                raise MessageNotFound(f"the message {located.message.id} has just left the queue {record.name!r}")
            return BrowsedMessage(located.message, state_of.name, state_of.until_ms, located.entry.sequence)
        if located.entry.subject == record.retry_subject(located.message.id):
            due_at_ms = located.message.at + delay_ms_of_entry(located.entry, located.message)
            return BrowsedMessage(located.message, "retrying", due_at_ms, located.entry.sequence)
        lease = None if located.is_delayed else self._lease_log.lease_of(record, located.entry.sequence)
        state = "delayed" if located.is_delayed else _state(lease)
        return BrowsedMessage(located.message, state, None if lease is None else lease.until_ms, located.entry.sequence)

    async def _peek_ordered(
        self,
        record: QueueRecord,
        compiled: CompiledFilter,
        limit: int,
        from_sequence: int,
        *,
        is_delayed: bool,
        since_ms: int | None,
        until_ms: int | None,
        is_newest_first: bool,
        scanned_max: int,
    ) -> ScanResult[BrowsedMessage]:
        """Messages of an ordered queue: those found first, then their states. Settled ones that are still stored are left out."""
        group_id = compiled.wanted.group_id
        subject = record.group_subject("*" if group_id is None else group_token(group_id))
        scan_range = ScanRange(record.stream, (subject,), from_sequence, since_ms, until_ms)
        if is_newest_first:
            end = from_sequence or None
            scan_range = ScanRange(record.stream, (subject,), 1, since_ms, until_ms, end, is_newest_first=True)

        def convert(entry: Entry) -> tuple[Entry, StoredMessage] | None:
            message = _matching(entry, compiled)
            return None if message is None else (entry, message)

        found = await scan(self._connection, scan_range, convert, limit, scanned_max=scanned_max)
        states = await self._ordered_browser.states(record, [entry for entry, _ in found.items])
        items = [
            BrowsedMessage(message, state.name, state.until_ms, entry.sequence)
            for entry, message in found.items
            if (state := states.get(entry.sequence)) is not None and (state.name == "delayed") == is_delayed
        ]
        return ScanResult(items, found.scanned, found.next_sequence)

    async def purge(self, context: RequestContext, record: QueueRecord, *, is_dry_run: bool) -> int:
        """Delete all messages, leased and delayed ones included, and return their number. Idempotency keys are kept."""
        count = await self._stats.count(record)
        if is_dry_run:
            return count
        async with self._audit.change(context, "queue.purge", record.name, before={"messages": count}):
            now = self._clock()
            purged = await (self._ordered.purge(record) if record.is_ordered else self._backend.purge(record))
        if not record.is_ordered:
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
