"""Groups of live readers of a topic, on a tail whose messages the test adds, in virtual time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from postroad.topics.live_message import LiveMessage, Selection, SocketForm
from postroad.topics.live_position import LiveStart
from postroad.topics.live_reader import LiveReader, LiveTopic, ReaderEnd
from postroad.topics.records import StoredTopicMessage, TopicRecord
from tests.virtual_time import in_virtual_time

RECORD = cast(TopicRecord, SimpleNamespace(name="orders", tenant="acme", incarnation="0123456789ab"))


class Tail:
    """A tail whose ring keeps every message."""

    def __init__(self) -> None:
        self.ring_start = self.position = 0
        self.has_ended = False
        self.listeners: set[Any] = set()
        self.running = SimpleNamespace(done=lambda: False)
        self._messages: list[LiveMessage] = []

    def items_after(self, position: int) -> list[LiveMessage]:
        return self._messages[position:]

    def publish(self, subject: str) -> None:
        self.position += 1
        stored = StoredTopicMessage(self.position, 0, subject, f"t.{subject}", {}, None, None, 0, b"")
        self._messages.append(LiveMessage(RECORD, stored))
        for listener in tuple(self.listeners):
            listener.tail_changed()


class Sink:
    def __init__(self) -> None:
        self.is_paused = False
        self.sequences: list[int] = []

    def send(self, frames: bytes) -> None:
        while frames:
            size, start = (frames[1], 2) if frames[1] < 126 else (int.from_bytes(frames[2:4], "big"), 4)
            found: dict[str, Any] = msgspec.json.decode(frames[start : start + size])
            frames = frames[start + size :]
            if found["op"] == "message":
                self.sequences.append(found["sequence"])

    def end(self, reader: LiveReader, reason: ReaderEnd) -> None:
        raise AssertionError(reason)


@contextmanager
def reading(topic: LiveTopic, latest_ms: int) -> Iterator[Sink]:
    """A reader that starts after the newest message, or the sink of one."""
    sink, last = Sink(), topic.tail.position
    selection = Selection((">",), latest_ms=latest_ms)
    reader = LiveReader(topic, cast(Any, None), selection, SocketForm("a"), sink, LiveStart(last), last, lambda _reader: None)
    reader.start()
    try:
        yield sink
    finally:
        reader.close()


@in_virtual_time
async def test_a_reader_that_joins_does_not_end_the_interval_of_the_others() -> None:
    tail = Tail()
    topic = LiveTopic(RECORD, cast(Any, tail))
    with reading(topic, 1000) as first:
        tail.publish("a")
        await asyncio.sleep(0.5)
        with reading(topic, 1000) as second:
            assert first.sequences == []
            tail.publish("a")
            tail.publish("b")
            await asyncio.sleep(0.6)
            assert first.sequences == second.sequences == [2, 3]
            tail.publish("a")
            await asyncio.sleep(1.1)
            assert first.sequences == second.sequences == [2, 3, 4]


@in_virtual_time
async def test_a_reader_that_joins_during_an_interval_gets_nothing_twice() -> None:
    """Of what waits for the end of the interval it has read a part by itself."""
    tail = Tail()
    topic = LiveTopic(RECORD, cast(Any, tail))
    with reading(topic, 1000) as first:
        tail.publish("a")
        tail.publish("b")
        with reading(topic, 1000) as second:
            tail.publish("b")
            await asyncio.sleep(1.1)
            assert (first.sequences, second.sequences) == ([1, 3], [3])


@in_virtual_time
async def test_a_reader_that_joined_during_an_interval_and_does_not_read_continues_where_it_was() -> None:
    tail = Tail()
    topic = LiveTopic(RECORD, cast(Any, tail))
    with reading(topic, 1000) as first:
        tail.publish("a")
        with reading(topic, 1000) as second:
            second.is_paused = True
            tail.publish("b")
            await asyncio.sleep(1.1)
            assert (first.sequences, second.sequences) == ([1, 2], [])
            [behind] = [one for one in topic.readers if one.sink is second]
            assert behind.position == 1
            second.is_paused = False
            behind.writable()
            await asyncio.sleep(1.1)
            assert second.sequences == [2]
