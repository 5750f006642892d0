"""Dead letters of subscriptions: messages that an endpoint refused or did not accept in time, with the reason.

They are in the tenant's stream of dead letters, on `d.<tenant>.s.<subscription>.<sequence>`, the latest of each.
"""

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.subscriptions import (
    SubscriptionDeadGroup,
    SubscriptionDeadLetter,
    SubscriptionDeadLetterFilter,
)
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_message, purge_stream
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import rfc3339
from postroad.kernel.matching import pattern_matches
from postroad.kernel.names import dead_stream
from postroad.queues.dead_letters import DeadLetters
from postroad.subscriptions.records import SubscriptionRecord
from postroad.topics.records import StoredTopicMessage, json_payload

_SCAN_MAX = 5_000  # dead letters that one request compares
_PAGE_SIZE = 256

log = structlog.get_logger("postroad.subscriptions")


class StoredDeadDelivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a dead letter of a subscription."""

    v: int = 1
    seq: int
    at: int
    subject: str
    nats: str
    headers: dict[str, str] = {}
    type: str | None = None
    trace: str | None = None
    hops: int = 0
    group: str | None = None
    ext: str | None = None
    body: str
    reason: str
    attempts: int
    dead_at: int

    @property
    def message(self) -> StoredTopicMessage:
        return StoredTopicMessage(
            sequence=self.seq,
            at_ms=self.at,
            subject=self.subject,
            nats_subject=self.nats,
            headers=self.headers,
            content_type=self.type,
            traceparent=self.trace,
            hops=self.hops,
            body=base64.b64decode(self.body),
            extension=self.ext,
            group=self.group,
        )


_decode = msgspec.json.Decoder(StoredDeadDelivery).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class FoundDeadLetter:
    """A dead letter with its sequence in the stream of dead letters."""

    position: int
    letter: StoredDeadDelivery


@dataclass(frozen=True, slots=True)
class DeadLetterScan:
    """What one scan found. `next_position` is where the next one starts; None at the end."""

    found: list[FoundDeadLetter]
    scanned: int
    next_position: int | None


class SubscriptionDeadLetterStore:
    def __init__(self, connection: Connection, committers: Committers, queues: DeadLetters) -> None:
        self._connection, self._committers, self._queues = connection, committers, queues

    async def ensure(self, tenant: str) -> None:
        """Create the tenant's stream of dead letters, which its queues use, too."""
        await self._queues.ensure_stream(tenant)

    async def store(
        self, record: SubscriptionRecord, message: StoredTopicMessage, reason: str, attempts: int, now_ms: int
    ) -> None:
        """Return once the dead letter is durable. Storing the same message again replaces it."""
        letter = StoredDeadDelivery(
            seq=message.sequence,
            at=message.at_ms,
            subject=message.subject,
            nats=message.nats_subject,
            headers=dict(message.headers),
            type=message.content_type,
            trace=message.traceparent,
            hops=message.hops,
            group=message.group,
            ext=message.extension,
            body=base64.b64encode(message.body).decode(),
            reason=reason,
            attempts=attempts,
            dead_at=now_ms,
        )
        subject = f"{_subject(record)}.{message.sequence}"
        pending = PendingMessage(subject, _encode(letter), f"{record.incarnation}/{message.sequence}/{now_ms}")
        await self._committers.of(dead_stream(record.tenant)).append(pending, uses_reserve=True)

    async def scan(
        self, record: SubscriptionRecord, wanted: SubscriptionDeadLetterFilter, limit: int, position: int = 1
    ) -> DeadLetterScan:
        """Up to `limit` dead letters that match, oldest first, among the next some thousands."""
        found: list[FoundDeadLetter] = []
        scanned = 0
        while True:
            page = await stream_reader.read(
                self._connection, dead_stream(record.tenant), f"{_subject(record)}.*", position, _PAGE_SIZE
            )
            for entry in page.entries:
                scanned += 1
                position = entry.sequence + 1
                letter = _read(entry)
                if letter is not None and _matches(letter, wanted):
                    found.append(FoundDeadLetter(entry.sequence, letter))
                    if len(found) >= limit:
                        is_end = page.is_end and entry is page.entries[-1]
                        return DeadLetterScan(found, scanned, None if is_end else position)
            if page.is_end:
                return DeadLetterScan(found, scanned, None)
            if scanned >= _SCAN_MAX:
                return DeadLetterScan(found, scanned, position)

    async def count(self, record: SubscriptionRecord, wanted: SubscriptionDeadLetterFilter | None = None) -> int:
        """The number of dead letters that match; without a filter, of all."""
        if wanted is None or wanted.is_empty:
            page = await stream_reader.read(self._connection, dead_stream(record.tenant), f"{_subject(record)}.*", 1, 1)
            return len(page.entries) + page.remaining
        count, position = 0, 1
        while True:
            scan = await self.scan(record, wanted, _SCAN_MAX, position)
            count += len(scan.found)
            if scan.next_position is None:
                return count
            position = scan.next_position

    async def remove(self, record: SubscriptionRecord, position: int) -> None:
        """Delete the dead letter at this position. Idempotent."""
        await delete_message(self._connection, dead_stream(record.tenant), position)

    async def remove_all(self, record: SubscriptionRecord) -> int:
        return await purge_stream(self._connection, dead_stream(record.tenant), f"{_subject(record)}.*")


def groups_of(found: Iterable[FoundDeadLetter]) -> list[SubscriptionDeadGroup]:
    """Counts by reason, largest group first."""
    letters = [one.letter for one in found]
    groups = []
    for reason, count in Counter(letter.reason for letter in letters).most_common():
        times = [letter.dead_at for letter in letters if letter.reason == reason]
        groups.append(
            SubscriptionDeadGroup(reason=reason, count=count, first_at=rfc3339(min(times)), last_at=rfc3339(max(times)))
        )
    return groups


def dead_letter_of(letter: StoredDeadDelivery) -> SubscriptionDeadLetter:
    payload = json_payload(letter.message)
    return SubscriptionDeadLetter(
        sequence=letter.seq,
        subject=letter.subject,
        reason=letter.reason,
        attempt_count=letter.attempts,
        dead_at=rfc3339(letter.dead_at),
        published_at=rfc3339(letter.at),
        headers=letter.headers,
        payload=payload,
        body_b64=letter.body if payload is None else None,
    )


def _read(entry: Entry) -> StoredDeadDelivery | None:
    try:
        letter = _decode(entry.payload)
        base64.b64decode(letter.body, validate=True)
    except (ValueError, RecursionError):
        log.error("dead_letter_unreadable", subject=entry.subject, sequence=entry.sequence)
        return None
    return letter


def _matches(letter: StoredDeadDelivery, wanted: SubscriptionDeadLetterFilter) -> bool:
    return (
        (wanted.reason is None or letter.reason == wanted.reason)
        and (wanted.subject is None or pattern_matches(wanted.subject, letter.subject))
        and (wanted.sequences is None or letter.seq in wanted.sequences)
        and (wanted.search is None or wanted.search in letter.message.body.decode("utf-8", "replace"))
    )


def _subject(record: SubscriptionRecord) -> str:
    return f"d.{record.tenant}.s.{record.incarnation}"
