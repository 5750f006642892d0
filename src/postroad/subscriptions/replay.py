"""Replay: a task that delivers a range of a topic again, by a cursor of its own beside the live delivery.

The range is added to the subscription's record, where its owner finds it. The task waits until the cursor has settled the range,
reports its progress, and removes the range from the record, also when it is cancelled.
"""

import asyncio

import msgspec

from postroad.api.subscriptions import ReplayRequest
from postroad.api.tasks import Progress
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.json import invalid_field
from postroad.subscriptions.progress_store import ProgressStore
from postroad.subscriptions.records import ReplayRange, SubscriptionRecord, record_key
from postroad.subscriptions.service import Subscriptions
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import TaskContext, Tasks
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.reading import SequenceRange, TopicReader
from postroad.topics.records import TopicRecord

REPLAY = "subscription-replay"
_POLL_SECONDS = 0.5
_REPLAYS_MAX = 4  # of one subscription


class Replayer:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        topics: TopicLifecycle,
        reader: TopicReader,
        progress: ProgressStore,
        tasks: Tasks,
    ) -> None:
        self._connection, self._table, self._subscriptions, self._topics = connection, table, subscriptions, topics
        self._reader, self._progress, self._tasks = reader, progress, tasks

    async def start(self, context: RequestContext, subscription: str, request: ReplayRequest) -> tuple[int, TaskRecord | None]:
        """The number of messages in the range that match the patterns, and the task; no task for a dry run.

        Raises SubscriptionNotFound, BodyInvalid, PreconditionFailed if a replay of the subscription is active or it is read live.
        """
        record = await self._subscriptions.find(context.caller, subscription)
        if record.is_read_live:
            raise PreconditionFailed("nothing is delivered for a subscription of the type sse; read it from a sequence instead")
        topic = await self._topics.find(context.tenant, record.topic)
        wanted = await self._range(topic, request)
        count = await self._reader.count(topic, record.patterns, wanted)
        if request.dry_run:
            return count, None
        bounded = msgspec.structs.replace(
            request, from_sequence=wanted.start, to_sequence=wanted.end - 1, from_time=None, to_time=None
        )
        return count, await self._tasks.start(context, REPLAY, "topic", record.topic, bounded, count, part=record.id)

    async def _range(self, topic: TopicRecord, request: ReplayRequest) -> SequenceRange:
        """The range up to the newest message at most: later ones are delivered anyway."""
        if request.from_sequence is None and request.from_time is None:
            raise invalid_field("$.fromSequence", "give `fromSequence` or `fromTime`")
        wanted = await self._reader.resolve_range(
            topic,
            from_sequence=request.from_sequence,
            to_sequence=request.to_sequence,
            from_ms=None if request.from_time is None else int(request.from_time.timestamp() * 1000),
            to_ms=None if request.to_time is None else int(request.to_time.timestamp() * 1000),
        )
        info = await stream_info(self._connection, topic.stream)
        end = min(wanted.end, 1 if info is None else info.state.last_seq + 1)
        if wanted.start >= end:
            raise invalid_field("$.fromSequence", "the range has no messages")
        return SequenceRange(wanted.start, end)

    async def run(self, task: TaskContext) -> None:
        """Add the range, wait for its end, remove it."""
        request = msgspec.convert(task.record.wanted, ReplayRequest)
        key = record_key(task.record.tenant, task.record.part)
        replay = ReplayRange(
            task=task.record.id,
            first=request.from_sequence or 1,
            last=request.to_sequence or 1,
            rate_per_second=request.rate_per_second,
        )
        is_over = False
        try:
            changed = await self._table.change(key, lambda record: _with_replay(record, replay))
            while changed is not None and not is_over:
                task.check()
                await asyncio.sleep(_POLL_SECONDS)
                is_over = await self._report(task, changed[1], replay)
        finally:
            if is_over or task.is_cancelled:
                removed = await self._table.change(key, lambda record: _without_replay(record, replay.task))
                if removed is not None:
                    await self._progress.delete(removed[1], replay.cursor)
            elif task.is_paused:  # its progress is kept
                await self._table.change(key, lambda record: _without_replay(record, replay.task))

    async def _report(self, task: TaskContext, record: SubscriptionRecord, replay: ReplayRange) -> bool:
        """Save the progress; return whether the range is settled. Raises TaskCancelled."""
        stored = await self._progress.load(record, replay.cursor)
        if stored.record is None:
            return self._table.get(record.key) is None
        state = stored.record.cursor
        done = max(0, min(state.settled_to, replay.last) - replay.first + 1)
        total = task.record.progress.total
        scale = total / (replay.last - replay.first + 1)
        await task.save(done, Progress(total=total, scanned=done, matched=total, moved=min(total, round(done * scale))))
        return state.settled_to >= replay.last


def _with_replay(record: SubscriptionRecord, replay: ReplayRange) -> SubscriptionRecord:
    if any(one.task == replay.task for one in record.replays):
        return record
    return msgspec.structs.replace(record, replays=(*record.replays, replay)[-_REPLAYS_MAX:])


def _without_replay(record: SubscriptionRecord, task: str) -> SubscriptionRecord:
    return msgspec.structs.replace(record, replays=tuple(one for one in record.replays if one.task != task))
