"""The status of a subscription: from its stored progress, the topic's log, and the living delivery processes."""

from typing import Literal, cast

from postroad.api.subscriptions import SubscriptionStatus
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.membership import Membership
from postroad.jetstream.process_counts import ProcessCounts
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import InvalidParameter
from postroad.subscriptions.dead_letters import SubscriptionDeadLetterStore
from postroad.subscriptions.delivery_cursor import CursorState
from postroad.subscriptions.progress_store import ProgressStore
from postroad.subscriptions.records import ProgressRecord, SubscriptionRecord
from postroad.subscriptions.summary import live_summary, summary
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.reading import SequenceRange, TopicReader
from postroad.topics.records import TopicRecord
from postroad.topics.rules import common_pattern


class StatusReader:
    def __init__(
        self,
        connection: Connection,
        topics: TopicLifecycle,
        reader: TopicReader,
        progress: ProgressStore,
        dead_letters: SubscriptionDeadLetterStore,
        membership: Membership,
        clock: Clock,
        connections: ProcessCounts,
    ) -> None:
        self._connections = connections
        self._connection, self._topics, self._reader, self._progress = connection, topics, reader, progress
        self._dead_letters, self._membership, self._clock = dead_letters, membership, clock

    async def read(self, record: SubscriptionRecord) -> SubscriptionStatus:
        """Raises TopicNotFound, EngineUnavailable."""
        if record.is_read_live:
            return _live_status(record, self._connections.total(record.key))
        topic = await self._topics.find(record.tenant, record.topic)
        progress = (await self._progress.load(record)).record
        state = progress.cursor if progress is not None else CursorState(read_to=record.start_after)
        unread = await self._unread(record, topic, state.read_to)
        dead = await self._dead_letters.count(record)
        members = sorted(self._membership.members)
        lag, now = unread + len(state.open), self._clock()
        return SubscriptionStatus(
            summary=summary(record, progress, lag, dead, members, now),
            lag=lag,
            oldest_undelivered_at=await self._oldest(record, topic, state) if lag else None,
            open=len(state.open),
            in_flight=0 if progress is None else progress.in_flight,
            retrying=sum(1 for message in state.open if message.attempts),
            dead=dead,
            delivered_count=0 if progress is None else progress.delivered_count,
            failed_count=0 if progress is None else progress.failed_count,
            success_rate=_success_rate(progress),
            breaker=_breaker(progress),
            next_attempt_at=_next_attempt(record, progress, now),
            last_error=None if progress is None else progress.last_error,
            owner=None if progress is None or not progress.owner else progress.owner,
        )

    async def _unread(self, record: SubscriptionRecord, topic: TopicRecord, read_to: int) -> int:
        try:
            return await self._reader.count(topic, record.patterns, SequenceRange(read_to + 1))
        except InvalidParameter:  # patterns that overlap too much to be counted: those of a pattern that covers them
            return await self._reader.count(topic, (common_pattern(record.patterns),), SequenceRange(read_to + 1))

    async def _oldest(self, record: SubscriptionRecord, topic: TopicRecord, state: CursorState) -> str | None:
        if state.open:
            entry = await stream_reader.at(self._connection, topic.stream, state.settled_to + 1)
            return None if entry is None else rfc3339(entry.at_ms)
        found = await self._reader.read(topic, record.patterns, SequenceRange(state.read_to + 1), limit=1)
        return rfc3339(found.messages[0].at_ms) if found.messages else None


def _live_status(record: SubscriptionRecord, connections: int) -> SubscriptionStatus:
    """Clients keep their own positions: there is nothing to count but them."""
    return SubscriptionStatus(
        summary=live_summary(record),
        lag=0,
        oldest_undelivered_at=None,
        open=0,
        in_flight=0,
        retrying=0,
        dead=0,
        delivered_count=0,
        failed_count=0,
        success_rate=None,
        breaker="closed",
        next_attempt_at=None,
        last_error=None,
        owner=None,
        connections=connections,
    )


def _success_rate(progress: ProgressRecord | None) -> float | None:
    total = 0 if progress is None else progress.recent_successes + progress.recent_failures
    return None if progress is None or not total else round(progress.recent_successes / total, 4)


def _breaker(progress: ProgressRecord | None) -> Literal["closed", "open", "half-open"]:
    return "closed" if progress is None else cast(Literal["closed", "open", "half-open"], progress.breaker)


def _next_attempt(record: SubscriptionRecord, progress: ProgressRecord | None, now_ms: int) -> str | None:
    if progress is None or not record.is_active or not progress.cursor.open:
        return None
    due_ms = min(message.due_ms for message in progress.cursor.open)
    at_ms = max(due_ms, progress.resumes_at_ms or 0)
    return rfc3339(at_ms) if at_ms > now_ms else None
