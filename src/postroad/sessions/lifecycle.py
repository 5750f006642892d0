"""How sessions are found, and how they end."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import PostroadError, SessionNotFound
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.sessions import metrics
from postroad.sessions.events import SessionEnded
from postroad.sessions.records import STREAM_PREFIX, Ending, SessionRecord, decode_session, encode, session_subject
from postroad.sessions.subscribers import leave_draft
from postroad.streams.records import State
from postroad.streams.rules import StreamSnapshot, found
from postroad.streams.store import Name, Store, precondition, record_draft
from postroad.telemetry.outbox import Outbox


class CleanupOutcome(StrEnum):
    """What a look at a session that may be over came to."""

    ENDED = "ended"
    ALIVE = "alive"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Found:
    """A session as it is stored: its own record, and what is known of its stream."""

    record: SessionRecord | None
    record_at: int
    known: StreamSnapshot


class SessionLifecycle:
    def __init__(self, connection: Connection, committers: Committers, store: Store, outbox: Outbox, clock: Clock) -> None:
        self._connection, self._committers, self._store, self._outbox, self._clock = connection, committers, store, outbox, clock

    # Finding

    async def look(self, tenant: str, session: str) -> Found:
        """Whatever there is."""
        name, subject = Name(tenant, STREAM_PREFIX + session), session_subject(tenant, session)
        known = await self._store.known(name)
        entry = await stream_reader.last(self._connection, name.store, subject)
        if entry is None:
            return Found(None, 0, known)
        return Found(decode_session(entry.payload), entry.sequence, known)

    async def find(self, tenant: str, session: str) -> Found:
        """A session that lives. Raises SessionNotFound."""
        there = await self.look(tenant, session)
        if there.record is None or not self.is_there(there.known):
            raise SessionNotFound("there is no such session, or it has expired")
        return there

    def has_stream(self, known: StreamSnapshot) -> bool:
        try:
            found(known, self._clock())
        except PostroadError:
            return False
        return True

    def is_there(self, known: StreamSnapshot) -> bool:
        """Whether its stream lives and is a session's: one that somebody made after deleting it is not."""
        return self.has_stream(known) and known.record is not None and known.record.is_session_stream

    # Ending

    @retry_on_conflict("the session")
    async def delete(self, tenant: str, session: str) -> None:
        """Raises SessionNotFound."""
        there = await self.find(tenant, session)
        if there.record is not None:
            await self._end(tenant, there.record, there, is_expired=False)
        metrics.count("session", "session_delete")

    @retry_on_conflict("the session")
    async def end_if_over(self, tenant: str, session: str) -> tuple[CleanupOutcome, int]:
        """If the session has expired, or its stream was deleted by itself, end it. What became of it, and how many subscriptions
        it had if it ended."""
        there = await self.look(tenant, session)
        if there.record is None:
            return CleanupOutcome.GONE, 0
        if self.is_there(there.known):
            return CleanupOutcome.ALIVE, 0
        await self._end(tenant, there.record, there, is_expired=self._is_over(there.record))
        metrics.count("session", "session_expire")
        return CleanupOutcome.ENDED, len(there.record.subscriptions)

    def _is_over(self, record: SessionRecord) -> bool:
        """Whether its time was, of one that is no more: else somebody deleted its stream."""
        return record.expires_at_ms <= self._clock()

    def tell_end(self, tenant: str, record: SessionRecord) -> None:
        """Of a session that had ended before anybody noticed, and that another takes the place of now."""
        ending = record.ended or self._ending(record, is_expired=self._is_over(record))
        self._outbox.record(None, _ended(tenant, record.id, ending))

    def _ending(self, record: SessionRecord, *, is_expired: bool) -> Ending:
        return Ending(id=new_id(), at_ms=self._clock(), is_expired=is_expired, subscriptions=len(record.subscriptions))

    async def _end(self, tenant: str, record: SessionRecord, there: Found, *, is_expired: bool) -> None:
        """In one batch it leaves every list it is on and its stream ends, so that no copy can come after. Raises Conflict.

        Its record says how it ended until all else is removed: whoever finds that tells it again, and goes on from there.
        """
        name, stream = Name(tenant, STREAM_PREFIX + record.id), there.known.record
        ending, record_at, stream_until = record.ended, there.record_at, there.known.last
        if ending is None:
            ending = self._ending(record, is_expired=is_expired)
            drafts = self._last_drafts(tenant, record, there, ending)
            stored = await self._committers.of(streams_store(tenant)).append_together(drafts)
            record_at = stored[0].sequence
            stream_until = stored[-1].sequence if len(stored) > 1 else stream_until
        self._outbox.record(None, _ended(tenant, record.id, ending))
        if stream is None or (not stream.forks and stream.is_session_stream):
            await self._store.purge(name, stream_until + 1)
        await self._store.purge_subject(tenant, session_subject(tenant, record.id), record_at + 1)

    def _last_drafts(self, tenant: str, record: SessionRecord, there: Found, ending: Ending) -> list[PendingMessage]:
        """Its record, the lists that it leaves, and its stream, unless that is gone or another's. Nobody can have made either
        anew meanwhile; where there is nothing but the record, nothing else is removed that came since."""
        name, stream = Name(tenant, STREAM_PREFIX + record.id), there.known.record
        condition = precondition(name.record, there.known.record_at)
        drafts = [session_draft(tenant, msgspec.structs.replace(record, subscriptions={}, ended=ending), there.record_at)]
        drafts += [leave_draft(tenant, source, (record.id,)) for source in record.subscriptions]
        if stream is not None and stream.state is State.LIVE and stream.is_session_stream:
            over = msgspec.structs.replace(stream, state=State.HIDDEN if stream.forks else State.DELETED)
            drafts.append(record_draft(name, over, condition))
        elif len(drafts) > 1:
            drafts[1] = msgspec.structs.replace(drafts[1], headers=condition, is_conditional=True)
        return drafts


def session_draft(tenant: str, record: SessionRecord, last: int) -> PendingMessage:
    """In the place of the record that was stored at `last`."""
    subject = session_subject(tenant, record.id)
    return PendingMessage(
        subject, encode(record), new_id(), "Nats-Rollup: sub\r\n" + precondition(subject, last), is_conditional=True
    )


def _ended(tenant: str, session: str, ending: Ending) -> SessionEnded:
    """The event as stored with the record: recording it again gives the same event."""
    return SessionEnded(
        event_id=ending.id,
        timestamp=rfc3339(ending.at_ms),
        tenant=tenant,
        session_id=session,
        is_expired=ending.is_expired,
        subscriptions=ending.subscriptions,
    )
