"""Shares of groups in fair queues, for one process that publishes: which message is deferred.

The process counts what it has published to each group and was not settled. It reads the state of the queue only if a group may
have more than its share, at most every 50 ms. Groups that have deferred messages are announced by all processes, so that new
messages do not overtake them.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.management import consumer_state
from postroad.jetstream.protocol import encode_plain
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.queues.fairness import (
    QUIET_MAX,
    QUIET_MIN,
    READY_COUNTED_MAX,
    READY_SHARED,
    GroupLoad,
    exceeds_equal_share,
    exceeds_share,
)
from postroad.queues.lease_log import LeaseLog
from postroad.queues.records import QueueRecord, StoredMessage
from postroad.queues.rules import group_token

SUBJECT = "postroad.deferred"
_STATE_SECONDS = 0.05
_DEFERRING_SECONDS = 1.0  # after the last announcement
_NOTICE_SECONDS = 0.02
_TOKENS_MAX = 1000  # of one announcement
_IDLE_SECONDS = 120.0  # without a publish, after which the counts of a queue are forgotten


class DeferralNotice(msgspec.Struct, frozen=True, array_like=True):
    """These groups of a queue have deferred messages. Without groups: a consumer found too few messages.

    `is_repeated`: the process that moves the messages says so, and need not be notified.
    """

    stream: str
    tokens: list[str]
    is_repeated: bool = False


encode_notice = msgspec.msgpack.Encoder().encode
decode_notice = msgspec.msgpack.Decoder(DeferralNotice).decode


class _QueueShares:
    """`ready` and `leased`: messages of the queue when its state was read last."""

    __slots__ = ("leased", "load", "read_at", "reading", "ready", "used_at")

    def __init__(self) -> None:
        self.load = GroupLoad()
        self.ready = self.leased = 0
        self.read_at = self.used_at = float("-inf")
        self.reading: asyncio.Task[None] | None = None


class GroupShares:
    def __init__(self, connection: Connection, lease_log: LeaseLog, table: ReplicatedTable[QueueRecord], clock: Clock) -> None:
        self._connection, self._lease_log, self._clock = connection, lease_log, clock
        self._queues: dict[str, _QueueShares] = {}
        self._deferring: dict[tuple[str, str], float] = {}  # by stream and token, until when
        self._notices: dict[str, set[str]] = {}
        self._is_flush_due = False
        self.on_notice: Callable[[DeferralNotice], None] = lambda _notice: None
        table.on_change(self._queue_changed)

    # Decision

    def decide(self, record: QueueRecord, message: StoredMessage) -> bool | None:
        """Whether the message is to be deferred; None if the state of the queue must be read first (`decided`). No effect."""
        if not message.group or record.is_ordered or message.unique:
            return False
        token, now = group_token(message.group), asyncio.get_running_loop().time()
        if self._deferring.get((record.stream, token), 0.0) > now:
            return True
        found = self._queues.get(record.stream)
        if found is None:
            return False
        count, due = found.load.count(token) + 1, found.load.due_of(token) + 1
        if count <= QUIET_MAX and (due <= QUIET_MIN or found.load.due < READY_SHARED):
            return False
        if now - found.read_at > _STATE_SECONDS:
            return None
        if exceeds_share(count, found.leased + min(found.ready, READY_COUNTED_MAX) + 1):
            return True
        is_behind = max(found.ready, found.load.due - found.leased) >= READY_SHARED
        return is_behind and exceeds_equal_share(due, found.leased, found.load.crowded)

    def begin(self, record: QueueRecord, message: StoredMessage, *, is_deferred: bool) -> None:
        """The message is about to be stored: it counts from now on, until `stored` says otherwise."""
        if not message.group or record.is_ordered or message.unique:
            return
        token = group_token(message.group)
        if is_deferred:
            self._deferring[record.stream, token] = asyncio.get_running_loop().time() + _DEFERRING_SECONDS
            self._notices.setdefault(record.stream, set()).add(token)
            self._schedule_flush()
            return
        found = self._queues.get(record.stream)
        if found is None:
            found = self._queues[record.stream] = _QueueShares()
        found.used_at = asyncio.get_running_loop().time()
        found.load.add(token)

    async def decided(self, record: QueueRecord, message: StoredMessage) -> bool:
        """Like `decide`, reading the state of the queue if necessary. Raises EngineUnavailable."""
        while (is_deferred := self.decide(record, message)) is None:
            await self._read(record)
        return is_deferred

    async def _read(self, record: QueueRecord) -> None:
        """Count what is ready or leased. Concurrent callers share one read."""
        found = self._queues.setdefault(record.stream, _QueueShares())
        if found.reading is None or found.reading.done():
            found.reading = asyncio.create_task(self._read_state(record, found))
        await asyncio.shield(found.reading)

    async def _read_state(self, record: QueueRecord, found: _QueueShares) -> None:
        states = await asyncio.gather(
            *(consumer_state(self._connection, record.stream, record.consumer_of(one)) for one in record.priorities)
        )
        known = {priority: state for priority, state in zip(record.priorities, states, strict=True) if state is not None}
        found.ready = sum(one.num_pending for one in known.values())
        found.leased = sum(one.num_ack_pending for one in known.values())
        delivered = {priority: one.delivered.stream_seq for priority, one in known.items()}
        found.load.refresh(delivered, lambda one: self._lease_log.lease_of(record, one) is not None, self._clock())
        found.read_at = asyncio.get_running_loop().time()

    def stored(self, record: QueueRecord, message: StoredMessage, sequence: int | None, delay_ms: int) -> None:
        """A message that `decide` has not deferred was stored with this sequence; None if it was not."""
        if not message.group or record.is_ordered or message.unique:
            return
        found, token = self._queues.get(record.stream), group_token(message.group)
        if found is None:
            return
        if sequence is None:
            found.load.discard(token)
        elif delay_ms:
            found.load.delayed(token, message.at + delay_ms)
        else:
            found.load.stored(token, sequence, message.priority)

    def stored_deferred(self, record: QueueRecord, message: StoredMessage) -> None:
        """A deferred message was stored. The announcement of its decision may have come before: then nothing was found."""
        self._notices.setdefault(record.stream, set()).add(group_token(message.group))
        self._schedule_flush()

    # Announcements

    def consumers_wait(self, record: QueueRecord) -> None:
        """A pull found fewer messages than it wanted."""
        if record.has_deferred:
            self._notices.setdefault(record.stream, set())
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_later(_NOTICE_SECONDS, self._flush)

    def _flush(self) -> None:
        notices, self._notices, self._is_flush_due = self._notices, {}, False
        for stream, tokens in notices.items():
            self.announce(stream, tokens)

    def announce(self, stream: str, tokens: Iterable[str], *, is_repeated: bool = False) -> None:
        """Notify all processes that these groups have deferred messages."""
        listed = list(tokens)
        for start in range(0, max(1, len(listed)), _TOKENS_MAX):
            notice = DeferralNotice(stream, listed[start : start + _TOKENS_MAX], is_repeated)
            try:
                self._connection.send(encode_plain(SUBJECT, encode_notice(notice), ""))
            except ConnectionLost:
                return

    async def run(self) -> None:
        """Receive announcements, until cancelled."""
        stop = self._connection.listen(SUBJECT, self._receive)
        try:
            while True:
                await asyncio.sleep(_DEFERRING_SECONDS)
                now = asyncio.get_running_loop().time()
                self._deferring = {key: until for key, until in self._deferring.items() if until > now}
                for stream in [one for one, found in self._queues.items() if found.used_at < now - _IDLE_SECONDS]:
                    del self._queues[stream]
        finally:
            await stop()

    def _receive(self, payload: bytes) -> None:
        try:
            notice = decode_notice(payload)
        except msgspec.DecodeError:
            return
        until = asyncio.get_running_loop().time() + _DEFERRING_SECONDS
        for token in notice.tokens:
            self._deferring[notice.stream, token] = until
        self.on_notice(notice)

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        if record is None or record.state is RecordState.DELETING:
            tenant, _, token = key.partition(".")
            self._queues.pop(f"Q_{tenant}__{token}", None)
