"""The bridges of all change streams, in the process that leads delivery: one task for each mapped bucket, none without."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.topics import TopicNotFound
from postroad.buckets import metrics
from postroad.buckets.bridge import ChangeStreamBridge, FindTopic
from postroad.buckets.records import BucketRecord, ChangeStream
from postroad.buckets.revision_trimmer import RevisionTrimmer
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.storage_budget import StorageBudgets
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError

_SAMPLE_SECONDS = 5.0

log = structlog.get_logger("postroad.buckets")


@dataclass(frozen=True, slots=True)
class Lag:
    """Changes that were not copied yet, and the age of the oldest of them."""

    revisions: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Running:
    bridge: ChangeStreamBridge
    trimmer: RevisionTrimmer
    tasks: Sequence["asyncio.Task[None]"]
    lag: Lag = Lag()  # as it was sampled last


class ChangeStreamBridges:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[BucketRecord],
        find_topic: FindTopic,
        storage: StorageBudgets,
        clock: Clock,
    ) -> None:
        self._connection, self._table, self._find_topic = connection, table, find_topic
        self._storage, self._clock = storage, clock
        self._running: dict[str, _Running] = {}  # by key of the bucket
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._is_leading = False
        table.on_change(self._record_changed)

    @property
    def count(self) -> int:
        """Bridges that run in this process."""
        return len(self._running)

    def _record_changed(self, key: str, record: BucketRecord | None) -> None:
        if self._is_leading and (key in self._running or (record is not None and record.change_stream is not None)):
            self._changed.add(key)
            self._wake.set()

    async def run(self) -> None:
        """Run the bridges until cancelled."""
        self._is_leading = True
        self._changed = {key for key in self._table.keys_under() if _mapping(self._table.get(key)) is not None}
        loop = asyncio.get_running_loop()
        sampled_at = loop.time()
        try:
            while True:
                changed, self._changed = self._changed, set()
                self._wake.clear()
                for key in changed:
                    await self._reconcile(key)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(sampled_at + _SAMPLE_SECONDS if self._running else None):
                        await self._wake.wait()
                if loop.time() >= sampled_at + _SAMPLE_SECONDS:
                    await self._sample_all()
                    sampled_at = loop.time()
        finally:
            self._is_leading = False
            await asyncio.gather(*(self._stop(key) for key in list(self._running)))
            _report([])

    async def _reconcile(self, key: str) -> None:
        record, running = self._table.get(key), self._running.get(key)
        mapping = _mapping(record)
        if running is not None and (mapping is None or mapping.id != running.bridge.mapping.id):
            await self._stop(key)
            running = None
        if record is None or mapping is None:
            return
        if running is None:
            self._start(key, record, mapping)
        else:
            running.bridge.record = running.trimmer.record = record

    def _start(self, key: str, record: BucketRecord, mapping: ChangeStream) -> None:
        trimmer = RevisionTrimmer(self._connection, record)
        bridge = self.bridge_of(record, mapping, trimmer)
        tasks = [asyncio.create_task(bridge.run()), asyncio.create_task(trimmer.run())]
        self._running[key] = _Running(bridge, trimmer, tasks)

    def bridge_of(
        self, record: BucketRecord, mapping: ChangeStream, trimmer: RevisionTrimmer | None = None
    ) -> ChangeStreamBridge:
        def on_copied(entries: Sequence[Entry]) -> None:
            if trimmer is not None:
                trimmer.add(entries)

        return ChangeStreamBridge(self._connection, self._storage, self._find_topic, record, mapping, on_copied)

    async def _stop(self, key: str) -> None:
        running = self._running.pop(key)
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)
        with contextlib.suppress(PostroadError, TimeoutError):
            async with asyncio.timeout(1):
                await self._store_position(key, running.bridge)

    # Position and lag

    async def _sample_all(self) -> None:
        for key, running in list(self._running.items()):
            try:
                await self._store_position(key, running.bridge)
                position = running.bridge.mapping.position if running.bridge.position is None else running.bridge.position
                running.lag = await self.lag(running.bridge.record, position)
            except PostroadError as problem:  # the last known lag stays in the sum
                log.warning("change_stream_not_sampled", bucket=running.bridge.record.name, code=problem.code)
        _report([running.lag for running in self._running.values()])

    async def _store_position(self, key: str, bridge: ChangeStreamBridge) -> None:
        """Store how far the bridge is, in case the topic keeps no message. Topics of change streams keep them for an hour."""
        position, topic_sequence = bridge.position, bridge.topic_sequence
        if position is None or position <= bridge.mapping.position:
            return

        def moved(now: BucketRecord) -> BucketRecord:
            mapping = _mapping(now)
            if mapping is None or mapping.id != bridge.mapping.id or mapping.position >= position:
                return now
            after = msgspec.structs.replace(mapping, position=position, topic_sequence=topic_sequence)
            return msgspec.structs.replace(now, change_stream=after)

        changed = await self._table.change(key, moved)
        if changed is not None and (mapping := changed[1].change_stream) is not None and mapping.id == bridge.mapping.id:
            bridge.mapping = mapping

    async def position(self, record: BucketRecord, mapping: ChangeStream) -> int:
        """The last copied revision, as far as it is known. Raises EngineUnavailable."""
        try:
            topic = await self._find_topic(record.tenant, mapping.topic)
        except TopicNotFound:
            return mapping.position
        return await self.bridge_of(record, mapping).last_copied(topic)

    async def lag(self, record: BucketRecord, position: int) -> Lag:
        """What a bucket has after a position. Raises EngineUnavailable."""
        info = await stream_info(self._connection, record.stream)
        if info is None or info.state.last_seq <= position:
            return Lag()
        page = await stream_reader.read(self._connection, record.stream, ">", position + 1, 1)
        if not page.entries:
            return Lag()
        return Lag(info.state.last_seq - position, max(0, self._clock() - page.entries[0].at_ms) / 1000)


def _mapping(record: BucketRecord | None) -> ChangeStream | None:
    return record.change_stream if record is not None and record.state is RecordState.READY else None


def _report(lags: Sequence[Lag]) -> None:
    metrics.bridges.set(len(lags))
    metrics.bridge_lag_revisions.set(sum(lag.revisions for lag in lags))
    metrics.bridge_lag_seconds.set(max((lag.seconds for lag in lags), default=0))
