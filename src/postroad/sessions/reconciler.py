"""Reconciliation in the delivery role: completes unfinished fan-outs and ends expired sessions."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info, subjects_of
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import SESSION_PREFIX, streams_store, unescape
from postroad.sessions import metrics
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.lifecycle import CleanupOutcome
from postroad.sessions.records import decode_session
from postroad.sessions.rules import is_pattern, pattern_matches
from postroad.sessions.service import Sessions
from postroad.streams.records import State, decode_record
from postroad.streams.service import Streams
from postroad.streams.store import StreamName

_PAGE = 500
_CONCURRENCY = 10

log = structlog.get_logger("postroad.sessions")


class SessionReconciler:
    def __init__(
        self,
        connection: Connection,
        sessions: Sessions,
        streams: Streams,
        queue: FanoutQueue,
        tenants: Callable[[], list[str]],
        clock: Clock,
    ) -> None:
        self._connection, self._sessions, self._streams, self._queue = connection, sessions, streams, queue
        self._tenants, self._clock = tenants, clock

    async def run(self, *, complete_seconds: float, clean_seconds: float) -> None:
        """Consume the queue and reconcile in these intervals, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.consume(self._complete))
            group.create_task(self._every(complete_seconds, self.complete_all))
            group.create_task(self._every(clean_seconds, self.clean_all))

    async def _every(self, seconds: float, work: Callable[[str], Coroutine[None, None, int]]) -> None:
        while True:
            count = 0
            for tenant in self._tenants():
                try:
                    count += await work(tenant)
                except PostroadError as problem:
                    log.warning("reconciliation_failed", tenant=tenant, code=problem.code)
            if work == self.complete_all:
                metrics.outstanding.set(count)
            await asyncio.sleep(seconds)

    # Fan-outs

    async def _complete(self, name: StreamName) -> None:
        """Complete a queued fan-out. A job of a deleted tenant is dropped: a look-up would create its store again. A tenant
        that is unknown here may be new, and then it has a store."""
        if name.tenant in self._tenants() or await stream_info(self._connection, streams_store(name.tenant)) is not None:
            await self._sessions.complete(name)

    async def complete_all(self, tenant: str) -> int:
        """Complete the fan-outs of a tenant; returns the number of messages that were outstanding."""
        if not await self._streams.store.exists(tenant):
            return 0
        outstanding = 0
        for stream in await self._sources(tenant):
            outstanding += await self._sessions.complete(StreamName(tenant, stream))
        return outstanding

    async def _sources(self, tenant: str) -> list[str]:
        """Streams with subscribers, by name or by pattern."""
        names = {
            unescape(subject.split(".")[2])
            for subject in await subjects_of(self._connection, streams_store(tenant), f"f.{tenant}.*.u")
        }
        patterns = [name for name in names if is_pattern(name)]
        sources = names - set(patterns)
        if patterns:
            for stream in await self._streams.paths(tenant):
                if any(pattern_matches(pattern, stream) for pattern in patterns):
                    sources.add(stream)
        return sorted(sources)

    # Sessions

    async def clean_all(self, tenant: str) -> int:
        """End the expired sessions of a tenant; returns their number."""
        if not await self._streams.store.exists(tenant):
            return 0
        ended = subscriptions = 0
        now = self._clock()
        streams = await self._session_streams(tenant)
        position = 1
        while True:
            page = await stream_reader.read(self._connection, streams_store(tenant), f"x.{tenant}.>", position, _PAGE)
            records = [decode_session(entry.payload) for entry in page.entries]
            due = [one for one in records if one.expires_at_ms <= now or SESSION_PREFIX + one.id not in streams]
            for start in range(0, len(due), _CONCURRENCY):
                outcomes = await asyncio.gather(
                    *(self._sessions.end_if_expired(tenant, record.id) for record in due[start : start + _CONCURRENCY])
                )
                ended += sum(outcome is CleanupOutcome.ENDED for outcome, _ in outcomes)
                subscriptions += sum(count for _, count in outcomes)
            position = page.next_sequence
            if page.is_end:
                break
        if ended:
            metrics.count("cleanup", "cleanup_batch")
            log.info("sessions_ended", tenant=tenant, sessions=ended, subscriptions=subscriptions)
        return ended

    async def _session_streams(self, tenant: str) -> set[str]:
        """Ids of the streams that belong to sessions, expired ones included."""
        streams: set[str] = set()
        position, is_end = 1, False
        while not is_end:
            page = await self._streams.store.read_records(tenant, position, _PAGE)
            for record in (decode_record(entry.payload) for entry in page.entries):
                (streams.add if record.is_session_stream and record.state is State.LIVE else streams.discard)(record.id)
            position, is_end = page.next_sequence, page.is_end
        return streams
