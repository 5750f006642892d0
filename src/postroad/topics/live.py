"""Live reading of topics: all readers of a topic in a process share its tail, and each message is encoded once.

A reader that starts before the ring of the tail, or falls behind it, reads the log in pages and then joins the ring. A reader
that is far behind after it was live is too slow: its connection ends, and it can resume.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from msgspec import UNSET

from postroad.api.topics import LiveTopicMessage, TopicGap, TopicNotFound, TopicReady, TopicReset
from postroad.http.sse import frame
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, stream_info
from postroad.jetstream.shared_tail import SharedTail, SharedTails
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.json import encode
from postroad.kernel.matching import pattern_matches
from postroad.topics import metrics
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live_position import LiveStart, ResumePoint, incarnation_tag, start_of
from postroad.topics.reading import END, TopicReader
from postroad.topics.records import StoredTopicMessage, TopicRecord, json_payload, read_message
from postroad.topics.rules import common_pattern

_PAGE_ENTRIES = 256
_PAGE_BYTES = 256 * 1024  # also of the frames that are sent together
_PAGES_AT_ONCE = 8  # in the process: readers that catch up must not fill the engine connection
_BEHIND_MAX = 10_000  # messages, of a reader that was live
_SILENT_MAX = 256  # messages that a reader does not select, before it gets their position
_SELECTIONS_MAX = 64  # whose result is remembered for a message
_LAG_SECONDS = 0.02  # before a lagging replica is read again


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a reader: by patterns of subjects, and by content. Equal selections are matched once per message.

    `content_key` stands for `content` in comparisons.
    """

    patterns: tuple[str, ...]
    content_key: Hashable = None
    content: Callable[[StoredTopicMessage], bool] | None = field(default=None, compare=False)

    def selects(self, message: StoredTopicMessage) -> bool:
        return any(pattern_matches(one, message.subject) for one in self.patterns) and (
            self.content is None or self.content(message)
        )


class LiveMessage:
    """A message for all readers: encoded once, and matched once for equal selections."""

    def __init__(self, record: TopicRecord, stored: StoredTopicMessage) -> None:
        self.sequence = stored.sequence
        self._record, self._stored = record, stored
        self._selected: dict[Selection, bool] = {}

    @cached_property
    def frame(self) -> bytes:
        return message_frame(self._record, self._stored)

    def is_selected(self, selection: Selection) -> bool:
        known = self._selected.get(selection)
        if known is None:
            known = selection.selects(self._stored)
            if len(self._selected) < _SELECTIONS_MAX:
                self._selected[selection] = known
        return known


@dataclass(frozen=True, slots=True)
class _TailKey:
    """A topic that was deleted and created again has another tail."""

    tenant: str
    name: str
    incarnation: str
    record: TopicRecord = field(compare=False)


@dataclass(frozen=True, slots=True)
class _LogPage:
    """Messages of the log that a reader selects, the position after them, and messages before them that were removed."""

    messages: list[LiveMessage]
    position: int
    gap: tuple[int, int] | None


class LiveTopics:
    def __init__(self, connection: Connection, lifecycle: TopicLifecycle, reader: TopicReader) -> None:
        self._connection, self._reader = connection, reader
        self._tails: SharedTails[_TailKey, LiveMessage] = SharedTails(connection, _source, _converter)
        self._page_slots = asyncio.Semaphore(_PAGES_AT_ONCE)
        lifecycle.on_end(lambda record: self._tails.end(_tail_key(record)))

    async def open(
        self,
        record: TopicRecord,
        selection: Selection,
        resume: ResumePoint | None,
        *,
        from_sequence: int | None = None,
        from_ms: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The events of a reader: after `resume` if it has one, else from a sequence or a time, else from now on.

        Raises TopicNotFound if the topic is being deleted, EngineUnavailable.
        """
        key = _tail_key(record)
        wanted = resume
        if wanted is None and from_sequence is not None:
            wanted = ResumePoint(from_sequence - 1)
        if wanted is None and from_ms is not None:
            sequence = await self._reader.sequence_at(record, from_ms)
            wanted = None if sequence == END else ResumePoint(sequence - 1)
        tail = self._tails.current(key)
        if tail is not None and (wanted is None or _is_in_ring(wanted, record, tail)):
            return self._events(key, selection, LiveStart(tail.position if wanted is None else wanted.after), tail.position)
        state = await self._state(record)
        start = LiveStart(state.last_seq)
        if wanted is not None:
            start = start_of(wanted, record.incarnation, max(1, state.first_seq), state.last_seq)
        await self._connection.store_sync.wait(record.stream, state.last_seq)
        return self._events(key, selection, start, state.last_seq)

    async def _state(self, record: TopicRecord) -> StreamState:
        info = await stream_info(self._connection, record.stream)
        if info is None:
            raise TopicNotFound(f"the topic {record.name!r} is being deleted")
        return info.state

    async def _events(self, key: _TailKey, selection: Selection, start: LiveStart, last: int) -> AsyncIterator[bytes]:
        """The events after the start, until the topic ends or the reader is too slow. `last` is the newest sequence."""
        record = key.record
        with self._tails.join(key, last) as tail, metrics.live_readers.track_inprogress():
            if start.is_reset:
                yield _reset_frame(record, start.after)
            if start.gap is not None:
                yield _gap_frame(record, start.gap)
            position, is_ready, announced = start.after, False, start.after
            while not tail.has_ended and not tail.running.done():
                if position < tail.ring_start:
                    if is_ready and tail.position - position > _BEHIND_MAX:
                        metrics.live_slow_readers.inc()
                        return
                    page = await self._read_page(record, selection, position, tail)
                    gap, chosen, position = page.gap, page.messages, page.position
                    frames = [] if gap is None else [_gap_frame(record, gap)]
                    frames += [one.frame for one in chosen]
                    metrics.live_messages.add(record.tenant, len(chosen))
                else:
                    frames, position = _new_frames(record, selection, tail, position)
                for chunk in _chunks(frames):
                    yield chunk
                if frames:
                    announced = position
                elif position - announced >= _SILENT_MAX:
                    announced = position
                    yield _position_frame(record, position)
                if not is_ready and position >= max(last, tail.position):
                    is_ready, announced = True, position
                    yield _ready_frame(record, position)
                if position >= tail.position:
                    await tail.wait()

    async def _read_page(
        self, record: TopicRecord, selection: Selection, position: int, tail: SharedTail[LiveMessage]
    ) -> _LogPage:
        """The next messages of the log after the position. Waits while the engine is unavailable."""
        subject = f"{record.subject}.{common_pattern(selection.patterns)}"
        while not tail.has_ended:
            target = tail.ring_start
            try:
                async with self._page_slots:
                    end = await self._last_sequence(record, subject)
                    page = await stream_reader.read(
                        self._connection, record.stream, subject, position + 1, _PAGE_ENTRIES, _PAGE_BYTES
                    )
                    following = page.entries[0].sequence if page.entries else target + 1
                    first = (await self._state(record)).first_seq if following > position + 1 else 0
            except (EngineUnavailable, TopicNotFound):
                await asyncio.sleep(0.1)
                await self._connection.wait_up()
                continue
            if page.is_end and page.next_sequence <= end:
                await asyncio.sleep(_LAG_SECONDS)
                continue
            messages = [LiveMessage(record, read_message(record, entry)) for entry in page.entries]
            reached = page.entries[-1].sequence if page.entries else position
            gap_end = min(first, following) - 1
            return _LogPage(
                [one for one in messages if one.is_selected(selection)],
                max(reached, target) if page.is_end else reached,
                (position + 1, gap_end) if gap_end > position else None,
            )
        return _LogPage([], position, None)

    async def _last_sequence(self, record: TopicRecord, subject: str) -> int:
        """The sequence to reach, from the leader: a replica that answers a read may lag. 0 without replicas."""
        if not self._connection.settings.has_replicas:
            return 0
        newest = await stream_reader.last(self._connection, record.stream, subject)
        return 0 if newest is None else newest.sequence


def _tail_key(record: TopicRecord) -> _TailKey:
    return _TailKey(record.tenant, record.name, record.incarnation, record)


def _source(key: _TailKey) -> Source:
    return Source(key.record.stream, f"{key.record.subject}.>")


def _converter(key: _TailKey) -> Callable[[Entry], LiveMessage]:
    return lambda entry: LiveMessage(key.record, read_message(key.record, entry))


def _is_in_ring(wanted: ResumePoint, record: TopicRecord, tail: SharedTail[LiveMessage]) -> bool:
    """True if the ring has every message after the position, so that there is no gap."""
    is_same = wanted.incarnation in (None, incarnation_tag(record.incarnation))
    return is_same and tail.ring_start <= wanted.after <= tail.position


def _new_frames(
    record: TopicRecord, selection: Selection, tail: SharedTail[LiveMessage], position: int
) -> tuple[list[bytes], int]:
    """The frames of the ring after the position, and the position after them. Sequences that the tail lacks were removed before
    it could read them."""
    frames: list[bytes] = []
    count = 0
    for message in tail.items_after(position):
        if message.sequence > position + 1:
            frames.append(_gap_frame(record, (position + 1, message.sequence - 1)))
        position = message.sequence
        if message.is_selected(selection):
            frames.append(message.frame)
            count += 1
    if count:
        metrics.live_messages.add(record.tenant, count)
    return frames, position


def _chunks(frames: list[bytes]) -> list[bytes]:
    """The frames, joined to chunks of about `_PAGE_BYTES`."""
    if len(frames) <= 1:
        return frames
    chunks: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for one in frames:
        part.append(one)
        size += len(one)
        if size >= _PAGE_BYTES:
            chunks.append(b"".join(part))
            part, size = [], 0
    return [*chunks, b"".join(part)] if part else chunks


# Frames


def message_frame(record: TopicRecord, stored: StoredTopicMessage) -> bytes:
    payload = json_payload(stored)
    data = LiveTopicMessage(
        subject=stored.subject,
        nats_subject=stored.nats_subject,
        topic=record.name,
        sequence=stored.sequence,
        timestamp=rfc3339(stored.at_ms),
        headers=stored.headers,
        body_b64=base64.b64encode(stored.body).decode(),
        payload=UNSET if payload is None else payload,
        content_type=stored.content_type,
    )
    return _frame(record, "message", data, stored.sequence)


def _ready_frame(record: TopicRecord, position: int) -> bytes:
    return _frame(record, "ready", TopicReady(topic=record.name, sequence=position), position)


def _gap_frame(record: TopicRecord, gap: tuple[int, int]) -> bytes:
    metrics.live_gaps.inc()
    return _frame(record, "gap", TopicGap(topic=record.name, from_sequence=gap[0], to_sequence=gap[1]), gap[1])


def _reset_frame(record: TopicRecord, position: int) -> bytes:
    return _frame(record, "reset", TopicReset(topic=record.name, incarnation=record.incarnation, sequence=position + 1), position)


def _position_frame(record: TopicRecord, position: int) -> bytes:
    """An id without data: clients remember it, and no event is dispatched."""
    return f"id: {_event_id(record, position)}\n\n".encode()


def _frame(record: TopicRecord, event: str, data: msgspec.Struct, sequence: int) -> bytes:
    """White space in a payload may have a carriage return, which would end a line of the event."""
    return frame(encode(data).replace(b"\r", b" "), event=event, event_id=_event_id(record, sequence))


def _event_id(record: TopicRecord, sequence: int) -> str:
    return f"{sequence}-{incarnation_tag(record.incarnation)}"
