"""Wiring of buckets."""

from collections.abc import Sequence
from typing import Any

from postroad.api.buckets import BucketKeyNotFound, BucketNotFound, RevisionMismatch
from postroad.api.selectors import KEY, KEY_CHARS_MAX
from postroad.buckets.bridges import ChangeStreamBridges
from postroad.buckets.events import EVENTS
from postroad.buckets.lifecycle import BUCKETS_BUCKET, BucketLifecycle
from postroad.buckets.mapping import ChangeStreamMappings
from postroad.buckets.records import BucketRecord
from postroad.buckets.routes import BucketRoutes
from postroad.buckets.value_routes import BucketValueRoutes
from postroad.buckets.values import BucketValues
from postroad.buckets.watching import BucketWatches
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import BUCKET
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.regions.capability import RegionsCapability
from postroad.topics.capability import TopicsCapability
from postroad.topics.lifecycle import Dependent
from postroad.topics.records import TopicRecord

_RECOVER_SECONDS = 300.0


class BucketsCapability(Capability):
    name = "buckets"
    resources = (ResourceKind("bucket", {"pattern": f"^{BUCKET.pattern}$", "description": "Name of the bucket."}, ("KV",)),)
    errors = (BucketNotFound, BucketKeyNotFound, RevisionMismatch)
    events = EVENTS
    buckets = (BUCKETS_BUCKET,)
    usage = ("bucket_writes", "bucket_bytes")
    parameters = {  # noqa: RUF012  # as in the base class
        "bucket_key": {"pattern": KEY, "minLength": 1, "maxLength": KEY_CHARS_MAX, "description": "Key in the bucket."}
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._placements = platform.use(RegionsCapability).placements
        self.table = platform.table(BUCKETS_BUCKET, BucketRecord)
        topics = platform.use(TopicsCapability).lifecycle
        self.bridges = ChangeStreamBridges(
            platform.connection, self.table, topics.find, platform.committers.storage, platform.clock
        )
        self.mappings = ChangeStreamMappings(platform.connection, topics, self.bridges)
        self.lifecycle = BucketLifecycle(
            platform.connection,
            self.table,
            platform.outbox,
            platform.clock,
            tenant_settings=platform.tenant_settings,
            audit=platform.audit,
            committers=platform.committers,
            mappings=self.mappings,
            placements=self._placements,
        )
        topics.add_dependent(Dependent("change streams", _counted_as_feeder, self.lifecycle.topic_deleted))
        self.values = BucketValues(platform.connection, platform.committers, platform.usage, platform.tenant_settings)
        self.watches = BucketWatches(platform.connection, self.values, platform.clock)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        buckets = BucketRoutes(self.lifecycle, self.values, self.mappings, self._placements)
        return [*buckets.table(), *BucketValueRoutes(self.lifecycle, self.values, self.watches).table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.bridges.run, Role.DELIVERY, leader_only=True),
            BackgroundJob(every(_RECOVER_SECONDS, self.lifecycle.recover_all, "recover buckets"), Role.CONTROL, leader_only=True),
        )

    async def delete_tenant(self, tenant: str) -> None:
        await self.lifecycle.delete_all(tenant)


async def _counted_as_feeder(_topic: TopicRecord) -> int:
    """A topic names its feeder itself."""
    return 0


CAPABILITY = BucketsCapability
