"""Cancelled messages: stored with the dead letters of the tenant before they leave their queue. So the job can be retried, and
after a crash in between it is known why the message is gone. They expire."""

from typing import NamedTuple

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_message
from postroad.jetstream.protocol import header_lines
from postroad.kernel.clock import Clock
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.records import (
    CancelledMessage,
    QueueRecord,
    StoredMessage,
    decode_cancelled_message,
    encode_message,
    read_message,
)

CANCELLED_KEEP_SECONDS = 7 * 86_400


class StoredCancelledMessage(NamedTuple):
    sequence: int
    letter: CancelledMessage
    message: StoredMessage


class CancelledMessages:
    def __init__(self, connection: Connection, committers: Committers, dead_letters: DeadLetters, clock: Clock) -> None:
        self._connection, self._committers, self._dead_letters, self._clock = connection, committers, dead_letters, clock

    async def store(
        self, record: QueueRecord, message: StoredMessage, sequence: int, *, attempts: int, lease_until: int, reason: str | None
    ) -> CancelledMessage:
        """Return once the message is durable here. `sequence` is its sequence in the queue; a repetition changes nothing."""
        await self._dead_letters.ensure_stream(record.tenant)
        now = self._clock()
        letter = CancelledMessage(
            v=1,
            reason=reason,
            attempts=attempts,
            lease_until=lease_until,
            cancelled_at=now,
            kept_until=now + CANCELLED_KEEP_SECONDS * 1000,
            message=msgspec.Raw(encode_message(message)),
        )
        pending = PendingMessage(
            _subject(record, message.id),
            msgspec.json.encode(letter),
            f"{record.incarnation}/{sequence}/cancelled",
            header_lines([("Nats-TTL", f"{CANCELLED_KEEP_SECONDS}s")]),
        )
        ack = await self._committers.of(record.dead_stream).append(pending, uses_reserve=True)
        first = await self.find(record, message.id) if ack.is_duplicate else None
        return letter if first is None else first.letter

    async def find(self, record: QueueRecord, message_id: str) -> StoredCancelledMessage | None:
        entry = await stream_reader.last(self._connection, record.dead_stream, _subject(record, message_id))
        if entry is None:
            return None
        try:
            letter = decode_cancelled_message(entry.payload)
            return StoredCancelledMessage(entry.sequence, letter, read_message(bytes(letter.message)))
        except (ValueError, RecursionError):
            return None

    async def remove(self, record: QueueRecord, sequence: int) -> None:
        """Idempotent."""
        await delete_message(self._connection, record.dead_stream, sequence)


def _subject(record: QueueRecord, message_id: str) -> str:
    return f"{record.dead_subject}.{message_id}.cancelled"
