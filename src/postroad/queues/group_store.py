"""The messages and records of the groups of an ordered queue, in its stream.

A record replaces the one before it (`Nats-Rollup: sub`) on condition that it is still the latest. The record of a group that is
empty then is written together with an empty message that replaces all messages of the group, on condition that no other was
published: so nothing is left to remove. Both have a TTL. The record's is long enough that no process still writes what it decided
without the record.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream, stream_info, subject_counts
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry, Page
from postroad.kernel.ids import new_id
from postroad.queues.group_index import Group
from postroad.queues.group_state import EMPTY, GroupState, decode_state, encode_state
from postroad.queues.records import QueueRecord

EMPTY_RECORD_MS = 120_000
_TOMBSTONE_TTL = "1s"
_READ_MAX = 256
_READ_BYTES = 1024 * 1024
_LOADED_TOGETHER = 400


@dataclass(frozen=True, slots=True)
class GroupMessages:
    """Messages that are not settled, in order. `gone`: open ones that are not stored any more. `is_end`: there are no more."""

    entries: Sequence[Entry]
    gone: Sequence[int]
    is_end: bool


class GroupStore:
    def __init__(self, connection: Connection, committers: Committers, record: QueueRecord) -> None:
        self._connection, self._committers, self._record = connection, committers, record

    # Reading

    async def load(self, group: Group) -> tuple[GroupState, int]:
        """The state of a group, and the sequence of its record."""
        subject = self._record.state_subject(group.token)
        return _state_of(await stream_reader.last(self._connection, self._record.stream, subject))

    async def load_many(self, groups: Sequence[Group]) -> dict[str, tuple[GroupState, int]]:
        """The states of many groups by token. That of a group without a record is missing."""
        found: dict[str, tuple[GroupState, int]] = {}
        for start in range(0, len(groups), _LOADED_TOGETHER):
            subjects = [self._record.state_subject(one.token) for one in groups[start : start + _LOADED_TOGETHER]]
            for entry in await stream_reader.newest(self._connection, self._record.stream, subjects):
                found[token_of(entry.subject)] = _state_of(entry)
        return found

    async def read(self, group: Group, state: GroupState, count: int) -> GroupMessages:
        """The first messages that are not settled, about `count`."""
        stream, subject = self._record.stream, self._record.group_subject(group.token)
        still_open = {one.sequence for one in state.open}
        found: list[Entry] = []
        position, is_end = state.first_unsettled, False
        while len(found) < count and not is_end:
            limit = min(_READ_MAX, count - len(found) + len(still_open))
            page = await stream_reader.read(self._connection, stream, subject, position, limit, _READ_BYTES)
            found += [
                entry for entry in page.entries if entry.payload and (entry.sequence > state.last or entry.sequence in still_open)
            ]
            position, is_end = page.next_sequence, page.is_end
        stored = {entry.sequence for entry in found}
        suspects = [sequence for sequence in still_open - stored if is_end or sequence < position]
        present = await asyncio.gather(*(stream_reader.at(self._connection, stream, sequence) for sequence in suspects))
        gone = [sequence for sequence, entry in zip(suspects, present, strict=True) if entry is None]
        if len(gone) < len(suspects):  # the replica that answered lags behind: nothing after these messages counts
            limit = min(sequence for sequence, entry in zip(suspects, present, strict=True) if entry is not None)
            return GroupMessages([entry for entry in found if entry.sequence < limit], gone, is_end=False)
        return GroupMessages(found, gone, is_end)

    async def read_at(self, group: Group, sequences: Sequence[int]) -> list[Entry]:
        """The messages of a group with these sequences, in order, up to one that is not there."""
        subject, found = self._record.group_subject(group.token), list[Entry]()
        for entry in await stream_reader.at_each(self._connection, self._record.stream, sequences):
            if entry is None or entry.subject != subject or not entry.payload:
                break
            found.append(entry)
        return found

    async def page(self, position: int, count: int) -> Page:
        """Messages of all groups from a position on, in the order of the stream."""
        subject = self._record.group_subject("*")
        return await stream_reader.read(self._connection, self._record.stream, subject, position, count, _READ_BYTES)

    async def count_from(self, group: Group, sequence: int) -> int:
        """The number of messages at or after a sequence."""
        subject = self._record.group_subject(group.token)
        page = await stream_reader.read(self._connection, self._record.stream, subject, sequence, 1, _READ_BYTES)
        return sum(1 for entry in page.entries if entry.payload) + page.remaining

    async def newest(self, group: Group, known: int) -> int:
        """The sequence of the newest message according to the leader, at least `known`."""
        entry = await stream_reader.last(self._connection, self._record.stream, self._record.group_subject(group.token))
        return max(known, entry.sequence) if entry is not None and entry.payload else known

    async def scan(self) -> tuple[dict[str, int], set[str], int]:
        """Stored messages of each group by token, the tokens of groups with a record, and the stream's last sequence before."""
        info = await stream_info(self._connection, self._record.stream)
        counts: dict[str, int] = {}
        recorded: set[str] = set()
        async for page in subject_counts(self._connection, self._record.stream, self._record.group_subject("*")):
            counts |= {token_of(subject): count for subject, count in page.items()}
        async for page in subject_counts(self._connection, self._record.stream, self._record.state_subject("*")):
            recorded.update(token_of(subject) for subject in page)
        return counts, recorded, 0 if info is None else info.state.last_seq

    # Writing

    def writes(self, group: Group, state: GroupState) -> tuple[PendingMessage, ...]:
        """The writes that make this the state of the group: its record and, if the group is empty, the end of its messages."""
        expected = ("Nats-Expected-Last-Subject-Sequence", str(group.record_sequence))
        headers = [("Nats-Rollup", "sub"), expected]
        is_empty = not state.open and group.is_newest_exact and group.newest == state.last
        if is_empty:
            headers.append(("Nats-TTL", f"{EMPTY_RECORD_MS // 1000}s"))
            state = GroupState(last=state.last)
        record = self._write(self._record.state_subject(group.token), encode_state(state), headers)
        if not is_empty:
            return (record,)
        headers = [
            ("Nats-Rollup", "sub"),
            ("Nats-Expected-Last-Subject-Sequence", str(group.newest)),
            ("Nats-TTL", _TOMBSTONE_TTL),
        ]
        return (record, self._write(self._record.group_subject(group.token), b"", headers))

    def _write(self, subject: str, payload: bytes, headers: Iterable[tuple[str, str]]) -> PendingMessage:
        return PendingMessage(subject, payload, new_id(), header_lines(headers), is_conditional=True)

    async def append(self, writes: Sequence[PendingMessage]) -> Sequence[PublishAck]:
        """Raises Conflict, EngineUnavailable."""
        return await self._committers.of(self._record.stream).append_together(writes, uses_reserve=True)

    # Removing

    async def purge_settled(self, group: Group, state: GroupState) -> None:
        """Remove the settled messages of a group."""
        subject = self._record.group_subject(group.token)
        await purge_stream(self._connection, self._record.stream, subject, before=state.first_unsettled)

    async def end_record(self, group: Group, state: GroupState) -> Sequence[PublishAck]:
        """Let the record of a group expire whose messages are removed. Raises Conflict, EngineUnavailable."""
        headers = [
            ("Nats-Rollup", "sub"),
            ("Nats-Expected-Last-Subject-Sequence", str(group.record_sequence)),
            ("Nats-TTL", f"{EMPTY_RECORD_MS // 1000}s"),
        ]
        payload = encode_state(GroupState(last=state.last))
        return await self.append([self._write(self._record.state_subject(group.token), payload, headers)])

    async def purge(self) -> int:
        """Remove all messages, then the records from before: one that is written meanwhile may be about a new message."""
        stream = self._record.stream
        info = await stream_info(self._connection, stream)
        purged = await purge_stream(self._connection, stream, self._record.group_subject("*"))
        if info is not None:
            await purge_stream(self._connection, stream, self._record.state_subject("*"), before=info.state.last_seq + 1)
        return purged


def live_subject(record: QueueRecord) -> str:
    """Where the stream announces new messages of groups; the token of the group follows."""
    return f"live.{record.subject}.g"


def token_of(subject: str) -> str:
    return subject.rpartition(".")[2]


def _state_of(entry: Entry | None) -> tuple[GroupState, int]:
    return (EMPTY, 0) if entry is None else (decode_state(entry.payload), entry.sequence)
