"""Markers of messages that are done, in the stream of their queue.

AMQP does not confirm acknowledgements: of those sent just before a connection breaks, RabbitMQ may process none. So a message is
marked before its ack is answered, and a redelivered message with a marker is acknowledged without being delivered.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.protocol import header_lines
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.queues.message_writes import ttl_header
from postroad.queues.rabbitmq.messages import DIRECT_COPY, ReceivedMessage, sequence_of
from postroad.queues.records import ACK_MARK, QueueRecord, StoredMessage, encode_message

_REPLACED = b"replaced"  # by a copy that is in the outbox


def marker_write(record: QueueRecord, sequence: int, copy: str, kind: bytes, ttl_ms: int) -> PendingMessage:
    headers = header_lines([("Nats-TTL", ttl_header(ttl_ms))])
    return PendingMessage(record.ack_marker_subject(sequence, copy), kind, new_id(), headers)


def retry_write(record: QueueRecord, message: StoredMessage, due_at_ms: int) -> PendingMessage:
    headers = [("Nats-Schedule", f"@at {rfc3339(due_at_ms)}"), ("Nats-Schedule-Target", f"{record.subject}.ready")]
    return PendingMessage(record.retry_subject(message.id), encode_message(message), new_id(), header_lines(headers))


def purge_subject(record: QueueRecord) -> str:
    """Subject of the time of the latest purge: messages from before that return later are dropped."""
    return f"{record.subject}.purged"


@dataclass(frozen=True, slots=True)
class LatestPurge:
    at_ms: int
    sequence: int  # in the stream

    def includes(self, message: ReceivedMessage) -> bool:
        """True for a message from before the purge. What was in the outbox has its sequence there, which is exact; a dead letter
        from before that was redriven later has another one."""
        if message.copy != DIRECT_COPY and message.copy.isdigit():
            return int(message.copy) < self.sequence
        return message.stored.at <= self.at_ms


class AckMarkers:
    def __init__(self, connection: Connection, committers: Committers, ttl_ms: int) -> None:
        self._connection, self._committers, self.ttl_ms = connection, committers, ttl_ms

    async def mark(self, record: QueueRecord, done: Sequence[tuple[int, str]]) -> list[PostroadError | None]:
        """Mark messages, by number and copy, as done; the error of each that is not marked."""
        committer = self._committers.of(record.stream)
        writes = [marker_write(record, sequence, copy, ACK_MARK, self.ttl_ms) for sequence, copy in done]
        outcomes = await asyncio.gather(*(committer.append(write, uses_reserve=True) for write in writes), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, PostroadError):
                raise outcome
        return [one if isinstance(one, PostroadError) else None for one in outcomes]

    async def replace(self, record: QueueRecord, message: StoredMessage, copy: str, due_at_ms: int) -> None:
        """Store the copy of a message for its next attempt, and mark the present one, in one batch."""
        marker = marker_write(record, sequence_of(message.id, copy), copy, _REPLACED, self.ttl_ms)
        writes = (retry_write(record, message, due_at_ms), marker)
        await self._committers.of(record.stream).append_together(writes, uses_reserve=True)

    async def are_marked(self, record: QueueRecord, keys: Sequence[tuple[int, str]]) -> list[bool]:
        entries = await asyncio.gather(
            *(stream_reader.last(self._connection, record.stream, record.ack_marker_subject(*key)) for key in keys)
        )
        return [entry is not None for entry in entries]

    async def latest_purge(self, record: QueueRecord) -> LatestPurge | None:
        entry = await stream_reader.last(self._connection, record.stream, purge_subject(record))
        return None if entry is None else LatestPurge(int(entry.payload), entry.sequence)

    async def mark_purge(self, record: QueueRecord, at_ms: int) -> None:
        headers = header_lines([("Nats-Rollup", "sub")])
        write = PendingMessage(purge_subject(record), str(at_ms).encode(), new_id(), headers)
        await self._committers.of(record.stream).append(write, uses_reserve=True)
