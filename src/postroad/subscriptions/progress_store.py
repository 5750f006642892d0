"""Stored progress of cursors: the newest record of each, replaced on condition that it is still the one that was read.

The condition is what makes a takeover safe: after a process took a cursor over, no write of the previous owner succeeds.
"""

from dataclasses import dataclass

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream
from postroad.jetstream.protocol import header_lines
from postroad.kernel.ids import new_id
from postroad.subscriptions.records import LIVE_CURSOR, ProgressRecord, SubscriptionRecord, progress_subject

PROGRESS_STREAM = "PROGRESS"

_decode = msgspec.json.Decoder(ProgressRecord).decode
_encode = msgspec.json.Encoder().encode


def progress_stream(replicas: int) -> StreamSpec:
    options = {
        "max_msgs_per_subject": 1,
        "allow_atomic": True,
        "num_replicas": replicas,
        "duplicate_window": 60_000_000_000,
    }
    return StreamSpec(PROGRESS_STREAM, ("progress.>",), options)


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """A record with the revision that replaces it."""

    record: ProgressRecord | None
    revision: int


class ProgressStore:
    def __init__(self, connection: Connection, committers: Committers) -> None:
        self._connection, self._committers = connection, committers

    async def load(self, record: SubscriptionRecord, cursor: str = LIVE_CURSOR) -> StoredProgress:
        """The newest record; none, at revision 0, before the first. A record that cannot be decoded counts as none."""
        entry = await stream_reader.last(self._connection, PROGRESS_STREAM, progress_subject(record, cursor))
        if entry is None:
            return StoredProgress(None, 0)
        try:
            return StoredProgress(_decode(entry.payload), entry.sequence)
        except msgspec.DecodeError:
            return StoredProgress(None, entry.sequence)

    async def store(self, record: SubscriptionRecord, cursor: str, progress: ProgressRecord, revision: int) -> int:
        """Replace the progress of this revision; return the new one. Raises Conflict, EngineUnavailable."""
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", str(revision))])
        subject = progress_subject(record, cursor)
        message = PendingMessage(subject, _encode(progress), new_id(), headers, is_conditional=True)
        return (await self._committers.of(PROGRESS_STREAM).append(message, uses_reserve=True)).sequence

    async def delete(self, record: SubscriptionRecord, cursor: str | None = None) -> None:
        """Delete the progress of one cursor, or of all cursors of a subscription."""
        await purge_stream(self._connection, PROGRESS_STREAM, progress_subject(record, cursor or "*"))

    async def delete_tenant(self, tenant: str) -> None:
        await purge_stream(self._connection, PROGRESS_STREAM, f"progress.{tenant}.>")
