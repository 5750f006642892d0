"""Readers of a topic. Those with equal selections form a group, which passes new messages on to all of them at once.

A reader has a task only while it catches up: with the log, or with the ring of the tail after it was slow. Then it joins its
group, and costs one write for the new messages of a group, whatever their number.
"""

import asyncio
from collections.abc import Callable, Container
from enum import StrEnum
from typing import Protocol

import structlog

from postroad.jetstream.shared_tail import SharedTail
from postroad.topics import metrics
from postroad.topics.live_log import LiveLog
from postroad.topics.live_message import LiveForm, LiveMessage, Selection, gap_frame, ready_frame, reset_frame
from postroad.topics.live_position import LiveStart
from postroad.topics.records import TopicRecord

_BEHIND_MAX = 10_000  # messages, of a reader that was live
_SILENT_MAX = 256  # messages that a reader does not select, before it gets their position
_SLICE_READERS = 64  # that are written to before other work goes on
_SUBJECTS_MAX = 1_000  # whose newest message a group keeps for an interval

log = structlog.get_logger("postroad.topics")


class ReaderEnd(StrEnum):
    """Why a reader ends. `CHANGED`: what it reads has changed or is gone. `FAILED`: a bug; the client can resume."""

    TOO_SLOW = "too_slow"
    CHANGED = "changed"
    FAILED = "failed"


class LiveSink(Protocol):
    """The connection of a reader."""

    @property
    def is_paused(self) -> bool:
        """True while the client does not read: nothing more should be sent."""

    def send(self, frames: bytes) -> None: ...

    def end(self, reader: "LiveReader", reason: ReaderEnd) -> None:
        """The reader sends nothing more, and was closed."""


class LiveTopic:
    """The tail of a topic in this process, and the groups of its readers."""

    def __init__(self, record: TopicRecord, tail: SharedTail[LiveMessage]) -> None:
        self.record, self.tail = record, tail
        self.readers: set[LiveReader] = set()
        self._groups: dict[tuple[Selection, str | None], _Group] = {}
        tail.listeners.add(self)

    def group(self, selection: Selection, form: LiveForm) -> "_Group":
        key = (selection, form.key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self, selection, form)
        return group

    def drop(self, group: "_Group") -> None:
        key = (group.selection, group.form.key)
        if self._groups.get(key) is group:
            del self._groups[key]

    def close(self) -> None:
        self.tail.listeners.discard(self)

    @property
    def has_ended(self) -> bool:
        return self.tail.has_ended or self.tail.running.done()

    @property
    def is_busy(self) -> bool:
        return any(group.is_busy for group in self._groups.values())

    def tail_changed(self) -> None:
        if self.has_ended:
            for reader in tuple(self.readers):
                reader.end(ReaderEnd.CHANGED)
            return
        for group in tuple(self._groups.values()):
            group.advance()


class _Group:
    """Readers that have received everything up to `position`, except for those in `_pending`, which are written to next."""

    def __init__(self, topic: LiveTopic, selection: Selection, form: LiveForm) -> None:
        self.topic, self.selection, self.form = topic, selection, form
        self.readers: dict[LiveReader, None] = {}
        self.position = topic.tail.position
        self._announced = self._previous = self.position
        self._pending: dict[LiveReader, None] = {}
        self._frames = b""
        self._count = 0  # messages in them
        self._collected = self.position  # up to here, the newest messages are in `_latest`
        self._latest: dict[str, LiveMessage] = {}
        self._ahead: dict[LiveReader, int] = {}  # readers that have what is in `_latest` up to this sequence already
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """True while it writes to its readers, which then differ in what they have received."""
        return bool(self._pending)

    def takes(self, position: int) -> bool:
        """True if a reader that has received everything up to this sequence can join now."""
        return not self._pending and position == (self._collected if self.selection.latest_ms else self.position)

    def add(self, reader: "LiveReader", position: int) -> None:
        """Add a reader that has received everything up to this sequence, which the group `takes`."""
        self.readers[reader] = None
        if position > self.position:
            self._ahead[reader] = position

    def position_of(self, reader: "LiveReader") -> int:
        """Everything up to this sequence was sent to the reader."""
        return self._ahead.get(reader) or (self._previous if reader in self._pending else self.position)

    def remove(self, reader: "LiveReader") -> int:
        """Remove a reader, and return its position."""
        position = self.position_of(reader)
        self.readers.pop(reader, None)
        self._pending.pop(reader, None)
        self._ahead.pop(reader, None)
        if not self.readers:
            self.topic.drop(self)
            if self._timer is not None:
                self._timer.cancel()
        return position

    def advance(self) -> None:
        """Pass the new messages of the tail on, or keep the newest of each subject until the interval ends."""
        if self.selection.latest_ms:
            self._collect()
        elif not self._pending:
            self._pass_on()

    def flush(self) -> None:
        """Take everything that the tail has, and pass it on unless an interval has to end first. The group must not be busy."""
        if self.selection.latest_ms:
            self._collect()
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        tail = self.topic.tail
        if self.position >= tail.position:
            return
        if self.position < tail.ring_start:
            self._leave_ring()
            return
        frames, count, position = new_frames(self.topic.record, self.selection, self.form, tail, self.position)
        self._begin(frames, count, position)

    def _begin(self, frames: list[bytes], count: int, position: int, without: "Container[LiveReader]" = ()) -> None:
        """Send the frames to the readers, but not to those that have them already."""
        self._previous, self.position = self.position, position
        if not frames and position - self._announced >= _SILENT_MAX:
            frames = [self.form.position(self.topic.record, position)]
        if not frames:
            return
        self._announced = position
        self._frames, self._count = frames[0] if len(frames) == 1 else b"".join(frames), count
        self._pending = {reader: None for reader in self.readers if reader not in without} if without else dict(self.readers)
        self._send_slice()

    def _send_slice(self) -> None:
        frames, sent = self._frames, 0
        behind: list[LiveReader] = []
        for reader in list(self._pending)[:_SLICE_READERS]:
            sink = reader.sink
            if sink.is_paused:
                behind.append(reader)
                continue
            del self._pending[reader]
            sink.send(frames)
            sent += 1
        if self._count and sent:
            metrics.live_messages.add(self.topic.record.tenant, self._count * sent)
        for reader in behind:
            reader.fall_behind()
        if self._pending:
            asyncio.get_running_loop().call_soon(self._send_slice)
            return
        self._frames = b""
        if self.readers and not self.selection.latest_ms:
            self._pass_on()

    def _leave_ring(self) -> None:
        """The ring has passed the group: its readers catch up from the log."""
        for reader in tuple(self.readers):
            reader.fall_behind()

    # Only the newest message of each subject

    def _collect(self) -> None:
        tail = self.topic.tail
        if self._collected < tail.ring_start:
            self._leave_ring()
            return
        for message in tail.items_after(self._collected):
            if message.is_selected(self.selection):
                self._latest.pop(message.subject, None)
                self._latest[message.subject] = message
        self._collected = tail.position
        if len(self._latest) >= _SUBJECTS_MAX and not self._pending:
            self._pass_latest()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.selection.latest_ms / 1000, self._interval_ended)

    def _interval_ended(self) -> None:
        self._timer = None
        if self._pending:
            self._timer = asyncio.get_running_loop().call_later(self.selection.latest_ms / 1000, self._interval_ended)
        elif self.readers:
            self._pass_latest()

    def _pass_latest(self) -> None:
        messages, self._latest = list(self._latest.values()), {}
        if self._collected <= self.position:
            return
        for reader, position in tuple(self._ahead.items()):
            self._pass_newer(reader, [one for one in messages if one.sequence > position])
        ahead, self._ahead = self._ahead, {}
        self._begin([one.frame(self.form) for one in messages], len(messages), self._collected, ahead)

    def _pass_newer(self, reader: "LiveReader", messages: "list[LiveMessage]") -> None:
        """Send a reader that joined during the interval what it does not have."""
        if not messages:
            return
        if reader.sink.is_paused:
            reader.fall_behind()
            return
        reader.sink.send(b"".join([one.frame(self.form) for one in messages]))
        metrics.live_messages.add(self.topic.record.tenant, len(messages))


class LiveReader:
    """One reader of a topic whose newest sequence is `last`. `on_close` is called once, when it ends or is closed."""

    __slots__ = (
        "_catching_up",
        "_group",
        "_is_closed",
        "_is_ready",
        "_last",
        "_log",
        "_on_close",
        "_position",
        "_resumed",
        "_start",
        "form",
        "selection",
        "sink",
        "topic",
    )

    def __init__(
        self,
        topic: LiveTopic,
        log: LiveLog,
        selection: Selection,
        form: LiveForm,
        sink: LiveSink,
        start: LiveStart,
        last: int,
        on_close: "Callable[[LiveReader], None]",
    ) -> None:
        self.topic, self._log, self.selection, self.form, self.sink = topic, log, selection, form, sink
        self._start, self._last, self._on_close = start, last, on_close
        self._position = start.after
        self._group: _Group | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._resumed: asyncio.Future[None] | None = None
        self._is_ready = self._is_closed = False
        topic.readers.add(self)

    @property
    def position(self) -> int:
        """Everything up to this sequence was sent."""
        return self._position if self._group is None else self._group.position_of(self)

    def start(self) -> None:
        record = self.topic.record
        if self._start.is_reset:
            self.sink.send(reset_frame(self.form, record, self._start.after))
        if self._start.gap is not None:
            metrics.live_gaps.inc()
            self.sink.send(gap_frame(self.form, record, self._start.gap))
        if not self._join():
            self._catch_up_later()

    def writable(self) -> None:
        """The client reads again: go on if it is behind."""
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def fall_behind(self) -> None:
        """Leave the group; catch up when the client reads again."""
        if self._group is not None:
            self._position = self._group.remove(self)
            self._group = None
        if not self._is_closed:
            self._catch_up_later()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._group is not None:
            self._position = self._group.remove(self)
            self._group = None
        if self._catching_up is not None:
            self._catching_up.cancel()
        self.topic.readers.discard(self)
        self._on_close(self)

    def end(self, reason: ReaderEnd) -> None:
        if not self._is_closed:
            self.close()
            self.sink.end(self, reason)

    # Catching up

    def _catch_up_later(self) -> None:
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())
            self._catching_up.add_done_callback(self._caught_up)

    def _caught_up(self, task: "asyncio.Task[None]") -> None:
        """A reader whose catching up has failed must not wait for ever: its client connects again."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("live_reader_crashed", topic=self.topic.record.name, exc_info=failure)
            self.end(ReaderEnd.FAILED)

    async def _catch_up(self) -> None:
        tail, record = self.topic.tail, self.topic.record
        announced = self._position
        metrics.live_catch_ups.inc()
        while not self.topic.has_ended:
            while self.sink.is_paused:
                self._resumed = asyncio.get_running_loop().create_future()
                await self._resumed
            if self._is_ready and tail.position - self._position > _BEHIND_MAX and self._position < tail.ring_start:
                metrics.live_slow_readers.inc()
                self._catching_up = None
                self.end(ReaderEnd.TOO_SLOW)
                return
            if self._position < tail.ring_start:
                page = await self._log.read(record, self.selection, self._position, tail)
                chosen = latest_of(page.messages) if self.selection.latest_ms else page.messages
                frames = [one.frame(self.form) for one in chosen]
                if page.gap is not None:
                    metrics.live_gaps.inc()
                    frames.insert(0, gap_frame(self.form, record, page.gap))
                count, position = len(chosen), page.position
            elif self._position < tail.position:
                frames, count, position = new_frames(record, self.selection, self.form, tail, self._position)
            elif self._join():
                self._catching_up = None
                return
            elif self._position > tail.position or self._position < self._last:
                await tail.wait()
                continue
            else:
                await asyncio.sleep(0)  # its group is writing
                continue
            self._position = position
            if not frames and position - announced >= _SILENT_MAX:
                frames = [self.form.position(record, position)]
            if frames:
                announced = position
                metrics.live_messages.add(record.tenant, count)
                self.sink.send(b"".join(frames))

    def _join(self) -> bool:
        """Join the group if the reader has everything that the tail has. False if it has not, or the group is writing."""
        tail = self.topic.tail
        if self._position != tail.position or self._position < self._last or self.sink.is_paused:
            return False
        group = self.topic.group(self.selection, self.form)
        if not group.is_busy:
            group.flush()
        if not group.takes(self._position):
            if not group.readers:
                self.topic.drop(group)
            return False
        if not self._is_ready:
            self._is_ready = True
            self.sink.send(ready_frame(self.form, self.topic.record, self._position))
        self._group = group
        group.add(self, self._position)
        return True


def new_frames(
    record: TopicRecord, selection: Selection, form: LiveForm, tail: SharedTail[LiveMessage], position: int
) -> tuple[list[bytes], int, int]:
    """The frames of the ring after the position, how many are messages, and the position after them. Sequences that the tail
    lacks were removed before it could read them."""
    frames: list[bytes] = []
    chosen: list[LiveMessage] = []
    for message in tail.items_after(position):
        if message.sequence > position + 1:
            metrics.live_gaps.inc()
            frames.append(gap_frame(form, record, (position + 1, message.sequence - 1)))
        position = message.sequence
        if message.is_selected(selection):
            chosen.append(message)
            if not selection.latest_ms:
                frames.append(message.frame(form))
    if selection.latest_ms:
        chosen = latest_of(chosen)
        frames += [one.frame(form) for one in chosen]
    return frames, len(chosen), position


def latest_of(messages: list[LiveMessage]) -> list[LiveMessage]:
    """The newest message of each subject, in the order of the topic."""
    newest = {message.subject: message.sequence for message in messages}
    return [message for message in messages if newest[message.subject] == message.sequence]
