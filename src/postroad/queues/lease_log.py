"""The lease log: workers exchange the states of deliveries through the stream `LEASES`, and each has them all in memory.

Leases and acknowledgements are appended within a quarter of a second; a nack is appended before its response. A process that is
killed loses the transitions of that quarter: until the deadlines of these leases, the stats count the messages as ready. The
leader of the control role replaces old frames by a snapshot, so the stream stays about as large as the number of open leases.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import structlog

from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream
from postroad.jetstream.peer_sync import PeerSync
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail, republish
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.task_group import run_all
from postroad.queues import metrics
from postroad.queues.lease_states import LIVE, LeaseCounts, LeaseFrame, QueueLeases, Step, Transition, decode_frame, encode_frame
from postroad.queues.records import QueueRecord

STREAM = "LEASES"
_SUBJECT = "lease.frames"
_FLUSH_SECONDS = 0.25
_SWEEP_SECONDS = 5.0
_FRAME_TRANSITIONS_MAX = 5000
_BUFFERED_MAX = 200_000
_LOAD_SECONDS = 2.0
_COMPACT_MIN = 5000
_MARK_BYTES = 64  # of a frame, which begin with its version and process

log = structlog.get_logger("postroad.queues")


def lease_stream(replicas: int, bytes_max: int) -> StreamSpec:
    options = {
        "allow_atomic": True,
        "num_replicas": replicas,
        "max_bytes": bytes_max,
        "duplicate_window": 60_000_000_000,
        "republish": republish("lease.>"),
    }
    return StreamSpec(STREAM, ("lease.>",), options)


class LeaseLog:
    def __init__(self, connection: Connection, committers: Committers, table: ReplicatedTable[QueueRecord], clock: Clock) -> None:
        self._connection, self._committers, self._clock = connection, committers, clock
        self._queues: dict[str, QueueLeases] = {}  # by incarnation of the queue
        self._incarnations: dict[str, str] = {}  # by key in the table
        self._buffer: dict[tuple[str, int, int, int], Transition] = {}  # by queue, sequence, attempt, step
        self._flushing = asyncio.Lock()
        self._appended = 0
        self._tail = Tail(connection, Source(STREAM, "lease.>"), 0, self._receive, poll_seconds=2.0)
        self._advanced = asyncio.Event()
        self._peers = PeerSync(connection, "postroad.leases", self._reached)
        self._own_mark = self._peers.process.encode()
        self._since_snapshot = 0
        table.on_change(self._queue_changed)

    # Recording

    def record(self, record: QueueRecord, transitions: Sequence[Transition]) -> None:
        """Take transitions into account here at once, and in other processes soon."""
        key, buffer = record.incarnation, self._buffer
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = QueueLeases()
        for one in transitions:
            queue.apply(one)
            if one.step == Step.ACKED and one.attempt == 1 and (key, one.sequence, 1, Step.LEASED) in buffer:
                for step in LIVE:  # no other process knows of the lease
                    buffer.pop((key, one.sequence, 1, step), None)
            else:
                buffer[key, one.sequence, one.attempt, one.step] = one

    async def commit(self, record: QueueRecord, transitions: Sequence[Transition]) -> None:
        """Like `record`, but return once the transitions are durable and known to all processes. Raises EngineUnavailable."""
        if transitions:
            self.record(record, transitions)
            await self._peers.confirm(await self.flush())

    async def flush(self) -> int:
        """Append what is buffered; the sequence of the last frame. Concurrent callers share a frame. Raises EngineUnavailable."""
        async with self._flushing:
            buffer, self._buffer = self._buffer, {}
            pending = list(buffer.items())
            for start in range(0, len(pending), _FRAME_TRANSITIONS_MAX):
                by_queue: dict[str, list[Transition]] = {}
                for (key, *_), one in pending[start : start + _FRAME_TRANSITIONS_MAX]:
                    by_queue.setdefault(key, []).append(one)
                try:
                    self._appended = await self._append(by_queue)
                except PostroadError:
                    self._buffer = dict(pending[start:][-_BUFFERED_MAX:]) | self._buffer
                    raise
            return self._appended

    async def _append(self, by_queue: dict[str, list[Transition]]) -> int:
        frame = encode_frame(LeaseFrame(1, self._peers.process, by_queue))
        self._since_snapshot += sum(map(len, by_queue.values()))
        ack = await self._committers.of(STREAM).append(PendingMessage(_SUBJECT, frame, new_id()), uses_reserve=True)
        return ack.sequence

    # Reading

    def counts(self, record: QueueRecord, unacknowledged: int) -> LeaseCounts:
        """Deliveries by state, of which JetStream has `unacknowledged` in total. Messages can leave a queue without a transition:
        they expire, or a process is killed before it has recorded an acknowledgement. Then JetStream's number is the limit."""
        queue, now = self._queues.get(record.incarnation), self._clock()
        if queue is None:
            return LeaseCounts()
        found = queue.counts(now)
        leased = min(found.leased, unacknowledged)
        retrying = min(found.retrying, unacknowledged - leased)
        ready = unacknowledged - leased - retrying
        if found.overdue and not ready:
            queue.forget_overdue(now - int(_SWEEP_SECONDS * 1000))
        return LeaseCounts(leased, retrying, min(found.overdue, ready))

    def lease_of(self, record: QueueRecord, sequence: int) -> Transition | None:
        """The lease of a message, or its return for a retry that is not due."""
        queue = self._queues.get(record.incarnation)
        if queue is None:
            return None
        queue.advance(self._clock())
        return queue.lease_of(sequence)

    def delivery_state(self, incarnation: str, sequence: int, attempt: int) -> str:
        """Like `QueueLeases.delivery_state`, up to a quarter of a second later than other processes know."""
        queue = self._queues.get(incarnation)
        if queue is None:
            return "settled"
        queue.advance(self._clock())
        return queue.delivery_state(sequence, attempt)

    def first_lease_ms(self, record: QueueRecord, sequence: int) -> int | None:
        """The time of the first lease of a message, None if it is not known any more."""
        queue = self._queues.get(record.incarnation)
        return None if queue is None else queue.first_lease_ms(sequence)

    def queue(self, record: QueueRecord) -> QueueLeases | None:
        """The states of a queue; None if nothing is known of it."""
        return self._queues.get(record.incarnation)

    def nack_of(self, record: QueueRecord, sequence: int, attempt: int) -> Transition | None:
        queue = self._queues.get(record.incarnation)
        return None if queue is None else queue.nack_of(sequence, attempt)

    async def loaded(self) -> None:
        """Wait until the log was read to its end, once after the start; not longer than two seconds."""
        if not self._tail.caught_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOAD_SECONDS):
                    await self._tail.caught_up.wait()

    # Following

    async def run(self) -> None:
        """Exchange transitions, until cancelled."""
        await run_all(self._tail.run(), self._peers.run(), self._flush_regularly(), self._sweep_regularly())

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            if self._buffer:
                try:
                    await self.flush()
                except PostroadError as problem:  # they stay in the buffer
                    log.warning("leases_not_stored", count=len(self._buffer), code=problem.code)

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._clock()
            for key, queue in list(self._queues.items()):
                if queue.sweep(now):
                    del self._queues[key]
                await asyncio.sleep(0)
            metrics.lease_states.set(sum(map(len, self._queues.values())))

    async def _reached(self, sequence: int) -> None:
        while self._tail.position < sequence:
            self._advanced.clear()
            await self._advanced.wait()

    async def _receive(self, entry: Entry) -> None:
        """Called by the tail after it has set its position to that of the entry."""
        self._advanced.set()
        if self._own_mark in entry.payload[:_MARK_BYTES]:  # taken into account when it was recorded
            return
        try:
            frame = decode_frame(entry.payload)
        except (msgspec.DecodeError, RecursionError):
            log.error("lease_frame_unreadable", sequence=entry.sequence)
            return
        for key, transitions in frame.by_queue.items():
            self._since_snapshot += len(transitions)
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = QueueLeases()
            for one in transitions:
                queue.apply(one)

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        """Forget the leases of a deleted queue."""
        if record is not None and record.state is not RecordState.DELETING:
            self._incarnations[key] = record.incarnation
            return
        incarnation = self._incarnations.pop(key, None) if record is None else record.incarnation
        self._queues.pop(incarnation or "", None)

    async def compact(self) -> None:
        """Replace the frames up to the present position by a snapshot. Frames that arrive meanwhile stay."""
        live = sum(map(len, self._queues.values()))
        if self._since_snapshot < 2 * live + _COMPACT_MIN or not self._tail.caught_up.is_set():
            return
        await self.flush()
        position, self._since_snapshot = self._tail.position, 0
        for key, queue in list(self._queues.items()):
            queue.advance(self._clock())
            transitions = list(queue.transitions())
            for start in range(0, len(transitions), _FRAME_TRANSITIONS_MAX):
                await self._append({key: transitions[start : start + _FRAME_TRANSITIONS_MAX]})
        await purge_stream(self._connection, STREAM, before=position + 1)
