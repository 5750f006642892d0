"""Live reading of topics: all readers of a topic in a process share its tail, and each message is encoded once.

A reader that starts before the ring of the tail, or falls behind it, reads the log in pages and then joins the ring. A reader
that is far behind after it was live is too slow: its connection ends, and it can resume.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from postroad.jetstream.connection import Connection
from postroad.jetstream.process_counts import ProcessCounts
from postroad.jetstream.shared_tail import SharedTail, SharedTails
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source
from postroad.kernel.errors import InvalidParameter
from postroad.topics import metrics
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live_log import LiveLog
from postroad.topics.live_message import LiveForm, LiveMessage, Selection
from postroad.topics.live_position import LiveStart, ResumePoint, incarnation_tag, start_of
from postroad.topics.live_reader import LiveReader, LiveSink, LiveTopic
from postroad.topics.reading import END, TopicReader
from postroad.topics.records import TopicRecord, read_message


@dataclass(frozen=True, slots=True)
class _TailKey:
    """A topic that was deleted and created again has another tail."""

    tenant: str
    name: str
    incarnation: str
    record: TopicRecord = field(compare=False)


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Where a reader of a topic starts. `last` is the newest sequence of the topic."""

    record: TopicRecord
    selection: Selection
    start: LiveStart
    last: int
    subscription: str = ""  # the key of the stored subscription that it reads


class LiveTopics:
    def __init__(self, connection: Connection, lifecycle: TopicLifecycle, reader: TopicReader) -> None:
        self._connection, self._reader = connection, reader
        self._tails: SharedTails[_TailKey, LiveMessage] = SharedTails(connection, _source, _converter)
        self._topics: dict[SharedTail[LiveMessage], LiveTopic] = {}
        self._log = LiveLog(connection)
        self._open: dict[str, int] = {}  # readers in this process, by stream and by key of the subscription
        self.connections = ProcessCounts(
            connection, "postroad.live-readers", lambda: self._open, interval_seconds=2.5, expiry_seconds=8
        )
        lifecycle.on_end(lambda record: self._tails.end(_tail_key(record)))

    async def plan(
        self,
        record: TopicRecord,
        selection: Selection,
        resume: ResumePoint | None = None,
        *,
        from_sequence: int | None = None,
        from_ms: int | None = None,
        subscription: str = "",
    ) -> LivePlan:
        """Plan a reader: after `resume` if it has one, else from a sequence or a time, else from now on.

        Raises InvalidParameter, TopicNotFound if the topic is being deleted, EngineUnavailable.
        """
        if from_sequence is not None and from_ms is not None:
            raise InvalidParameter("send `fromSequence` or `fromTime`, not both")
        wanted = resume
        if wanted is None and from_sequence is not None:
            wanted = ResumePoint(from_sequence - 1)
        if wanted is None and from_ms is not None:
            sequence = await self._reader.sequence_at(record, from_ms)
            wanted = None if sequence == END else ResumePoint(sequence - 1)
        tail = self._tails.current(_tail_key(record))
        if tail is not None and (wanted is None or _is_in_ring(wanted, record, tail)):
            start = LiveStart(tail.position if wanted is None else wanted.after)
            return LivePlan(record, selection, start, tail.position, subscription)
        state = await self._log.state(record)
        start = LiveStart(state.last_seq)
        if wanted is not None:
            start = start_of(wanted, record.incarnation, max(1, state.first_seq), state.last_seq)
        await self._connection.store_sync.wait(record.stream, state.last_seq)
        return LivePlan(record, selection, start, state.last_seq, subscription)

    def start(self, plan: LivePlan, form: LiveForm, sink: LiveSink) -> LiveReader:
        """Start a reader, which sends to the sink. Must be closed."""
        key = _tail_key(plan.record)
        tail = self._tails.acquire(key, plan.last)
        topic = self._topics.get(tail)
        if topic is None:
            topic = self._topics[tail] = LiveTopic(plan.record, tail)
        metrics.live_readers.inc()
        self._count(plan, 1)

        def closed(_reader: LiveReader) -> None:
            metrics.live_readers.dec()
            self._count(plan, -1)
            self._tails.release(key, tail)
            if not topic.readers:
                topic.close()
                self._topics.pop(tail, None)

        reader = LiveReader(topic, self._log, plan.selection, form, sink, plan.start, plan.last, closed)
        reader.start()
        return reader

    def _count(self, plan: LivePlan, change: int) -> None:
        for key in (plan.record.stream, plan.subscription):
            if key:
                count = self._open[key] = self._open.get(key, 0) + change
                if not count:
                    del self._open[key]


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
