"""Dead letters: messages that were given up, kept with the reason until somebody looks after them.

One stream per tenant, one subject per message, which keeps the latest: a message that is given up twice (a crash came between its
burial and its acknowledgement) is there once, and can be found, put back and dropped by its id. Each burial has a sequence of
its own, so whoever drops what was seen cannot drop what was buried since.
"""

from collections import Counter
from dataclasses import dataclass

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.api_errors import NO_SUCH_MESSAGE, ApiFailure
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import MessageNotFound
from postroad.kernel.names import dead_stream, escape
from postroad.queues.filters import CompiledFilter, MessageFilter
from postroad.queues.rules import (
    DeadLetter,
    Failure,
    QueueRecord,
    StoredMessage,
    decode_dead,
    decode_failure,
    encode_message,
    read_message,
)
from postroad.queues.scan import Found, Span, scan

FAILURES_BUCKET = "postroad_failures"
_FAILURE_SECONDS = 15 * 86_400
_REASON_CHARS_MAX = 1000
_GROUPED_MAX = 1000

log = structlog.get_logger("postroad.queues")


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter, where it is, and the message that it was."""

    sequence: int
    letter: DeadLetter
    message: StoredMessage


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one reason."""

    reason: str
    count: int
    first_at_ms: int
    last_at_ms: int


class DeadLetters:
    def __init__(self, connection: Connection, committers: Committers, failures: Bucket, clock: Clock, *, replicas: int) -> None:
        self._connection, self._committers, self._failures, self._clock = connection, committers, failures, clock
        self._replicas = replicas
        self._made: set[str] = set()

    async def ensure(self, tenant: str) -> None:
        """The tenant's stream of dead letters, made when its first queue is."""
        if tenant in self._made:
            return
        options = {
            "max_msgs_per_subject": 1,
            "allow_atomic": True,
            "num_replicas": self._replicas,
            "duplicate_window": 60_000_000_000,
        }
        await ensure_stream(self._connection, StreamSpec(dead_stream(tenant), (f"d.{tenant}.>",), options))
        self._made.add(tenant)

    async def delete_all(self, tenant: str) -> None:
        await delete_stream(self._connection, dead_stream(tenant))

    # Burying

    async def note_failure(self, record: QueueRecord, message_id: str, reason: str) -> None:
        """Remember why an attempt failed, for the day on which the message is given up."""
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

    async def bury(
        self,
        record: QueueRecord,
        message: StoredMessage,
        sequence: int,
        attempts: int,
        reason: str,
        last_error: str | None = None,
    ) -> DeadLetter:
        """Return once the dead letter is durable, with what is stored: if somebody was quicker with the same delivery, theirs.
        `sequence` is the message's in its queue."""
        known = await self._failure(_failure_key(record, message.id)) if attempts > 1 else None
        letter = DeadLetter(
            v=1,
            reason=reason[:_REASON_CHARS_MAX],
            last_error=last_error[:_REASON_CHARS_MAX] if last_error else known.reason if known else None,
            attempts=attempts,
            first_failed_at=known.first_at if known else None,
            dead_at=self._clock(),
            message=msgspec.Raw(encode_message(message)),
        )
        # The id says which copy of the message this is: one that was put back and dies again is another.
        burial = f"{record.incarnation}/{sequence}/{attempts}"
        draft = PendingMessage(f"{record.dead_subject}.{message.id}", msgspec.json.encode(letter), burial)
        stored = await self._committers.of(record.dead_stream).append(draft)
        entry = await stream_reader.at(self._connection, record.dead_stream, stored.sequence) if stored.is_duplicate else None
        first = _dead(entry, CompiledFilter(MessageFilter())) if entry is not None else None
        return letter if first is None else first.letter

    # Looking

    async def page(
        self,
        record: QueueRecord,
        wanted: MessageFilter,
        *,
        limit: int,
        from_sequence: int = 1,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Found[StoredDeadLetter]:
        sieve = CompiledFilter(wanted)
        span = Span(record.dead_stream, f"{record.dead_subject}.*", from_sequence, since_ms, until_ms)
        return await scan(self._connection, span, lambda entry: _dead(entry, sieve), limit)

    async def groups(
        self, record: QueueRecord, wanted: MessageFilter, from_sequence: int, since_ms: int | None, until_ms: int | None
    ) -> tuple[list[DeadLetterGroup], Found[StoredDeadLetter]]:
        """By reason, largest first, over as many as a search looks at."""
        found = await self.page(
            record, wanted, limit=_GROUPED_MAX, from_sequence=from_sequence, since_ms=since_ms, until_ms=until_ms
        )
        counts = Counter(dead.letter.reason for dead in found.items)
        groups = []
        for reason, count in counts.most_common():
            times = [dead.letter.dead_at for dead in found.items if dead.letter.reason == reason]
            groups.append(DeadLetterGroup(reason, count, min(times), max(times)))
        return groups, found

    async def find(self, record: QueueRecord, message_id: str) -> StoredDeadLetter:
        """Raises MessageNotFound."""
        entry = None
        if message_id.replace("-", "").isalnum() and message_id.isascii():
            entry = await stream_reader.last(self._connection, record.dead_stream, f"{record.dead_subject}.{message_id}")
        dead = _dead(entry, CompiledFilter(MessageFilter())) if entry else None
        if dead is None:
            raise MessageNotFound(f"{message_id[:64]!r} is not among the dead letters of {record.name!r}")
        return dead

    async def count(self, record: QueueRecord) -> int:
        page = await stream_reader.read(self._connection, record.dead_stream, f"{record.dead_subject}.*", 1, 1)
        return len(page.entries) + page.remaining

    async def top(self, record: QueueRecord) -> int:
        """The sequence that everything buried so far is at or below."""
        info = await stream_info(self._connection, record.dead_stream)
        return info.state.last_seq if info else 0

    # Dropping

    async def drop(self, record: QueueRecord, sequence: int) -> None:
        """One that is gone already is as good."""
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{record.dead_stream}", {"seq": sequence, "no_erase": True}, timeout=5)
        except ApiFailure as failure:
            if failure.error.err_code not in NO_SUCH_MESSAGE:
                raise

    async def drop_all(self, record: QueueRecord) -> int:
        return await purge_stream(self._connection, record.dead_stream, f"{record.dead_subject}.*")


def _dead(entry: Entry, sieve: CompiledFilter) -> StoredDeadLetter | None:
    if not sieve.may_take(entry.payload):
        return None
    try:
        letter = decode_dead(entry.payload)
        message = read_message(bytes(letter.message))
        rfc3339(letter.dead_at), rfc3339(letter.first_failed_at or 0)
    except (ValueError, RecursionError, OverflowError, OSError):
        log.error("dead_letter_unreadable", subject=entry.subject, sequence=entry.sequence)
        return None
    return (
        StoredDeadLetter(entry.sequence, letter, message) if sieve.takes_reason(letter.reason) and sieve.takes(message) else None
    )


def _failure_key(record: QueueRecord, message_id: str) -> str:
    return f"{record.tenant}.{escape(record.name)}.{message_id}"
