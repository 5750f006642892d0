"""One group of an ordered queue at a time: load its state, read what it can deliver, write its next state."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict
from postroad.queues import metrics
from postroad.queues.group_index import Group, GroupIndex
from postroad.queues.group_state import (
    EMPTY,
    GroupState,
    OpenMessage,
    Operation,
    OperationResult,
    deliverable,
    drop,
    settle,
)
from postroad.queues.group_store import EMPTY_RECORD_MS, GroupMessages, GroupStore
from postroad.queues.records import QueueRecord, StoredMessage, read_message
from postroad.queues.rules import is_last_attempt

CONFLICTS_MAX = 20  # writes of a group that another dispatcher changes
PULL_BYTES_MAX = 4 * 1024 * 1024
_LAG_MS = 5  # a healthy replica lags less
_IDLE_GROUPS_MAX = 50_000
WALK_AHEAD = 65_536  # sequences that are kept when the walk through a backlog waits
_AHEAD_MAX, _AHEAD_BYTES = 16, 16 * 1024  # messages of a group that are read ahead, and their bytes
_BY_SEQUENCE_MAX = 64  # messages of a group that are read at once, each for itself
_AHEAD_SECONDS = 5.0  # less than the time in which a lease must follow the read of its message

log = structlog.get_logger("postroad.queues")

DeadLetterMessage = Callable[[QueueRecord, StoredMessage, Entry, int], Awaitable[None]]


@dataclass(slots=True)
class PreparedGroup:
    """What a group can deliver: its state without what is expired or gone, and the entries to lease."""

    state: GroupState
    entries: list[Entry] = field(default_factory=list)
    blocked_until_ms: int = 0
    read_at: float = 0.0

    @property
    def sequences(self) -> list[int]:
        return [entry.sequence for entry in self.entries]


class _ReadAhead(NamedTuple):
    """Messages of a group after the sequence `last`. `is_end`: there were no more at that time."""

    entries: Sequence[Entry]
    last: int
    is_end: bool
    read_at: float


class LeasedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A leased message as it is stored."""

    group: str
    lease: OpenMessage
    stored_at_ms: int
    payload: bytes


class DispatchCounts(msgspec.Struct, frozen=True, array_like=True):
    new: int
    leased: int
    retrying: int
    due: int
    overdue: int
    waiting: int


@dataclass(slots=True, eq=False)
class Pull:
    """A pull that waits for messages."""

    count: int
    lease_ms: int
    until: float  # of the event loop's clock
    per_group: int
    receive: str
    future: "asyncio.Future[list[LeasedMessage]]"


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation that waits to be written."""

    operation: Operation
    future: "asyncio.Future[OperationResult]"


class GroupTurns:
    """A task that works on a group claims it and releases it. `find_record` returns the present record of the queue;
    `dead_letter` stores a message that has failed too often."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        record: QueueRecord,
        find_record: Callable[[], QueueRecord | None],
        dead_letter: DeadLetterMessage,
        clock: Clock,
    ) -> None:
        self._connection, self._clock, self._find_record, self._dead_letter = connection, clock, find_record, dead_letter
        self.record = record
        self._store = GroupStore(connection, committers, record)
        self._index = GroupIndex()
        self._loaded = asyncio.Event()  # all states
        self._must_scan = asyncio.Event()
        self._not_cleaning = asyncio.Event()  # no settled messages of a group are being removed
        self._not_cleaning.set()
        self._scanned_to = 0  # the last sequence of the stream when it was compared with the index
        self._walks_on = asyncio.Event()  # for the walk that finds sequences, while few are kept
        self._payload_bytes = 1024.0  # of a message, on average

    def _begin_flush(self, group: Group) -> None:
        """Apply the operations that have arrived for the group."""
        raise NotImplementedError

    def _pump(self) -> None:
        """Serve the pulls that wait."""
        raise NotImplementedError

    def _present(self) -> QueueRecord:
        found = self._find_record()
        return found if found is not None and found.incarnation == self.record.incarnation else self.record

    async def _load(self, group: Group) -> None:
        """Read the state of a group. If it was known before, another dispatcher may have delivered messages: count them."""
        state, record_sequence = await self._store.load(group)
        new_count = await self._store.count_from(group, state.last + 1) if group.is_counted else None
        self._set_loaded(group, state, record_sequence, new_count)

    def _set_loaded(self, group: Group, state: GroupState, record_sequence: int, new_count: int | None = None) -> None:
        if new_count is None and not group.is_counted:
            new_count = group.count - state.kept - len(state.open)
        if new_count is not None:
            self._index.set_count(group, new_count)
        group.is_counted = True
        self._index.set_state(group, state, record_sequence)
        if state.kept:  # perhaps they were removed since: remove them now, to be certain
            group.must_clean = True
            self._index.unclean[group.token] = group
        if not group.is_ready:
            self._index.place(group, self._clock())

    def _claim(self, group: Group) -> None:
        group.is_busy, group.is_ready = True, False

    def _release(self, group: Group) -> None:
        """The task that worked on the group has ended."""
        group.is_busy = False
        if group.operations:
            self._begin_flush(group)
        else:
            self._index.place(group, self._clock())

    def _retry_later(self, group: Group) -> None:
        """The group could not be read or written: its state is not known any more."""
        self._index.set_state(group, None, 0)
        self._release(group)

    def _block(self, group: Group, prepared: PreparedGroup) -> None:
        """Nothing of the group can be delivered. If nothing was found that should be there, a replica lags behind."""
        group.blocked_until_ms = prepared.blocked_until_ms or (0 if group.is_empty else self._clock() + _LAG_MS)

    async def _prepare_loaded(self, group: Group, count: int) -> PreparedGroup:
        if group.state is None:
            await self._load(group)
        return await self._prepare(group, group.state or EMPTY, count)

    async def _prepare(self, group: Group, state: GroupState, count: int) -> PreparedGroup:
        """Read what the group can deliver now. Expired messages are settled; those without attempts left become dead letters."""
        now, record = self._clock(), self._present()
        held_until = state.held_until(now)
        if held_until:
            return PreparedGroup(state, blocked_until_ms=held_until + 1)
        if not state.open and group.newest <= state.last:
            return PreparedGroup(state)
        read_at, newest_before = asyncio.get_running_loop().time(), group.newest
        found, read_at = self._known_messages(group, state, count) or (await self._read(group, state, count), read_at)
        new_entries = [entry for entry in found.entries if entry.sequence > state.last]
        if found.is_end and group.newest == newest_before:
            newest = new_entries[-1].sequence if new_entries else state.last
            if newest < newest_before and self._connection.settings.has_replicas:
                newest = await self._store.newest(group, newest)
            if group.newest == newest_before:
                group.is_newest_exact = bool(new_entries) and newest == new_entries[-1].sequence
                group.newest = newest
                self._index.set_count(group, len(new_entries))
        if found.gone:
            state = drop(state, found.gone)
        entries: dict[int, Entry] = {}
        settled: list[int] = []
        for entry in found.entries:
            stored = self._readable(entry)
            known = state.find(entry.sequence)
            if stored is None or _is_expired(stored, entry, record, now):
                settled.append(entry.sequence)
            elif known is not None and known.is_due(now) and is_last_attempt(record.settings, known.attempt):
                await self._dead_letter(record, stored, entry, known.attempt)
                settled.append(entry.sequence)
            else:
                entries[entry.sequence] = entry
        if settled:
            first_new = min((one for one in entries if one > state.last), default=settled[-1] + 1)
            last = max((one for one in settled if one < first_new), default=0)
            state = settle(state, settled, last=last)
        new = [(one, entry.at_ms + record.settings.delay_ms) for one, entry in entries.items() if one > state.last]
        chosen = deliverable(state, new, now, count)
        return PreparedGroup(
            state, [entries[one] for one in chosen.sequences if one in entries], chosen.blocked_until_ms, read_at
        )

    def _known_messages(self, group: Group, state: GroupState, count: int) -> tuple[GroupMessages, float] | None:
        """The next messages, if they were read before: then the group is delivered without a further read."""
        ahead: _ReadAhead | None = group.ahead
        if ahead is None or state.open or ahead.read_at < asyncio.get_running_loop().time() - _AHEAD_SECONDS:
            return None
        entries = [entry for entry in ahead.entries if entry.sequence > state.last]
        is_end = ahead.is_end and bool(entries) and entries[-1].sequence == group.newest
        if state.last < ahead.last or not entries or (len(entries) < count and not is_end):
            return None
        return GroupMessages(entries[:count], (), is_end and len(entries) <= count), ahead.read_at

    async def _read(self, group: Group, state: GroupState, count: int) -> GroupMessages:
        """Read the next messages: each for itself if they are far apart, else with some more of a group that has many."""
        known = await self._read_known(group, state, count)
        if known is not None:
            group.ahead = None
            return known
        more = min(_AHEAD_MAX, int(_AHEAD_BYTES / max(self._payload_bytes, 1))) if group.count > count else 0
        if self._index.sequences.walk and self._index.sequences.kept < WALK_AHEAD:  # what is far ahead is known soon
            more = 0
        read_at = asyncio.get_running_loop().time()
        found = await self._store.read(group, state, count + more)
        if found.entries:
            self._payload_bytes += (len(found.entries[-1].payload) - self._payload_bytes) * 0.1
        group.ahead = None
        wanted, left = found.entries[: count + len(state.open)], found.entries[count + len(state.open) :]
        if not left or found.gone or sum(len(entry.payload) for entry in left) > 2 * _AHEAD_BYTES:
            return found
        group.ahead = _ReadAhead(left, wanted[-1].sequence, found.is_end, read_at)
        return GroupMessages(wanted, (), is_end=False)

    async def _read_known(self, group: Group, state: GroupState, count: int) -> GroupMessages | None:
        """The next messages by their sequences, if these are known and far apart."""
        sequences = self._index.sequences
        known = None if state.open else sequences.next_of(group.token, state.last, min(count, _BY_SEQUENCE_MAX), group.newest)
        if known is None:
            return None
        entries = await self._store.read_at(group, known.sequences)
        if len(entries) < len(known.sequences):  # some are gone: search, and do not try these again
            sequences.forget(group.token)
            return None
        return GroupMessages(entries, (), known.is_all)

    def _readable(self, entry: Entry) -> StoredMessage | None:
        """None for a message that another client of the NATS server wrote: it must not block its group."""
        try:
            return read_message(entry.payload)
        except ValueError:
            log.error("message_unreadable", stream=self.record.stream, sequence=entry.sequence)
            return None

    async def _write(self, group: Group, state: GroupState) -> None:
        await self._write_together([(group, state)])

    async def _write_together(self, changes: Sequence[tuple[Group, GroupState]]) -> None:
        """Make these the states of the groups. Raises Conflict if a record was changed; then the states are read again."""
        writes = [(group, state, self._store.writes(group, state)) for group, state in changes]
        try:
            acks = await self._store.append([write for _, _, some in writes for write in some])
        except BaseException as error:
            if isinstance(error, Conflict):
                metrics.group_conflicts.inc()
            for group, _, _ in writes:
                self._index.set_state(group, None, 0)
                group.is_newest_exact = False
            raise
        position, now = 0, self._clock()
        for group, state, some in writes:
            before = group.state or EMPTY
            delivered = sum(1 for one in state.open if one.sequence > before.last)
            is_empty = len(some) == 2
            if is_empty:
                state = GroupState(last=state.last)
            self._index.set_count(group, 0 if is_empty else group.count - delivered)
            self._index.set_state(group, state, acks[position].sequence)
            if is_empty:
                group.forget_at_ms = now + EMPTY_RECORD_MS
                if len(self._index.groups) > _IDLE_GROUPS_MAX:
                    group.forget_at_ms = now
            position += len(some)


def leased_messages(group: Group, entries: Sequence[Entry], leased: Sequence[OpenMessage]) -> list[LeasedMessage]:
    by_sequence = {entry.sequence: entry for entry in entries}
    return [LeasedMessage(group.token, one, by_sequence[one.sequence].at_ms, by_sequence[one.sequence].payload) for one in leased]


def within(entries: Sequence[Entry], count: int, bytes_max: int) -> list[Entry]:
    """The first entries, with at most `bytes_max` together, unless it is one."""
    chosen: list[Entry] = []
    size = 0
    for entry in entries[:count]:
        size += len(entry.payload)
        if size > bytes_max and (chosen or bytes_max < PULL_BYTES_MAX):
            break
        chosen.append(entry)
    return chosen


def _is_expired(stored: StoredMessage, entry: Entry, record: QueueRecord, now_ms: int) -> bool:
    retention_ms = record.settings.retention_ms
    return 0 < stored.expires <= now_ms or bool(retention_ms and entry.at_ms + record.settings.delay_ms + retention_ms <= now_ms)
