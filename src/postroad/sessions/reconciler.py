"""What the delivery role does by itself: finish fan-outs that were left undone, and end sessions whose time is over."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info, subjects_of
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import streams_store, unescape
from postroad.sessions import metrics
from postroad.sessions.fanout_queue import FanoutQueue
from postroad.sessions.lifecycle import CleanupOutcome
from postroad.sessions.records import STREAM_PREFIX, decode_session
from postroad.sessions.rules import is_pattern, pattern_matches
from postroad.sessions.service import Sessions
from postroad.streams.records import State, decode_record
from postroad.streams.service import Streams
from postroad.streams.store import Name

_PAGE = 500
_AT_ONCE = 10

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

    async def deliver(self, *, complete_seconds: float, clean_seconds: float) -> None:
        """All of it, until cancelled."""
        async with asyncio.TaskGroup() as run_together:
            run_together.create_task(self._queue.consume(self._complete))
            run_together.create_task(self._every(complete_seconds, self.complete_all))
            run_together.create_task(self._every(clean_seconds, self.clean_all))

    async def _every(self, seconds: float, work: Callable[[str], Coroutine[None, None, int]]) -> None:
        while True:
            done = 0
            for tenant in self._tenants():
                try:
                    done += await work(tenant)
                except PostroadError as problem:
                    log.warning("sweep_failed", tenant=tenant, code=problem.code)
            if work == self.complete_all:
                metrics.outstanding.set(done)
            await asyncio.sleep(seconds)

    # Fan-outs

    async def _complete(self, name: Name) -> None:
        """A job of a tenant that is no more is done: to look for its stream would be to make its store anew. One that is not
        known here may have been made just now, and then it has a store."""
        if name.tenant in self._tenants() or await stream_info(self._connection, streams_store(name.tenant)) is not None:
            await self._sessions.complete(name)

    async def complete_all(self, tenant: str) -> int:
        """How many messages somebody lacked."""
        if not await self._streams.store.exists(tenant):
            return 0
        found = 0
        for stream in await self._sources(tenant):
            found += await self._sessions.complete(Name(tenant, stream))
        return found

    async def _sources(self, tenant: str) -> list[str]:
        """The streams that somebody subscribes to, by name or by a pattern."""
        names = {
            unescape(subject.split(".")[2])
            for subject in await subjects_of(self._connection, streams_store(tenant), f"f.{tenant}.*.u")
        }
        patterns = [name for name in names if is_pattern(name)]
        found = names - set(patterns)
        if patterns:
            for stream in await self._streams.paths(tenant):
                if any(pattern_matches(pattern, stream) for pattern in patterns):
                    found.add(stream)
        return sorted(found)

    # Sessions

    async def _fed(self, tenant: str) -> set[str]:
        """The streams that are sessions', expired ones included."""
        found: set[str] = set()
        position, is_end = 1, False
        while not is_end:
            page = await self._streams.store.page_of_records(tenant, position, _PAGE)
            for record in (decode_record(entry.payload) for entry in page.entries):
                (found.add if record.is_session_stream and record.state is State.LIVE else found.discard)(record.id)
            position, is_end = page.next_sequence, page.is_end
        return found

    async def clean_all(self, tenant: str) -> int:
        """How many sessions were over, and are gone now."""
        if not await self._streams.store.exists(tenant):
            return 0
        ended = left = 0
        now = self._clock()
        streams = await self._fed(tenant)
        position = 1
        while True:
            page = await stream_reader.read(self._connection, streams_store(tenant), f"x.{tenant}.>", position, _PAGE)
            found = [decode_session(entry.payload) for entry in page.entries]
            due = [one for one in found if one.expires_at_ms <= now or STREAM_PREFIX + one.id not in streams]
            for begin in range(0, len(due), _AT_ONCE):
                outcomes = await asyncio.gather(
                    *(self._sessions.end_if_over(tenant, record.id) for record in due[begin : begin + _AT_ONCE])
                )
                ended += sum(fate is CleanupOutcome.ENDED for fate, _ in outcomes)
                left += sum(subscriptions for _, subscriptions in outcomes)
            position = page.next_sequence
            if page.is_end:
                break
        if ended:
            metrics.count("cleanup", "cleanup_batch")
            log.info("sessions_ended", tenant=tenant, sessions=ended, subscriptions=left)
        return ended
