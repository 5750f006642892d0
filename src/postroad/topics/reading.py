"""Reads of a topic by sequence, time and patterns, its stats, and purge."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.api.topics import TopicNotFound, TopicStats
from postroad.governance.audit import Audit
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry, time_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.matching import pattern_matches
from postroad.queues.scan import ScanRange, scan
from postroad.telemetry.outbox import Outbox
from postroad.topics.events import TopicPurged
from postroad.topics.records import StoredTopicMessage, TopicRecord, read_message, stats_of, user_subject
from postroad.topics.rules import common_pattern, count_terms

END = 2**62  # of a range without an end
_SLICE_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Sequences from `start` to before `end`."""

    start: int = 1
    end: int = END


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """Messages of a range, in order. `next_sequence`: where to continue; None at the end of the range or of the topic."""

    messages: Sequence[StoredTopicMessage]
    next_sequence: int | None


class TopicReader:
    def __init__(self, connection: Connection, outbox: Outbox, audit: Audit) -> None:
        self._connection, self._outbox, self._audit = connection, outbox, audit

    async def read(
        self,
        record: TopicRecord,
        patterns: Sequence[str],
        wanted: SequenceRange,
        *,
        limit: int = 256,
        bytes_max: int = _SLICE_BYTES_MAX,
    ) -> TopicSlice:
        """Up to `limit` messages of the range whose subject matches one of the patterns; without patterns, all.

        One call searches some thousands of messages at most and returns bodies of `bytes_max` together, or one larger. The
        engine matches a single pattern; of several it gets one that covers them. Raises EngineUnavailable.
        """
        subject = f"{record.subject}.{common_pattern(patterns)}"
        several = tuple(patterns) if len(patterns) > 1 else ()

        def convert(entry: Entry) -> StoredTopicMessage | None:
            if several:
                named = user_subject(record, entry.subject)
                if not any(pattern_matches(one, named) for one in several):
                    return None
            return read_message(record, entry)

        scan_range = ScanRange(record.stream, (subject,), wanted.start, end_sequence=wanted.end)
        found = await scan(self._connection, scan_range, convert, limit, bytes_max=bytes_max)
        following = found.next_sequence
        return TopicSlice(found.items, None if following is None or following >= wanted.end else following)

    async def resolve_range(
        self,
        record: TopicRecord,
        *,
        from_sequence: int | None = None,
        to_sequence: int | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> SequenceRange:
        """The sequences within all these limits; `to_sequence` is included, `to_ms` is not."""
        start, end = from_sequence or 1, END if to_sequence is None else to_sequence + 1
        if from_ms is not None:
            start = max(start, await self.sequence_at(record, from_ms))
        if to_ms is not None:
            end = min(end, await self.sequence_at(record, to_ms))
        return SequenceRange(start, max(start, end))

    async def sequence_at(self, record: TopicRecord, at_ms: int) -> int:
        """The sequence of the first message stored at or after a time; `END` if there is none."""
        page = await stream_reader.read_since(self._connection, record.stream, f"{record.subject}.>", at_ms, 1)
        # The engine takes a time after 2262 for one in the past.
        return page.entries[0].sequence if page.entries and page.entries[0].at_ms >= at_ms else END

    async def count(self, record: TopicRecord, patterns: Sequence[str], wanted: SequenceRange) -> int:
        """The number of messages of the range that match one of the patterns. Raises InvalidParameter, EngineUnavailable."""
        total = 0
        for pattern, factor in count_terms(patterns):
            found = await self._count_from(record, pattern, wanted.start)
            if found and wanted.end < END:
                found -= await self._count_from(record, pattern, wanted.end)
            total += factor * found
        return max(0, total)

    async def _count_from(self, record: TopicRecord, pattern: str, sequence: int) -> int:
        page = await stream_reader.read(self._connection, record.stream, f"{record.subject}.{pattern}", sequence, 1)
        return len(page.entries) + page.remaining

    async def stats(self, record: TopicRecord) -> TopicStats:
        """Raises TopicNotFound if the topic is being deleted, EngineUnavailable."""
        info = await stream_info(self._connection, record.stream)
        if info is None:
            raise TopicNotFound(f"the topic {record.name!r} is being deleted")
        state = info.state
        times = (time_ms(state.first_ts), time_ms(state.last_ts)) if state.messages else (None, None)
        return stats_of(state, times)

    async def purge(
        self, context: RequestContext, record: TopicRecord, pattern: str, to_sequence: int | None, *, is_dry_run: bool
    ) -> int:
        """Delete the messages that match the pattern, up to and including a sequence; return their number.

        The last message of a topic with a feeder stays: the feeder reads from it how far it is.
        """
        if record.fed_by is not None:
            last = (await self.stats(record)).last_sequence
            to_sequence = max(0, last - 1) if to_sequence is None else min(to_sequence, last - 1)
            if to_sequence <= 0:
                return 0
        wanted = SequenceRange(end=END if to_sequence is None else to_sequence + 1)
        count = await self.count(record, (pattern,), wanted)
        if is_dry_run:
            return count
        subject = f"{record.subject}.{pattern}"
        before = {"messages": count, "subject": pattern, "toSequence": to_sequence}
        async with self._audit.change(context, "topic.purge", record.name, before=before):
            purged = await purge_stream(
                self._connection, record.stream, subject, before=None if to_sequence is None else to_sequence + 1
            )
        await self._outbox.commit(context, TopicPurged(topic=record.name, subject=pattern, to_sequence=to_sequence, count=purged))
        return purged
