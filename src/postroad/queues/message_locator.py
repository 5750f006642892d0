"""Finds the message of a job in the stream of its queue.

A message of another backend is found while it is delayed or waits for a retry. Others:

A ready message has no subject of its own, but its events have its sequence. Only of a delayed or deferred message that became
ready, and was not leased yet, the sequence is unknown: it is searched from the time when it was due.
"""

from dataclasses import dataclass

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import Overloaded
from postroad.queues.records import QueueRecord, StoredMessage, read_message

_PAGE_SIZE = 500
_PAGE_BYTES = 1024 * 1024
_PAGES_MAX = 40
_EARLY_MS = 1_000  # the clocks of gateways and engine are synchronised much better


@dataclass(frozen=True, slots=True)
class LocatedMessage:
    """A message and its entry in the stream. `is_delayed`: it is not ready yet."""

    entry: Entry
    message: StoredMessage
    is_delayed: bool


class MessageLocator:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find(self, record: QueueRecord, message_id: str, sequence: int, due_at_ms: int) -> LocatedMessage | None:
        """`sequence` is the last one known, or 0; the message became ready at `due_at_ms` or later. None if it is not there.

        Raises EngineUnavailable, and Overloaded if too many messages became ready since.
        """
        if sequence and record.is_readable:
            known = await stream_reader.at(self._connection, record.stream, sequence)
            if known is not None and (found := _located(known, message_id)) is not None:
                return found
        for subject in record.scheduled_subjects(message_id):
            entry = await stream_reader.last(self._connection, record.stream, subject)
            if entry is not None and (found := _located(entry, message_id)) is not None:
                return found
        for subject in (*record.deferred_subjects, *record.ready_subjects) if record.is_readable else ():
            found = await self._search(record, subject, message_id, due_at_ms)
            if found is not None:
                return found
        return None

    async def _search(self, record: QueueRecord, subject: str, message_id: str, due_at_ms: int) -> LocatedMessage | None:
        page = await stream_reader.read_since(self._connection, record.stream, subject, due_at_ms - _EARLY_MS, _PAGE_SIZE)
        for _ in range(_PAGES_MAX):
            for entry in page.entries:
                found = _located(entry, message_id)
                if found is not None:
                    return found
            if page.is_end:
                return None
            async with self._connection.scans:
                page = await stream_reader.read(
                    self._connection, record.stream, subject, page.next_sequence, _PAGE_SIZE, _PAGE_BYTES
                )
        raise Overloaded(
            f"the message was not found among the {_PAGES_MAX * _PAGE_SIZE} oldest that became ready since it was due; "
            "it is found once it was leased",
            retry_after=30,
        )


def _located(entry: Entry, message_id: str) -> LocatedMessage | None:
    if message_id.encode() not in entry.payload:
        return None
    try:
        message = read_message(entry.payload)
    except ValueError:
        return None
    return LocatedMessage(entry, message, "Nats-Schedule" in entry.headers) if message.id == message_id else None
