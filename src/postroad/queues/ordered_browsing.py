"""Messages of ordered queues with their states, which the records of their groups have."""

from collections.abc import Sequence
from typing import NamedTuple

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.queues.group_state import EMPTY, GroupState, decode_state
from postroad.queues.lease_states import LIVE
from postroad.queues.records import QueueRecord

_STATES_TOGETHER = 400
_OLDEST_PAGE, _OLDEST_PAGES = 100, 5


class MessageState(NamedTuple):
    """`ready`, `leased`, `retrying` or `delayed`, and the end of the lease or of the wait for a retry."""

    name: str
    until_ms: int | None


class OrderedBrowser:
    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock

    async def states(self, record: QueueRecord, entries: Sequence[Entry]) -> dict[int, MessageState]:
        """The states of messages by sequence. Those that are settled are missing."""
        tokens = sorted({entry.subject.rpartition(".")[2] for entry in entries})
        groups: dict[str, GroupState] = {}
        for start in range(0, len(tokens), _STATES_TOGETHER):
            subjects = [record.state_subject(token) for token in tokens[start : start + _STATES_TOGETHER]]
            for stored in await stream_reader.newest(self._connection, record.stream, subjects):
                groups[stored.subject.rpartition(".")[2]] = decode_state(stored.payload)
        now, delay_ms = self._clock(), record.settings.delay_ms
        found: dict[int, MessageState] = {}
        for entry in entries:
            state = _state_in(groups.get(entry.subject.rpartition(".")[2], EMPTY), entry, now, delay_ms)
            if state is not None and entry.payload:
                found[entry.sequence] = state
        return found

    async def oldest_at_ms(self, record: QueueRecord) -> int | None:
        """The time of the oldest message that is not settled, as far as it is among the oldest that are stored."""
        position, at_ms = 1, None
        for _ in range(_OLDEST_PAGES):
            page = await stream_reader.read(
                self._connection, record.stream, record.group_subject("*"), position, _OLDEST_PAGE, 256 * 1024
            )
            states = await self.states(record, page.entries)
            for entry in page.entries:
                if entry.sequence in states:
                    return entry.at_ms
            if page.is_end:
                return None
            position, at_ms = page.next_sequence, page.entries[-1].at_ms
        return at_ms

    async def delayed(self, record: QueueRecord) -> int:
        """The number of messages whose delay has not passed."""
        delay_ms = record.settings.delay_ms
        if not delay_ms:
            return 0
        since = self._clock() - delay_ms
        page = await stream_reader.read_since(self._connection, record.stream, record.group_subject("*"), since, 1)
        return len(page.entries) + page.remaining


def _state_in(group: GroupState, entry: Entry, now_ms: int, delay_ms: int) -> MessageState | None:
    if group.is_settled(entry.sequence):
        return None
    known = group.find(entry.sequence)
    if known is None:
        return MessageState("delayed" if entry.at_ms + delay_ms > now_ms else "ready", None)
    if known.step in LIVE:
        return MessageState("leased", known.until_ms) if known.is_held(now_ms) else MessageState("ready", None)
    return MessageState("retrying", known.until_ms) if known.until_ms > now_ms else MessageState("ready", None)
