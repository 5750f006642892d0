"""The bridge of one change stream: copies the changes of a bucket to its topic, each once and in the order of revisions.

Its position is the revision in the topic's last message. A batch is stored only if the topic still ends there, so two bridges at
the same time, or one that was killed, cannot store a change twice or out of order (`sequential_append.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog

from postroad.api.topics import TopicFed, TopicNotFound
from postroad.buckets import metrics, rules
from postroad.buckets.change_messages import BATCH_BYTES_MAX, BATCH_CHANGES_MAX, change_message, copied_revision, newest_copied
from postroad.buckets.records import BucketRecord, ChangeStream, feeder_of
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.sequential_append import append_at_end
from postroad.jetstream.storage_budget import StorageBudgets
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow_batches
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import Conflict, EngineRefused, PostroadError
from postroad.kernel.ids import ShortIds
from postroad.topics.records import TopicRecord

_RETRY = Backoff(first_seconds=0.05, max_seconds=5.0, jitter=(0.5, 1.0))
_SCAN_ENTRIES = 256

log = structlog.get_logger("postroad.buckets")

FindTopic = Callable[[str, str], Awaitable[TopicRecord]]


class ChangeStreamBridge:
    """`position` is the last copied revision, None before the first batch; `topic_sequence` is the topic's last sequence then."""

    def __init__(
        self,
        connection: Connection,
        storage: StorageBudgets,
        find_topic: FindTopic,
        record: BucketRecord,
        mapping: ChangeStream,
        on_copied: Callable[[Sequence[Entry]], None] = lambda _: None,
    ) -> None:
        self._connection, self._storage, self._find_topic = connection, storage, find_topic
        self.record, self.mapping = record, mapping
        self.position: int | None = None
        self.topic_sequence = 0
        self._on_copied = on_copied
        self._batch_ids = ShortIds()

    async def run(self) -> None:
        """Copy until cancelled. A failure is logged, and retried from the position that the topic has then."""
        delays = _RETRY.delays()
        while True:
            started_at = self.position
            try:
                await self._copy(is_endless=True)
            except (Conflict, EngineRefused) as problem:  # another bridge, or an earlier attempt of this one, has stored changes
                metrics.bridge_restarts.inc()
                log.info("change_stream_moved", bucket=self.record.name, tenant=self.record.tenant, code=problem.code)
            except PostroadError as problem:
                metrics.bridge_restarts.inc()
                log.warning("change_stream_delayed", bucket=self.record.name, tenant=self.record.tenant, code=problem.code)
            except Exception:  # a bug: it must not end the copying for good
                metrics.bridge_restarts.inc()
                log.exception("change_stream_crashed", bucket=self.record.name, tenant=self.record.tenant)
            if self.position != started_at:
                delays = _RETRY.delays()
            await asyncio.sleep(next(delays))

    async def drain(self) -> None:
        """Copy what the bucket has now, and return. Raises TopicNotFound, TopicFed, EngineFull, EngineUnavailable, Conflict."""
        await self._copy(is_endless=False)

    async def _copy(self, *, is_endless: bool) -> None:
        topic = await self._find_topic(self.record.tenant, self.mapping.topic)
        if topic.fed_by != feeder_of(self.record.name):
            raise TopicFed(f"the topic {topic.name!r} is not fed by the bucket {self.record.name!r}")
        self.position, self.topic_sequence = await self._resume(topic)
        source = Source(self.record.stream, f"{self.record.subject}>", is_only_subject=True)
        batches = follow_batches(
            self._connection, source, self.position, entries_max=BATCH_CHANGES_MAX, bytes_max=BATCH_BYTES_MAX
        )
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    await self._store(topic, batch)
                elif not is_endless:
                    return

    async def _resume(self, topic: TopicRecord) -> tuple[int, int]:
        """The last copied revision, and the topic's last sequence. Raises TopicNotFound, EngineUnavailable."""
        info = await stream_info(self._connection, topic.stream)
        if info is None:
            raise TopicNotFound(f"the topic {topic.name!r} is being deleted")
        last = await stream_reader.last(self._connection, topic.stream, f"{topic.subject}.>")
        end = info.state.last_seq if last is None else max(info.state.last_seq, last.sequence)
        revision = None if last is None else copied_revision(self.mapping, last)
        if last is not None and revision is None:  # of an earlier mapping, or of another NATS client
            revision = await self._search(topic, last.sequence)
        return max(revision or 0, self.mapping.position), end

    async def last_copied(self, topic: TopicRecord) -> int:
        """The last copied revision. Raises TopicNotFound, EngineUnavailable."""
        return (await self._resume(topic))[0]

    async def _search(self, topic: TopicRecord, end: int) -> int | None:
        """The last revision among the messages since the position was stored."""
        found: int | None = None
        start = self.mapping.topic_sequence + 1
        while start <= end:
            page = await stream_reader.read_to(self._connection, topic.stream, ">", start, end, _SCAN_ENTRIES)
            newest = newest_copied(self.mapping, page.entries)
            found = found if newest is None else newest
            if page.is_end:
                break
            start = page.next_sequence
        return found

    async def _store(self, topic: TopicRecord, batch: Sequence[Entry]) -> None:
        """Store the changes as one batch, after the topic's last sequence. Raises Conflict, and like `append_at_end`."""
        payload_max = self._connection.max_payload
        made = [change_message(self.record, self.mapping, topic, entry, payload_max) for entry in await self._wanted(batch)]
        messages = [message for message in made if message is not None]
        if messages:
            self._storage.of_stream(topic.stream).count(sum(message.size for message in messages))
            self.topic_sequence = await append_at_end(
                self._connection, topic.stream, messages, self.topic_sequence, self._batch_ids()
            )
            metrics.changes.add(self.record.tenant, len(messages))
        self.position = batch[-1].sequence
        self._on_copied(batch)

    async def _wanted(self, batch: Sequence[Entry]) -> Sequence[Entry]:
        """Of what the bucket had when the mapping began, only the current values; of the changes since then, all."""
        earlier = [entry for entry in batch if entry.sequence <= self.mapping.snapshot_end]
        if not earlier:
            return batch
        values = [entry for entry in earlier if rules.operation_of(entry.headers) == "put"]
        prefix = len(self.record.subject)
        subjects = sorted({entry.subject for entry in values if rules.is_key(entry.subject[prefix:])})
        newest = await stream_reader.last_of_each(self._connection, self.record.stream, subjects)
        current = [entry for entry in values if newest.get(entry.subject, 0) <= entry.sequence]
        return [*current, *batch[len(earlier) :]]
