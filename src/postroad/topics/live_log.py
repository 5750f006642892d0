"""The log of a topic below the ring of its tail, in pages, for live readers that catch up."""

import asyncio
from dataclasses import dataclass

from postroad.api.topics import TopicNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, stream_info
from postroad.jetstream.shared_tail import SharedTail
from postroad.kernel.errors import EngineUnavailable
from postroad.topics.live_message import LiveMessage, Selection
from postroad.topics.records import TopicRecord, read_message
from postroad.topics.rules import common_pattern

_PAGE_ENTRIES = 256
_PAGE_BYTES = 256 * 1024
_PAGES_AT_ONCE = 8  # in the process: readers that catch up must not fill the engine connection
_LAG_SECONDS = 0.02  # before a lagging replica is read again


@dataclass(frozen=True, slots=True)
class LogPage:
    """Messages of the log that a reader selects, the position after them, and messages before them that were removed."""

    messages: list[LiveMessage]
    position: int
    gap: tuple[int, int] | None


class LiveLog:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._page_slots = asyncio.Semaphore(_PAGES_AT_ONCE)

    async def state(self, record: TopicRecord) -> StreamState:
        """Raises TopicNotFound if the topic is being deleted, EngineUnavailable."""
        info = await stream_info(self._connection, record.stream)
        if info is None:
            raise TopicNotFound(f"the topic {record.name!r} is being deleted")
        return info.state

    async def read(self, record: TopicRecord, selection: Selection, position: int, tail: SharedTail[LiveMessage]) -> LogPage:
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
                    first = (await self.state(record)).first_seq if following > position + 1 else 0
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
            return LogPage(
                [one for one in messages if one.is_selected(selection)],
                max(reached, target) if page.is_end else reached,
                (position + 1, gap_end) if gap_end > position else None,
            )
        return LogPage([], position, None)

    async def _last_sequence(self, record: TopicRecord, subject: str) -> int:
        """The sequence to reach, from the leader: a replica that answers a read may lag. 0 without replicas."""
        if not self._connection.settings.has_replicas:
            return 0
        newest = await stream_reader.last(self._connection, record.stream, subject)
        return 0 if newest is None else newest.sequence
