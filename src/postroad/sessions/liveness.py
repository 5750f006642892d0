"""Liveness of subscribed sessions: finds those that have expired, and ends them.

A session's expiry only moves forward, and whatever else ends it takes it off the subscriber lists in the same step. So an expiry
that was read once holds until it has passed, and only then the record is read again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import SESSION_PREFIX, streams_store
from postroad.sessions.lifecycle import CleanupOutcome
from postroad.sessions.records import Subscriber
from postroad.streams.records import State, decode_record
from postroad.streams.store import StreamName

_READ_MAX = 500  # records of one request
_CONCURRENCY = 10
_CHECK_AGAIN_MS = 1000  # for a session that was touched just now, or that could not be ended
_KNOWN_MAX = 200_000

EndIfExpired = Callable[[str, str], Awaitable[tuple[CleanupOutcome, int]]]

log = structlog.get_logger("postroad.sessions")


class SessionLiveness:
    """Known expiries of the sessions in the lists of this process."""

    def __init__(self, connection: Connection, end_if_expired: EndIfExpired, clock: Clock) -> None:
        self._connection, self._end_if_expired, self.now = connection, end_if_expired, clock
        self._live_until_ms: dict[tuple[str, str], int] = {}

    async def end_stale(self, tenant: str, subscribers: Sequence[Subscriber], now_ms: int) -> tuple[Sequence[Subscriber], int]:
        """End the sessions that are no longer live. Returns them, and the time at which the next one may expire."""
        known = self._live_until_ms
        if len(known) > _KNOWN_MAX:
            known.clear()
        due = [one for one in subscribers if known.get((tenant, one.session), 0) <= now_ms]
        stale: list[Subscriber] = []
        for start in range(0, len(due), _READ_MAX):
            some = due[start : start + _READ_MAX]
            expiries = await self._expiries(tenant, some)
            for one in some:
                known[tenant, one.session] = expires = expiries.get(SESSION_PREFIX + one.session, 0)
                if expires <= now_ms:
                    stale.append(one)
        ended = await self._end(tenant, stale, now_ms)
        return ended, min((known[tenant, one.session] for one in subscribers), default=now_ms)

    async def _expiries(self, tenant: str, subscribers: Sequence[Subscriber]) -> dict[str, int]:
        """Expiry of each live session by the id of its stream."""
        subjects = [StreamName(tenant, SESSION_PREFIX + one.session).record for one in subscribers]
        entries = await stream_reader.newest(self._connection, streams_store(tenant), subjects)
        records = [decode_record(entry.payload) for entry in entries]
        return {
            record.id: record.expires_at_ms or 0 for record in records if record.state is State.LIVE and record.is_session_stream
        }

    async def _end(self, tenant: str, stale: Sequence[Subscriber], now_ms: int) -> list[Subscriber]:
        """The sessions that were ended. One that was touched meanwhile is live."""
        ended: list[Subscriber] = []
        for start in range(0, len(stale), _CONCURRENCY):
            some = stale[start : start + _CONCURRENCY]
            outcomes = await asyncio.gather(*(self._end_one(tenant, one.session) for one in some))
            for one, is_ended in zip(some, outcomes, strict=True):
                if is_ended:
                    ended.append(one)
                else:
                    self._live_until_ms[tenant, one.session] = now_ms + _CHECK_AGAIN_MS
        return ended

    async def _end_one(self, tenant: str, session: str) -> bool:
        try:
            outcome, _ = await self._end_if_expired(tenant, session)
        except PostroadError as problem:
            log.warning("session_not_ended", session=session, code=problem.code)
            return False
        return outcome is CleanupOutcome.ENDED
