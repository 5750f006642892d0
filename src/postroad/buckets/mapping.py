"""Mappings of buckets to topics: the beginning and the end of a change stream."""

import asyncio
import contextlib

import structlog

from postroad.api.buckets import BucketSettings, ChangeStreamStatus
from postroad.api.topics import StrictTopicSettings, TopicFed, TopicNotFound
from postroad.buckets.bridges import ChangeStreamBridges
from postroad.buckets.records import BucketRecord, ChangeStream, feeder_of
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, Forbidden
from postroad.kernel.ids import new_id
from postroad.kernel.json import at_field
from postroad.topics.lifecycle import TopicLifecycle

_CONFLICTS_MAX = 20
_CONFLICT_SECONDS = 0.05

log = structlog.get_logger("postroad.buckets")


class ChangeStreamMappings:
    def __init__(self, connection: Connection, topics: TopicLifecycle, bridges: ChangeStreamBridges) -> None:
        self._connection, self._topics, self._bridges = connection, topics, bridges

    async def change(
        self, context: RequestContext, name: str, known: BucketRecord | None, settings: BucketSettings
    ) -> ChangeStream | None:
        """The mapping for new settings. A changed one creates its topic, and ends the former one.

        Raises AlreadyExists if the topic exists for other use, BodyInvalid, Forbidden, EngineUnavailable.
        """
        present = None if known is None else known.change_stream
        topic = settings.change_stream_topic
        if present is not None and present.topic == topic:
            return present
        if topic is not None:
            await self._claim(context, name, topic, settings)
        if known is not None and present is not None:
            await self.drain(known, present)
        if topic is None:
            return None
        last = 0 if known is None else await self._last_revision(known)
        is_all = settings.change_stream_from == "all"
        return ChangeStream(id=new_id(), topic=topic, position=0 if is_all else last, snapshot_end=last if is_all else 0)

    async def _claim(self, context: RequestContext, bucket: str, topic: str, settings: BucketSettings) -> None:
        if not context.caller.may_use("topic", topic):
            raise Forbidden(f"the key may not use the topic {topic!r}")
        wanted = StrictTopicSettings(replicas=settings.replicas, geo=settings.geo)
        with at_field("$.change_stream_topic"):
            await self._topics.claim(context, topic, wanted, feeder_of(bucket))

    async def _last_revision(self, record: BucketRecord) -> int:
        info = await stream_info(self._connection, record.stream)
        return 0 if info is None else info.state.last_seq

    async def drain(self, record: BucketRecord, mapping: ChangeStream) -> None:
        """Copy what was written so far. A topic that is gone, or refuses messages, does not hold the change up."""
        bridge = self._bridges.bridge_of(record, mapping)
        for left in range(_CONFLICTS_MAX, 0, -1):
            try:
                await bridge.drain()
                return
            except (TopicNotFound, TopicFed, EngineFull) as problem:
                log.warning("change_stream_not_drained", bucket=record.name, tenant=record.tenant, code=problem.code)
                return
            except (Conflict, EngineRefused):  # the running bridge copies, too
                if left == 1:
                    raise
                await asyncio.sleep(_CONFLICT_SECONDS)

    async def release(self, record: BucketRecord) -> None:
        """Of a bucket that is being deleted: copy the rest, and leave the topic to other publishers. Idempotent."""
        if record.change_stream is None:
            return
        await self.drain(record, record.change_stream)
        with contextlib.suppress(TopicNotFound):
            topic = await self._topics.find(record.tenant, record.change_stream.topic)
            if topic.fed_by == feeder_of(record.name):
                await self._topics.set_feeder(record.tenant, topic.name, None)

    async def status(self, record: BucketRecord) -> ChangeStreamStatus | None:
        """Raises EngineUnavailable."""
        mapping = record.change_stream
        if mapping is None:
            return None
        position = await self._bridges.position(record, mapping)
        lag = await self._bridges.lag(record, position)
        return ChangeStreamStatus(
            topic=mapping.topic, revision=position, lag_revisions=lag.revisions, lag_seconds=round(lag.seconds, 3)
        )
