"""Chooses the queues whose deferred messages this process moves back, and runs their moves."""

import asyncio
import contextlib

import structlog

from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.membership import Membership
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.rendezvous import owner_of
from postroad.queues.deferred_messages import DeferredMessages
from postroad.queues.deferred_moves import QueueMoves
from postroad.queues.group_shares import DeferralNotice, GroupShares
from postroad.queues.records import QueueRecord

_SECONDS_MIN, _SECONDS_MAX = 0.015, 0.1  # between rounds of a queue with deferred messages
_SCAN_SECONDS, _SCAN_SECONDS_MIN = 5.0, 0.25
_ANNOUNCE_SECONDS = 0.25
_FAILED_SECONDS = 1.0

log = structlog.get_logger("postroad.queues")


class _Served:
    __slots__ = ("is_woken", "moves", "scan_at", "scanned_at", "task")

    def __init__(self, moves: QueueMoves) -> None:
        self.moves = moves
        self.is_woken = asyncio.Event()
        self.scan_at = self.scanned_at = 0.0
        self.task: asyncio.Task[None] | None = None


class DeferredMover:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        deferred: DeferredMessages,
        shares: GroupShares,
        table: ReplicatedTable[QueueRecord],
        membership: Membership,
        clock: Clock,
    ) -> None:
        self._connection, self._committers, self._deferred = connection, committers, deferred
        self._shares, self._membership, self._clock = shares, membership, clock
        self._queues: dict[str, QueueRecord] = {}  # by stream: those that have had deferred messages
        self._served: dict[str, _Served] = {}
        self._is_changed = asyncio.Event()
        table.on_change(self._queue_changed)
        membership.on_change(self._is_changed.set)
        shares.on_notice = self._on_notice

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        if record is not None and record.state is RecordState.READY and record.has_deferred:
            is_known = self._queues.get(stream) is not None
            self._queues[stream] = record
            if is_known and (served := self._served.get(stream)) is not None:
                served.is_woken.set()
            else:
                self._is_changed.set()
        elif self._queues.pop(stream, None) is not None:
            self._is_changed.set()

    def _on_notice(self, notice: DeferralNotice) -> None:
        served = self._served.get(notice.stream)
        if served is not None and not notice.is_repeated:
            served.moves.add(notice.tokens)
            if not served.moves.turns:  # consumers wait: perhaps for a delayed message that is due by now
                served.scan_at = min(served.scan_at, served.scanned_at + _SCAN_SECONDS_MIN)
            served.is_woken.set()

    def _is_mine(self, stream: str) -> bool:
        return stream in self._queues and owner_of(stream, self._membership.members) == self._membership.name

    async def run(self) -> None:
        """Move deferred messages of the queues that are assigned to this process, until cancelled."""
        try:
            while True:
                self._is_changed.clear()
                for stream in [one for one in self._queues if one not in self._served]:
                    if self._is_mine(stream):
                        self._begin(stream)
                await _wait(self._is_changed, _SCAN_SECONDS)
        finally:
            tasks = [served.task for served in self._served.values() if served.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, stream: str) -> None:
        moves = QueueMoves(self._connection, self._committers, self._deferred, self._queues[stream], self._clock)
        served = self._served[stream] = _Served(moves)
        served.task = asyncio.get_running_loop().create_task(self._serve(stream, served))

        def ended(task: "asyncio.Task[None]") -> None:
            if self._served.get(stream) is served:
                del self._served[stream]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("moves_failed", stream=stream, exc_info=error)
                self._is_changed.set()

        served.task.add_done_callback(ended)

    async def _serve(self, stream: str, served: _Served) -> None:
        loop, moves = asyncio.get_running_loop(), served.moves
        incarnation, seconds, announce_at = moves.record.incarnation, _SECONDS_MIN, 0.0
        while self._is_mine(stream) and (record := self._queues[stream]).incarnation == incarnation:
            moves.record = record
            served.is_woken.clear()
            try:
                if loop.time() >= served.scan_at:
                    served.scanned_at = loop.time()
                    served.scan_at = served.scanned_at + _SCAN_SECONDS
                    await moves.scan()
                found = await moves.round()
            except PostroadError as problem:
                log.warning("deferred_messages_not_moved", stream=stream, code=problem.code)
                served.scan_at = 0.0
                await asyncio.sleep(_FAILED_SECONDS)
                continue
            if not found.groups:
                await _wait(served.is_woken, served.scan_at - loop.time())
                continue
            if loop.time() >= announce_at:
                self._shares.announce(stream, list(moves.turns), is_repeated=True)
                announce_at = loop.time() + _ANNOUNCE_SECONDS
            seconds = _SECONDS_MIN if found.moved else min(seconds * 2, _SECONDS_MAX)
            await asyncio.sleep(_SECONDS_MIN)
            await _wait(served.is_woken, seconds - _SECONDS_MIN)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
