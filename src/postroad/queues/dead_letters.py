"""Dead letters: messages that were rejected or failed too often, stored with the reason until they are redriven or deleted.

One stream per tenant, one subject per message, of which the stream keeps the latest: a message that is dead-lettered twice, as
after a crash between storing it and acknowledging its delivery, exists once. It is found, redriven and deleted by its id. A
dead letter that is stored again gets another sequence, so deleting by sequence never deletes a newer one.

With the setting `deadLetterQueue` they are messages of that queue instead, with their origin. The operations here find those of
one source among them.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import structlog

from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.queues import DeadLetterOrigin, MessageFilter, MessageNotFound
from postroad.governance.audit import Audit
from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, delete_message, delete_stream, ensure_stream, purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry, time_ms
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.names import dead_stream, escape
from postroad.queues.dead_letter_groups import GroupedLetter, group_key, group_of_letter
from postroad.queues.filters import CompiledFilter
from postroad.queues.message_writes import message_write
from postroad.queues.records import (
    DeadLetter,
    Failure,
    QueueRecord,
    StoredMessage,
    decode_dead_letter,
    decode_failure,
    encode_message,
    read_message,
    with_last_error,
)
from postroad.queues.rules import epoch_ms
from postroad.queues.scan import SCANNED_MAX, ScanRange, ScanResult, scan
from postroad.telemetry.flow_counters import FlowCounters

FAILURES_BUCKET = "postroad_failures"
_FAILURE_SECONDS = 15 * 86_400
_REASON_CHARS_MAX = 1000
_GROUPED_MAX = 20_000
_DELETE_CHUNK_SIZE = 100
_COUNT_CHUNK_SIZE = 10_000
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")  # as in subjects
_ANY = CompiledFilter(MessageFilter())
_EVERY = DeadLetterFilter()

log = structlog.get_logger("postroad.queues")


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter, its sequence in the stream, and its message."""

    sequence: int
    letter: DeadLetter
    message: StoredMessage


class DeadLetters:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        failures: Bucket,
        audit: Audit,
        clock: Clock,
        *,
        replicas: int,
        flows: FlowCounters,
    ) -> None:
        self._connection, self._committers, self._failures, self._flows = connection, committers, failures, flows
        self._audit, self._clock, self._replicas = audit, clock, replicas
        self._ensured: set[str] = set()
        self.find_queue: Callable[[str, str], QueueRecord | None] = lambda _tenant, _name: None

    def queue_of(self, record: QueueRecord) -> QueueRecord | None:
        """The dead-letter queue of a queue, None if it has none or it does not exist any more."""
        name = record.settings.dead_letter_queue
        return None if name is None else self.find_queue(record.tenant, name)

    async def ensure_stream(self, tenant: str) -> None:
        """Create the tenant's stream of dead letters, with its first queue."""
        if tenant in self._ensured:
            return
        options = {
            "max_msgs_per_subject": 1,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "num_replicas": self._replicas,
            "duplicate_window": 60_000_000_000,
        }
        await ensure_stream(self._connection, StreamSpec(dead_stream(tenant), (f"d.{tenant}.>",), options))
        self._ensured.add(tenant)

    async def delete_stream(self, tenant: str) -> None:
        await delete_stream(self._connection, dead_stream(tenant))

    # Storing

    async def record_failure(self, record: QueueRecord, message_id: str, reason: str) -> None:
        """Store why an attempt failed; it becomes the last error if the message is dead-lettered.

        Stores nothing while only the reserve of the store is left, which a nack must not use up.
        """
        if self._committers.storage.store.is_reserved:
            return
        key, now = _failure_key(record, message_id), self._clock()
        before = await self._failure(key)
        failure = Failure(reason=reason[:_REASON_CHARS_MAX], first_at=before.first_at if before else now, last_at=now)
        await self._failures.put(key, msgspec.json.encode(failure), ttl_seconds=_FAILURE_SECONDS)

    async def _failure(self, key: str) -> Failure | None:
        stored = await self._failures.get(key)
        try:
            return decode_failure(stored.value) if stored is not None and stored.value is not None else None
        except (ValueError, RecursionError):
            return None

    async def store(
        self,
        record: QueueRecord,
        message: StoredMessage,
        sequence: int,
        attempts: int,
        reason: str,
        last_error: str | None = None,
    ) -> DeadLetter:
        """Return once the dead letter is durable. `sequence` is the sequence of the message in its queue.

        Returns the stored dead letter, which is another worker's if that worker stored the same delivery first.
        """
        known = await self._failure(_failure_key(record, message.id)) if attempts > 1 else None
        letter = with_last_error(
            DeadLetter(
                v=1,
                reason=reason[:_REASON_CHARS_MAX],
                last_error=last_error[:_REASON_CHARS_MAX] if last_error else known.reason if known else None,
                attempts=attempts,
                first_failed_at=known.first_at if known else None,
                dead_at=self._clock(),
                message=msgspec.Raw(encode_message(message)),
            )
        )
        # The id contains the sequence in the queue: a redriven message that is dead-lettered again is not a duplicate.
        unique_id = f"{record.incarnation}/{sequence}/{attempts}"
        queue = self.queue_of(record)
        target = f"dead:{record.name}" if queue is None else f"queue:{queue.name}"
        self._flows.add(record.tenant, f"queue:{record.name}", target, 0, failed=1)
        if queue is not None:
            write = message_write(queue, _with_origin(message, record.name, letter), 0, unique_id)
            await self._committers.of(queue.stream).append(write, uses_reserve=True)
            return letter
        pending = PendingMessage(f"{record.dead_subject}.{message.id}", msgspec.json.encode(letter), unique_id)
        ack = await self._committers.of(record.dead_stream).append(pending, uses_reserve=True)
        entry = await stream_reader.at(self._connection, record.dead_stream, ack.sequence) if ack.is_duplicate else None
        first = _read(entry) if entry is not None else None
        return letter if first is None else first.letter

    # Reading

    async def page(
        self,
        record: QueueRecord,
        wanted: DeadLetterFilter,
        *,
        limit: int,
        from_sequence: int = 1,
        before_sequence: int | None = None,
        is_newest_first: bool = False,
        scanned_max: int = SCANNED_MAX,
    ) -> ScanResult[StoredDeadLetter]:
        compiled, read = CompiledFilter(wanted), self._reader(record)
        scanned = self._range(record, wanted, from_sequence)
        if is_newest_first:
            scanned = replace(scanned, from_sequence=1, end_sequence=before_sequence, is_newest_first=True)
        return await scan(self._connection, scanned, lambda entry: read(entry, compiled, wanted), limit, scanned_max=scanned_max)

    def _reader(self, record: QueueRecord) -> "Callable[[Entry, CompiledFilter, DeadLetterFilter], StoredDeadLetter | None]":
        return _read if self.queue_of(record) is None else partial(_read_queued, record.name)

    async def _reasons(
        self, record: QueueRecord, wanted: DeadLetterFilter, limit: int, from_sequence: int
    ) -> ScanResult[tuple[str, int]]:
        """Like `page`, but only the reason and the time of each dead letter."""
        compiled, read = CompiledFilter(wanted), self._reader(record)

        def convert(entry: Entry) -> tuple[str, int] | None:
            found = read(entry, compiled, wanted)
            return None if found is None else (found.letter.reason, found.letter.dead_at)

        return await scan(self._connection, self._range(record, wanted, from_sequence), convert, limit, bytes_max=None)

    async def grouped(
        self, record: QueueRecord, wanted: DeadLetterFilter, from_sequence: int, group_by: str
    ) -> ScanResult[GroupedLetter]:
        """What groups need of the dead letters of one scan."""
        compiled, read, key = CompiledFilter(wanted), self._reader(record), group_key(group_by)

        def convert(entry: Entry) -> GroupedLetter | None:
            found = read(entry, compiled, wanted)
            if found is None:
                return None
            letter, message = found.letter, found.message
            return GroupedLetter(key(letter, message), letter.dead_at, message.id, letter.last_error or letter.reason)

        scanned = self._range(record, wanted, from_sequence)
        return await scan(self._connection, scanned, convert, _GROUPED_MAX, bytes_max=None)

    async def find(self, record: QueueRecord, message_id: str) -> StoredDeadLetter:
        """Raises MessageNotFound."""
        if self.queue_of(record) is not None:
            page = await self.page(record, DeadLetterFilter(message_id=message_id), limit=1)
            if page.items:
                return page.items[0]
            raise MessageNotFound(f"{message_id[:64]!r} is not among the dead letters of {record.name!r}")
        entry = None
        if message_id.replace("-", "").isalnum() and message_id.isascii():
            entry = await stream_reader.last(self._connection, record.dead_stream, f"{record.dead_subject}.{message_id}")
        found = _read(entry) if entry else None
        if found is None:
            raise MessageNotFound(f"{message_id[:64]!r} is not among the dead letters of {record.name!r}")
        return found

    async def has(self, record: QueueRecord, message_id: str) -> bool:
        """True if the message is among the dead letters of the queue."""
        if self.queue_of(record) is not None:
            return bool((await self.page(record, DeadLetterFilter(message_id=message_id), limit=1)).items)
        return await stream_reader.last(self._connection, record.dead_stream, f"{record.dead_subject}.{message_id}") is not None

    async def count(self, record: QueueRecord, wanted: DeadLetterFilter | None = None) -> int:
        """The number of dead letters that match; without a filter, of all."""
        if self.queue_of(record) is None and (wanted is None or wanted.is_empty):
            page = await stream_reader.read(self._connection, record.dead_stream, f"{record.dead_subject}.*", 1, 1)
            return len(page.entries) + page.remaining
        count, position = 0, 1
        while True:
            found = await self._reasons(record, wanted or _EVERY, _COUNT_CHUNK_SIZE, position)
            count += len(found.items)
            if found.next_sequence is None:
                return count
            position = found.next_sequence

    async def last_sequence(self, record: QueueRecord) -> int:
        """The highest sequence stored so far."""
        info = await stream_info(self._connection, self._stream(record))
        return info.state.last_seq if info else 0

    # Deleting

    async def delete(self, context: RequestContext, record: QueueRecord, message_id: str) -> None:
        """Raises MessageNotFound."""
        found = await self.find(record, message_id)
        async with self._audit.change(context, "dlq.delete", record.name, before={"messageId": message_id}):
            await self.remove(record, found.sequence)

    async def purge(self, context: RequestContext, record: QueueRecord, wanted: DeadLetterFilter, *, is_dry_run: bool) -> int:
        """Delete the dead letters that match, and return their number."""
        if is_dry_run:
            return await self.count(record, wanted)
        if wanted.is_empty and self.queue_of(record) is None:
            count = await self.count(record)
            if not count:
                return 0
            async with self._audit.change(context, "dlq.purge", record.name, before={"messages": count}):
                return await self.remove_all(record)
        count, position = 0, 1
        async with self._audit.change(context, "dlq.purge", record.name, before={"filter": msgspec.to_builtins(wanted)}):
            while True:
                found = await self.page(record, wanted, limit=_DELETE_CHUNK_SIZE, from_sequence=position)
                await asyncio.gather(*(self.remove(record, one.sequence) for one in found.items))
                count += len(found.items)
                if found.next_sequence is None:
                    return count
                position = found.next_sequence

    async def remove(self, record: QueueRecord, sequence: int) -> None:
        """Delete the dead letter with this sequence. Idempotent."""
        await delete_message(self._connection, self._stream(record), sequence, timeout=5)

    async def remove_all(self, record: QueueRecord) -> int:
        """Delete the dead letters of a queue, and return their number."""
        return await purge_stream(self._connection, record.dead_stream, f"{record.dead_subject}.*")

    async def remove_queue(self, record: QueueRecord) -> None:
        """Delete everything that is stored here for a queue, its cancelled messages included."""
        await purge_stream(self._connection, record.dead_stream, f"{record.dead_subject}.>")

    def _stream(self, record: QueueRecord) -> str:
        queue = self.queue_of(record)
        return record.dead_stream if queue is None else queue.stream

    def _range(self, record: QueueRecord, wanted: DeadLetterFilter, from_sequence: int) -> ScanRange:
        since, until = (None if time is None else epoch_ms(time) for time in (wanted.since, wanted.until))
        queue = self.queue_of(record)
        subjects = _subjects(record, wanted) if queue is None else queue.ready_subjects
        return ScanRange(self._stream(record), subjects, from_sequence, since, until)


def _with_origin(message: StoredMessage, queue: str, letter: DeadLetter) -> StoredMessage:
    origin = DeadLetterOrigin(
        queue=queue,
        reason=letter.reason,
        attempts=letter.attempts,
        dead_at=rfc3339(letter.dead_at),
        last_error=letter.last_error,
    )
    return msgspec.structs.replace(message, dead=origin, expires=0, unique="", priority="normal")


def _read_queued(source: str, entry: Entry, compiled: CompiledFilter, wanted: DeadLetterFilter) -> StoredDeadLetter | None:
    """The dead letter of a message in a dead-letter queue, None if it comes from another queue or does not match."""
    if not compiled.may_match(entry.payload):
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    origin = message.dead
    if origin is None or origin.queue != source or not compiled.matches(message):
        return None
    letter = DeadLetter(
        v=1,
        reason=origin.reason,
        last_error=origin.last_error,
        attempts=origin.attempts,
        dead_at=time_ms(origin.dead_at),
        message=msgspec.Raw(entry.payload),
    )
    return StoredDeadLetter(entry.sequence, letter, message) if _is_wanted(letter, message, wanted) else None


def _read(entry: Entry, compiled: CompiledFilter = _ANY, wanted: DeadLetterFilter = _EVERY) -> StoredDeadLetter | None:
    """The dead letter, or None if it does not match or cannot be decoded."""
    if not compiled.may_match(entry.payload):
        return None
    try:
        letter = with_last_error(decode_dead_letter(entry.payload))
        message = read_message(bytes(letter.message))
        rfc3339(letter.dead_at), rfc3339(letter.first_failed_at or 0)
    except (ValueError, RecursionError, OverflowError, OSError):
        log.error("dead_letter_unreadable", subject=entry.subject, sequence=entry.sequence)
        return None
    if not compiled.matches(message) or not _is_wanted(letter, message, wanted):
        return None
    return StoredDeadLetter(entry.sequence, letter, message)


def _subjects(record: QueueRecord, wanted: DeadLetterFilter) -> tuple[str, ...]:
    """Those of the ids that the filter names: these dead letters are read, and no others."""
    ids = wanted.message_ids or ([] if wanted.message_id is None else [wanted.message_id])
    if not ids or not all(_ID.fullmatch(one) for one in ids):
        return (f"{record.dead_subject}.*",)
    return tuple(f"{record.dead_subject}.{one}" for one in dict.fromkeys(ids))


def _is_wanted(letter: DeadLetter, message: StoredMessage, wanted: DeadLetterFilter) -> bool:
    return (
        (wanted.message_ids is None or message.id in wanted.message_ids)
        and (wanted.redrive is None or message.redrive == wanted.redrive)
        and (wanted.reason is None or letter.reason == wanted.reason)
        and (wanted.error is None or wanted.error in (letter.last_error or letter.reason))
        and (wanted.error_group is None or group_of_letter(letter) == wanted.error_group)
    )


def _failure_key(record: QueueRecord, message_id: str) -> str:
    return f"{record.tenant}.{escape(record.name)}.{message_id}"
