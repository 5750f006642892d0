"""Lifecycle of sessions: look up, delete, expire."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from postroad.api.sessions import SessionNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.names import SESSION_PREFIX, streams_store
from postroad.sessions import metrics
from postroad.sessions.events import SessionEnded
from postroad.sessions.records import Ending, SessionRecord, decode_session, encode, session_subject
from postroad.sessions.subscribers import leave_message
from postroad.streams.directory import removed_message
from postroad.streams.records import State
from postroad.streams.rules import StreamSnapshot, existing_record
from postroad.streams.store import LAST_ONLY, StreamName, StreamStore, precondition, record_message
from postroad.telemetry.outbox import Outbox

LEAVES_MAX = 900  # subscriptions that end in one batch, which has at most 1,000 messages
_RECORDS_MAX = 500  # of one read


class CleanupOutcome(StrEnum):
    ENDED = "ended"
    ALIVE = "alive"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """Stored state of a session: its record, and its stream."""

    record: SessionRecord | None
    record_at: int
    stream: StreamSnapshot


class SessionLifecycle:
    def __init__(self, connection: Connection, committers: Committers, store: StreamStore, outbox: Outbox, clock: Clock) -> None:
        self._connection, self._committers, self._store, self._outbox, self._clock = connection, committers, store, outbox, clock

    # Look up

    async def snapshot(self, tenant: str, session: str) -> SessionSnapshot:
        """Current state of a session, whether it exists or not."""
        name, subject = StreamName(tenant, SESSION_PREFIX + session), session_subject(tenant, session)
        stream = await self._store.snapshot(name)
        entry = await stream_reader.last(self._connection, name.store, subject)
        if entry is None:
            return SessionSnapshot(None, 0, stream)
        return SessionSnapshot(decode_session(entry.payload), entry.sequence, stream)

    async def records(self, tenant: str, sessions: Sequence[str]) -> list[SessionRecord | None]:
        """The records of several sessions, in their order."""
        if not sessions:
            return []
        subjects = [session_subject(tenant, session) for session in sessions]
        found: dict[str, SessionRecord] = {}
        for start in range(0, len(subjects), _RECORDS_MAX):
            some = subjects[start : start + _RECORDS_MAX]
            entries = await stream_reader.newest(self._connection, streams_store(tenant), some)
            found |= {entry.subject: decode_session(entry.payload) for entry in entries}
        return [found.get(subject) for subject in subjects]

    async def find(self, tenant: str, session: str) -> tuple[SessionRecord, SessionSnapshot]:
        """A session that exists. Raises SessionNotFound."""
        snapshot = await self.snapshot(tenant, session)
        if snapshot.record is None or not self.is_live(snapshot.stream):
            raise SessionNotFound(f"there is no session {session[:128]!r}, or it has expired")
        return snapshot.record, snapshot

    def has_stream(self, stream: StreamSnapshot) -> bool:
        try:
            existing_record(stream, self._clock())
        except PostroadError:
            return False
        return True

    def is_live(self, stream: StreamSnapshot) -> bool:
        """True if the stream exists and is a session's. A stream created by a user after the session was deleted is not."""
        return self.has_stream(stream) and stream.record is not None and stream.record.is_session_stream

    # End

    @retry_on_conflict("the session")
    async def delete(self, tenant: str, session: str) -> None:
        """Raises SessionNotFound."""
        record, snapshot = await self.find(tenant, session)
        await self._end(tenant, record, snapshot, is_expired=False)
        metrics.count("session", "session_delete")

    async def end_by_stream(self, tenant: str, stream: str) -> bool:
        """End the session whose stream is to be deleted; false if the stream is no session's."""
        try:
            await self.delete(tenant, stream.removeprefix(SESSION_PREFIX))
        except SessionNotFound:
            return False
        return True

    @retry_on_conflict("the session")
    async def end_if_expired(self, tenant: str, session: str) -> tuple[CleanupOutcome, int]:
        """End the session if it has expired or its stream was deleted. Returns the outcome, and the number of subscriptions of an
        ended session."""
        snapshot = await self.snapshot(tenant, session)
        record = snapshot.record
        if record is None:
            return CleanupOutcome.GONE, 0
        if self.is_live(snapshot.stream):
            return CleanupOutcome.ALIVE, 0
        await self._end(tenant, record, snapshot, is_expired=self._is_expired(record))
        metrics.count("session", "session_expire")
        return CleanupOutcome.ENDED, len(record.subscriptions)

    def _is_expired(self, record: SessionRecord) -> bool:
        """For a session that is not live: true if it expired, false if its stream was deleted."""
        return record.expires_at_ms <= self._clock()

    def record_end(self, tenant: str, record: SessionRecord) -> None:
        """Record the end of an expired session that a new one has replaced."""
        ending = record.ended or self._ending(record, is_expired=self._is_expired(record))
        self._outbox.record(None, _ended_event(tenant, record.id, ending))

    def _ending(self, record: SessionRecord, *, is_expired: bool) -> Ending:
        return Ending(id=new_id(), at_ms=self._clock(), is_expired=is_expired, subscriptions=len(record.subscriptions))

    async def _end(self, tenant: str, record: SessionRecord, snapshot: SessionSnapshot, *, is_expired: bool) -> None:
        """End all subscriptions and the stream in one batch, so that no copy can follow; of many subscriptions, some before it.
        Raises Conflict.

        The record keeps its `ended` until the rest is removed. A repeated call after a crash records the same event again and
        continues.
        """
        name, stream = StreamName(tenant, SESSION_PREFIX + record.id), snapshot.stream.record
        ending, record_at, stream_until = record.ended, snapshot.record_at, snapshot.stream.last
        if ending is None:
            ending = self._ending(record, is_expired=is_expired)
            while len(record.subscriptions) > LEAVES_MAX:
                record, record_at = await self._leave_some(tenant, record, replace(snapshot, record_at=record_at))
            messages = _end_messages(tenant, record, replace(snapshot, record_at=record_at), ending)
            stored = await self._committers.of(streams_store(tenant)).append_together(messages, uses_reserve=True)
            record_at = stored[0].sequence
            stream_until = stored[-1].sequence if len(stored) > 1 else stream_until
        self._outbox.record(None, _ended_event(tenant, record.id, ending))
        if stream is None or (not stream.forks and stream.is_session_stream):
            await self._store.purge(name, stream_until + 1)
        await self._store.purge_subject(tenant, session_subject(tenant, record.id), record_at + 1)

    async def _leave_some(self, tenant: str, record: SessionRecord, snapshot: SessionSnapshot) -> tuple[SessionRecord, int]:
        """End as many subscriptions as fit into a batch. Returns the record with the others and its sequence. Raises Conflict."""
        sources = list(record.subscriptions)
        rest = {source: record.subscriptions[source] for source in sources[LEAVES_MAX:]}
        changed = msgspec.structs.replace(record, subscriptions=rest)
        messages = [session_message(tenant, changed, snapshot.record_at)]
        messages += [leave_message(tenant, source, record.id) for source in sources[:LEAVES_MAX]]
        name = StreamName(tenant, SESSION_PREFIX + record.id)
        condition = precondition(name.record, snapshot.stream.record_at)
        messages[1] = msgspec.structs.replace(messages[1], headers=condition, is_conditional=True)
        stored = await self._committers.of(streams_store(tenant)).append_together(messages, uses_reserve=True)
        return changed, stored[0].sequence


def _end_messages(tenant: str, record: SessionRecord, snapshot: SessionSnapshot, ending: Ending) -> list[PendingMessage]:
    """The ended record, the changes of the subscriber logs, and the deleted stream, unless that is gone or not a session's. Each
    batch depends on the record and the stream, so that neither was created again meanwhile; a batch of the record alone removes
    nothing else."""
    name, stream = StreamName(tenant, SESSION_PREFIX + record.id), snapshot.stream.record
    condition = precondition(name.record, snapshot.stream.record_at)
    ended = msgspec.structs.replace(record, subscriptions={}, ended=ending)
    messages = [session_message(tenant, ended, snapshot.record_at)]
    messages += [leave_message(tenant, source, record.id) for source in record.subscriptions]
    if stream is not None and stream.state is State.LIVE and stream.is_session_stream:
        deleted = msgspec.structs.replace(stream, state=State.SOFT_DELETED if stream.forks else State.DELETED)
        messages += [removed_message(tenant, name.id), record_message(name, deleted, condition)]
    elif len(messages) > 1:
        messages[1] = msgspec.structs.replace(messages[1], headers=condition, is_conditional=True)
    return messages


def session_message(tenant: str, record: SessionRecord, last: int) -> PendingMessage:
    """The new record of a session, in place of the one with the sequence `last`."""
    subject = session_subject(tenant, record.id)
    return PendingMessage(subject, encode(record), new_id(), LAST_ONLY + precondition(subject, last), is_conditional=True)


def _ended_event(tenant: str, session: str, ending: Ending) -> SessionEnded:
    return SessionEnded(
        event_id=ending.id,
        timestamp=rfc3339(ending.at_ms),
        tenant=tenant,
        session_id=session,
        is_expired=ending.is_expired,
        subscriptions=ending.subscriptions,
    )
