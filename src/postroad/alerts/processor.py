"""Applies the events of all tenants to the alert rules, in the leader of the delivery role.

The positions in the streams and the alerts that changed are stored in one atomic batch, once a second. After a crash the next
leader continues at the positions with the alerts as they were then: each event counts once. A batch has a largest size, so a
frame that changes many alerts is applied in parts; the position is then within the frame.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing

import msgspec
import structlog

from postroad.alerts import metrics
from postroad.alerts.book import AlertBook
from postroad.alerts.events import AlertEvent, AlertOpened, AlertResolved
from postroad.alerts.history import History
from postroad.alerts.records import (
    ALERTS_BUCKET,
    POSITIONS_KEY,
    ActionRecord,
    AlertRecord,
    StoredAlert,
)
from postroad.alerts.rule_index import RuleIndex
from postroad.alerts.rules import OPPOSITES, EventFields, Rule, summary_of
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow_batches
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.event import encoded_type
from postroad.kernel.ids import derived_id, new_id
from postroad.kernel.task_group import run_all
from postroad.telemetry.frames import STREAMS, unpack
from postroad.telemetry.outbox import Outbox

FOLLOWED = ("COMMANDS", "TELEMETRY")
_STREAM, _SUBJECT = f"KV_{ALERTS_BUCKET}", f"$KV.{ALERTS_BUCKET}."
_HISTORY_SECONDS = 90 * 86_400
_PENDING_SECONDS = 60  # a marker that a group with too few events is forgotten
_FLUSH_SECONDS = 1.0
_CHANGED_MAX = 300  # alerts that wait to be stored when others change
_PART_MAX = 600  # alerts that change before they are stored: the engine takes 1,000 messages in a batch
_REMOVED_MAX = 500
_FRAMES_MAX, _BYTES_MAX = 500, 2 * 1024 * 1024
_RETRY_SECONDS = 1.0
_FRAME, _LINES = ".frame", ".lines"  # of the position within a frame: its sequence, and the number of events that are counted
_OPPOSITE_TYPES = frozenset(name.encode() for name in OPPOSITES)

_decode_event = msgspec.json.Decoder(EventFields).decode
_decode_stored = msgspec.json.Decoder(StoredAlert).decode
_encode = msgspec.json.Encoder().encode

log = structlog.get_logger("postroad.alerts")


class AlertProcessor:
    """`destinations` returns the channels of an alert, `is_served` whether a tenant is served, `is_deleted` whether it was
    deleted: nothing about it may be stored any more."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        index: RuleIndex,
        actions: ReplicatedTable[ActionRecord],
        outbox: Outbox,
        clock: Clock,
        destinations: Callable[[Rule, EventFields], Sequence[str]],
        is_served: Callable[[str], bool],
        is_deleted: Callable[[str], bool],
    ) -> None:
        self._connection, self._committer = connection, committers.of(_STREAM)
        self._index, self._actions, self._outbox, self._clock = index, actions, outbox, clock
        self._destinations, self._is_served, self._is_deleted = destinations, is_served, is_deleted
        self.book = AlertBook(destinations)
        self.history = History()
        self.positions: dict[str, int] = {}
        self._stored_positions: dict[str, int] = {}
        self._revision = 0
        self._flushing = asyncio.Lock()
        self.is_running = False

    async def run(self) -> None:
        """Process until cancelled. After an interruption it begins again with what is stored."""
        while True:
            try:
                await self._load()
                self.is_running = True
                await run_all(*(self._follow(stream) for stream in FOLLOWED), self._maintain())
            except PostroadError as problem:
                log.warning("alerts_interrupted", code=problem.code, detail=problem.detail)
            finally:
                self.is_running = False
            await asyncio.sleep(_RETRY_SECONDS)

    # Storage

    async def _load(self) -> None:
        self.book = AlertBook(self._destinations)
        records: list[AlertRecord] = []
        position, is_end = 1, False
        self.positions, self._revision = {}, 0
        while not is_end:
            page = await stream_reader.read(self._connection, _STREAM, _SUBJECT + ">", position)
            position, is_end = page.next_sequence, page.is_end
            for entry in page.entries:
                stored = _stored(entry)
                if stored is not None and stored.positions is not None:
                    self.positions, self._revision = dict(stored.positions), entry.sequence
                elif stored is not None and stored.alert is not None:
                    records.append(stored.alert)
        self.book.load(records)
        for one in sorted(records, key=lambda record: record.resolved_ms):
            if one.is_kept:
                self.history.add(one.tenant, one.key)
        for stream in FOLLOWED:
            info = await stream_info(self._connection, stream)
            end = info.state.last_seq if info is not None else 0
            if self.positions.get(stream, end + 1) > end:  # the first start, or another stream of that name
                self._set_position(stream, end)
        self._stored_positions = {}
        await self.flush()

    async def flush(self) -> None:
        """Store what changed. Raises Conflict if another process leads, EngineUnavailable."""
        async with self._flushing:
            if self.book.changed or self.positions != self._stored_positions:
                await self._store()

    async def flush_if_full(self) -> None:
        """Return when `_PART_MAX` alerts can change without making the next batch too large. Raises like `flush`."""
        while len(self.book.changed) > _CHANGED_MAX:
            await self.flush()

    async def _store(self) -> None:
        """Store all alerts that changed together with the positions. What changes meanwhile is stored the next time."""
        book, positions = self.book, dict(self.positions)
        messages = [_message(one) for one in book.changed.values()]
        changed, opened, resolved = book.changed, book.opened, book.resolved
        book.changed, book.opened, book.resolved = {}, [], []
        for record in opened:
            self._outbox.record(None, _event(AlertOpened, record))
            metrics.opened.labels(record.severity).inc()
            if record.is_flagged:
                metrics.without_destination.inc()
        for record in resolved:
            self._outbox.record(None, _event(AlertResolved, record, resolved_by=record.resolved_by))
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", str(self._revision))])
        value = _encode(StoredAlert(positions=positions))
        messages.append(PendingMessage(_SUBJECT + POSITIONS_KEY, value, new_id(), headers, is_conditional=True))
        try:
            acks = await self._committer.append_together(messages)
        except BaseException:  # the positions must not be stored without them: the notifier goes on after an error
            book.changed = {**changed, **book.changed}
            raise
        self._revision, self._stored_positions = acks[-1].sequence, positions
        for record in changed.values():
            if record.is_kept:
                self.history.add(record.tenant, record.key)
        await self._remove_oldest()

    async def _remove_oldest(self) -> None:
        """Remove the resolved alerts that a tenant has too many of."""
        while keys := self.history.excess(_REMOVED_MAX):
            headers = header_lines([("KV-Operation", "DEL"), ("Nats-TTL", f"{_PENDING_SECONDS}s")])
            await self._committer.append_together([PendingMessage(_SUBJECT + key, b"", new_id(), headers) for key in keys])
            self.history.removed(keys)

    # Events

    async def _follow(self, stream: str) -> None:
        source = Source(stream, f"{STREAMS[stream]}.>", is_only_subject=True)
        batches = follow_batches(self._connection, source, self.positions[stream], entries_max=_FRAMES_MAX, bytes_max=_BYTES_MAX)
        async with aclosing(batches) as found:
            async for batch in found:
                for entry in batch:
                    await self.flush_if_full()
                    for _ in self.apply_in_parts(stream, entry):
                        await self.flush_if_full()
                await asyncio.sleep(0)

    def apply(self, stream: str, entry: Entry) -> None:
        """Count the events of a frame."""
        for _ in self.apply_in_parts(stream, entry):
            pass

    def apply_in_parts(self, stream: str, entry: Entry) -> Iterator[None]:
        """Count the events of a frame, from the position within it on. Yields before more than `_PART_MAX` alerts change.

        Equal events are counted together: a busy sender has many in a frame.
        """
        tenant, changes = entry.subject.partition(".")[2], 0
        if self._is_deleted(tenant):
            self._set_position(stream, entry.sequence)
            return
        first = self.positions[stream + _LINES] if self.positions.get(stream + _FRAME) == entry.sequence else 0
        equal: dict[tuple[object, ...], list[tuple[EventFields, bytes]]] = {}
        for number, line in enumerate(unpack(entry.payload)):
            if number < first:
                continue
            name = encoded_type(line)
            is_opposite = name in _OPPOSITE_TYPES
            rules = self._index.of_type(tenant, name)
            if not is_opposite and not rules:
                continue
            try:
                event = _decode_event(line)
            except (ValueError, RecursionError):  # a foreign entry in the stream
                continue
            if event.tenant != tenant:
                continue
            compared = event.compared
            if is_opposite or compared not in equal:
                most = len(rules) + (len(self._index.rules(tenant)) if is_opposite else 0)  # it ends what was before it
                is_over = changes > 0 and changes + most > _PART_MAX
                if is_opposite or is_over:
                    self._count(equal, entry.at_ms)
                    equal = {}
                if is_over:
                    self.positions |= {stream + _FRAME: entry.sequence, stream + _LINES: number}
                    yield
                    changes = 0
                changes += most
            equal.setdefault(compared, []).append((event, line))
        self._count(equal, entry.at_ms)
        self._set_position(stream, entry.sequence)

    def _set_position(self, stream: str, sequence: int) -> None:
        """Everything up to this frame is counted."""
        self.positions[stream] = sequence
        for within in (_FRAME, _LINES):
            self.positions.pop(stream + within, None)

    def _count(self, equal: Mapping[tuple[object, ...], Sequence[tuple[EventFields, bytes]]], at_ms: int) -> None:
        for events in equal.values():
            event = events[0][0]
            self.book.apply_equal(events, self._index.of_type(event.tenant, event.event.encode()), at_ms)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.tick()
            metrics.open_alerts.set(len(self.book.alerts))

    async def tick(self) -> None:
        """End windows, resolve the alerts that users resolved, and store the changes."""
        for record in [*self.book.alerts.values(), *self.book.unsent.values()]:
            action = self._actions.get(record.key)
            if self._is_deleted(record.tenant):
                self.book.forget(record)
            elif not record.is_open:
                continue
            elif not self._is_served(record.tenant):
                record.due = {}
                self.book.resolve(record, "event", self._clock())
            elif action is not None and action.resolved_ms:
                self.book.resolve(record, action.resolved_by, action.resolved_ms)
            await self.flush_if_full()
        await self.flush_if_full()
        while self.book.tick(self._clock(), self._index.rule, self._is_acknowledged, _CHANGED_MAX):
            await self.flush_if_full()
        await self.flush()

    def _is_acknowledged(self, record: AlertRecord) -> bool:
        action = self._actions.get(record.key)
        return action is not None and action.acknowledged_ms > 0


def _stored(entry: Entry) -> StoredAlert | None:
    if "KV-Operation" in entry.headers or "Nats-Marker-Reason" in entry.headers:
        return None
    try:
        return _decode_stored(entry.payload)
    except ValueError:
        log.error("alert_unreadable", subject=entry.subject)
        return None


def _message(record: AlertRecord) -> PendingMessage:
    """The record; resolved ones are kept for the history, groups that did not open for a moment."""
    headers = ""
    if not record.is_open:
        seconds = _PENDING_SECONDS if record.is_pending else _HISTORY_SECONDS
        headers = header_lines([("Nats-TTL", f"{seconds}s")])
    return PendingMessage(_SUBJECT + record.key, _encode(StoredAlert(alert=record)), new_id(), headers)


def _event(kind: type[AlertEvent], record: AlertRecord, **more: str) -> AlertEvent:
    name = "opened" if kind is AlertOpened else "resolved"
    return kind(
        event_id=derived_id(record.opened_ms, name, record.id),
        tenant=record.tenant,
        alert_id=record.id,
        rule=record.rule,
        alert_event=record.event,
        group=record.group,
        severity=record.severity,
        count=record.count,
        summary=summary_of(record.severity, record.event, record.group, record.count),
        **more,
    )
