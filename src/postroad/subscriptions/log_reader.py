"""Reads the log of a topic for cursors that are behind: after a start, a pause, a full cursor, or for a replay."""

import asyncio
from collections.abc import Callable

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.subscriptions.message_cache import MessageCache
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription
from postroad.subscriptions.quarantine import reason_of
from postroad.subscriptions.received_message import ReceivedMessage, has_matching_subject, ordering_key
from postroad.subscriptions.topic_follower import TopicFollower
from postroad.topics.records import TopicRecord, read_message
from postroad.topics.rules import common_pattern

log = structlog.get_logger("postroad.subscriptions")

_PAGE_SIZE = 256
_LAG_SECONDS = 0.02  # before a lagging replica is read again, or a follower that does not run yet


def offer(owned: OwnedSubscription, one: OwnedCursor, message: ReceivedMessage) -> bool:
    """Open a message whose subject matches, if its content does. False if the cursor is full: read it again later.

    A message that a filter cannot be compared with is opened as one in quarantine, which becomes a dead letter.
    """
    if message.stored.sequence <= one.cursor.read_to:
        return True
    rewind = owned.record.rewind
    is_after_end = rewind is not None and rewind.until_ms is not None and message.stored.at_ms >= rewind.until_ms
    passes, quarantine = (False, "") if is_after_end else _judge(owned, message)
    if not passes:
        one.cursor.skip_to(message.stored.sequence)
        return True
    if not one.cursor.capacity:
        one.cursor.skip_to(message.stored.sequence - 1)
        return False
    key = ordering_key(owned.record, message) if one.cursor.is_ordered else ""
    one.cursor.open(message.stored.sequence, key, quarantine=quarantine)
    return True


def _judge(owned: OwnedSubscription, message: ReceivedMessage) -> tuple[bool, str]:
    """True if the filters let the message pass, or fail; then with the reason."""
    try:
        return message.passes(owned.filters), ""
    except Exception as problem:  # a bug, which must not end the deliveries of others
        log.exception("filter_failed", subscription=owned.record.id, sequence=message.stored.sequence)
        return True, reason_of("the filter failed", problem)


class LogReader:
    def __init__(self, connection: Connection, cache: MessageCache) -> None:
        self._connection, self._cache = connection, cache

    def cache(self, topic_incarnation: str, message: ReceivedMessage) -> None:
        self._cache.put(topic_incarnation, message.stored)

    def cached(self, topic_incarnation: str, sequence: int) -> OutgoingMessage | None:
        return self._cache.get(topic_incarnation, sequence)

    async def message(self, topic: TopicRecord, sequence: int) -> OutgoingMessage | None:
        """One message; None if it was removed. Raises EngineUnavailable."""
        found = self._cache.get(topic.incarnation, sequence)
        if found is None:
            entry = await stream_reader.at(self._connection, topic.stream, sequence)
            found = None if entry is None else OutgoingMessage(read_message(topic, entry))
        return found

    async def set_keys(self, owned: OwnedSubscription, one: OwnedCursor, topic: TopicRecord) -> None:
        """Set the keys of the open messages of a loaded cursor; removed messages are settled. Raises EngineUnavailable."""
        for sequence in one.cursor.unkeyed:
            found = await self.message(topic, sequence)
            if found is None:
                one.cursor.settle(sequence)
            else:
                one.cursor.set_key(sequence, ordering_key(owned.record, ReceivedMessage(found.stored)))

    async def catch_up(
        self, owned: OwnedSubscription, one: OwnedCursor, follower: TopicFollower, on_open: Callable[[], None]
    ) -> None:
        """Read until the cursor is full, has reached the follower (then it is live), or the end of its replay; or until the
        follower is closed.

        Raises EngineUnavailable.
        """
        topic = follower.topic
        while not follower.is_closed and not owned.is_released and owned.record.is_active and not one.is_finished:
            position = follower.position  # stored before the read below
            if position is None:
                await asyncio.sleep(_LAG_SECONDS)
                continue
            pattern = f"{topic.subject}.{self._pattern(owned)}"  # it may change meanwhile
            start = one.cursor.read_to + 1
            limit = min(_PAGE_SIZE, max(1, one.cursor.capacity))
            page = await stream_reader.read(self._connection, topic.stream, pattern, start, limit)
            has_new_pattern = pattern != f"{topic.subject}.{self._pattern(owned)}"
            if owned.is_released or has_new_pattern or start != one.cursor.read_to + 1:
                continue
            for entry in page.entries:
                if one.replay is not None and entry.sequence > one.replay.last:
                    break
                if not self._offer(owned, one, ReceivedMessage(read_message(topic, entry)), topic):
                    on_open()
                    return
            on_open()
            if one.replay is not None and page.next_sequence > one.replay.last:
                one.cursor.skip_to(one.replay.last)
                return
            if page.is_end and await self._is_current(topic, pattern, page.next_sequence - 1, position):
                one.cursor.skip_to(position if one.replay is None else min(position, one.replay.last))
                if one.replay is None and one.cursor.read_to >= (follower.position or 0):
                    one.is_live = True
                    return

    def _pattern(self, owned: OwnedSubscription) -> str:
        """What the engine filters by. On a cluster nothing: a lagging replica shows only if every message is read."""
        return ">" if self._connection.settings.has_replicas else common_pattern(owned.record.patterns)

    def _offer(self, owned: OwnedSubscription, one: OwnedCursor, message: ReceivedMessage, topic: TopicRecord) -> bool:
        if not has_matching_subject(owned.record, message.stored.subject):
            one.cursor.skip_to(message.stored.sequence)
            return True
        is_taken = offer(owned, one, message)
        if is_taken:
            self.cache(topic.incarnation, message)
        return is_taken

    async def _is_current(self, topic: TopicRecord, pattern: str, read_to: int, position: int) -> bool:
        """True if the replica that answered had all messages up to the position."""
        if not self._connection.settings.has_replicas or read_to >= position:
            return True
        newest = await stream_reader.last(self._connection, topic.stream, pattern)
        if newest is None or newest.sequence <= read_to:
            return True
        await asyncio.sleep(_LAG_SECONDS)
        return False
