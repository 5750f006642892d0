"""Markers of messages that are done, in the stream of their queue.

AMQP does not confirm acknowledgements: of those sent just before a connection breaks, RabbitMQ may process none. So a message is
marked before its ack is answered, and a redelivered message with a marker is acknowledged without being delivered.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.protocol import header_lines
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.ids import new_id
from postroad.queues.message_writes import ttl_header
from postroad.queues.rabbitmq.messages import DIRECT_COPY, sequence_of
from postroad.queues.records import ACK_MARK, QueueRecord, StoredMessage, encode_message

PURGE_MARK = b"purged"  # while it was leased
_REPLACED = b"replaced"  # by a copy that is in the outbox


def marker_write(
    record: QueueRecord, sequence: int, copy: str, kind: bytes, ttl_ms: int, *, is_first: bool = False
) -> PendingMessage:
    """`is_first`: on the condition that the message has no marker."""
    headers = [("Nats-TTL", ttl_header(ttl_ms))]
    if is_first:
        headers.append(("Nats-Expected-Last-Subject-Sequence", "0"))
    return PendingMessage(record.ack_marker_subject(sequence, copy), kind, new_id(), header_lines(headers), is_first)


def retry_write(record: QueueRecord, message: StoredMessage, due_at_ms: int) -> PendingMessage:
    headers = [("Nats-Schedule", f"@at {rfc3339(due_at_ms)}"), ("Nats-Schedule-Target", f"{record.subject}.ready")]
    return PendingMessage(record.retry_subject(message.id), encode_message(message), new_id(), header_lines(headers))


def purge_subject(record: QueueRecord) -> str:
    """Subject of the latest purge: copies from before it in the outbox are dropped when they arrive."""
    return f"{record.subject}.purged"


def is_purged(copy: str, purge_sequence: int) -> bool:
    """True for a copy that came into the outbox before the purge; a dead letter that was redriven later is another copy. Clocks
    do not matter: those of two gateways, or of a native program, may differ."""
    return copy != DIRECT_COPY and copy.isdigit() and int(copy) < purge_sequence


class AckMarkers:
    def __init__(self, connection: Connection, committers: Committers, ttl_ms: int) -> None:
        self._connection, self._committers, self.ttl_ms = connection, committers, ttl_ms

    async def mark(
        self, record: QueueRecord, done: Sequence[tuple[int, str]], kind: bytes = ACK_MARK
    ) -> list[PostroadError | None]:
        """Mark messages, by number and copy, as done; the error of each that is not marked."""
        committer = self._committers.of(record.stream)
        writes = [marker_write(record, sequence, copy, kind, self.ttl_ms) for sequence, copy in done]
        outcomes = await asyncio.gather(*(committer.append(write, uses_reserve=True) for write in writes), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, PostroadError):
                raise outcome
        return [one if isinstance(one, PostroadError) else None for one in outcomes]

    async def replace(self, record: QueueRecord, message: StoredMessage, copy: str, due_at_ms: int) -> None:
        """Store the copy of a message for its next attempt, and mark the present one, in one batch. Nothing is stored if the
        message has a marker: it was replaced before, by a request without a response, or purged while it was leased."""
        marker = marker_write(record, sequence_of(message.id, copy), copy, _REPLACED, self.ttl_ms, is_first=True)
        writes = (retry_write(record, message, due_at_ms), marker)
        with contextlib.suppress(Conflict):
            await self._committers.of(record.stream).append_together(writes, uses_reserve=True)

    async def are_marked(self, record: QueueRecord, keys: Sequence[tuple[int, str]]) -> list[bool]:
        entries = await asyncio.gather(
            *(stream_reader.last(self._connection, record.stream, record.ack_marker_subject(*key)) for key in keys)
        )
        return [entry is not None for entry in entries]

    async def purge_sequence(self, record: QueueRecord) -> int:
        """The sequence of the latest purge in the stream, 0 if there was none."""
        entry = await stream_reader.last(self._connection, record.stream, purge_subject(record))
        return 0 if entry is None else entry.sequence

    async def mark_purge(self, record: QueueRecord, at_ms: int) -> None:
        headers = header_lines([("Nats-Rollup", "sub")])
        write = PendingMessage(purge_subject(record), str(at_ms).encode(), new_id(), headers)
        await self._committers.of(record.stream).append(write, uses_reserve=True)
