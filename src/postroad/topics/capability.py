"""Wiring of topics."""

from collections.abc import Sequence
from typing import Any

from postroad.api.topics import LoopDetected, TopicFed, TopicInUse, TopicNotFound
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import TOPIC, topic_name, topic_stream, topic_subject
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.regions.capability import RegionsCapability
from postroad.telemetry.settings import TelemetrySettings
from postroad.topics.events import EVENTS
from postroad.topics.lifecycle import TOPICS_BUCKET, TopicLifecycle
from postroad.topics.live import LiveTopics
from postroad.topics.live_routes import LiveTopicRoutes
from postroad.topics.message_routes import TopicMessageRoutes
from postroad.topics.publishing import TopicPublisher
from postroad.topics.reading import TopicReader
from postroad.topics.records import TopicRecord, user_subject
from postroad.topics.routes import TopicRoutes
from postroad.topics.rules import MessageLimits
from postroad.topics.sampler import TopicSampler
from postroad.topics.settings import TopicsSettings

_RECOVER_SECONDS = 300.0


class TopicsCapability(Capability):
    """Other capabilities use `lifecycle` (look-ups, dependents, the end of a topic), `publisher`, `reader` and `live`."""

    name = "topics"
    resources = (
        ResourceKind("topic", {"pattern": f"^{TOPIC.pattern}$", "description": "Name of the topic."}, ("T",), check=topic_name),
    )
    errors = (TopicNotFound, TopicInUse, TopicFed, LoopDetected)
    events = EVENTS
    buckets = (TOPICS_BUCKET,)
    usage = ("topic_messages", "topic_bytes")

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._placements = platform.use(RegionsCapability).placements
        settings, chosen = platform.settings, platform.settings.section(TopicsSettings)
        schemas = platform.use(QueuesCapability).schemas
        self.table = platform.table(TOPICS_BUCKET, TopicRecord)
        self.lifecycle = TopicLifecycle(
            platform.connection,
            self.table,
            platform.outbox,
            platform.clock,
            tenant_settings=platform.tenant_settings,
            audit=platform.audit,
            storage=platform.committers.storage,
            schemas=schemas,
            placements=self._placements,
        )
        self.publisher = TopicPublisher(
            platform.connection,
            platform.committers,
            self.lifecycle,
            platform.usage,
            platform.clock,
            tenant_settings=platform.tenant_settings,
            schemas=schemas,
            limits=MessageLimits(chosen.topic_headers_max, chosen.topic_headers_bytes_max),
        )
        self.publisher.flows = platform.flows
        self.reader = TopicReader(platform.connection, platform.outbox, platform.audit)
        self.live = LiveTopics(platform.connection, self.lifecycle, self.reader)
        self.sampler = TopicSampler(
            platform.connection,
            self.table,
            platform.outbox,
            platform.identities.tenant_ids,
            seconds=settings.section(TelemetrySettings).sample_seconds,
        )

    @staticmethod
    def stream_name(tenant: str, topic: str) -> str:
        """The JetStream stream of a topic."""
        return topic_stream(tenant, topic)

    @staticmethod
    def subject_of(tenant: str, topic: str, subject: str) -> str:
        """The NATS subject of a subject or pattern of a topic."""
        return f"{topic_subject(tenant, topic)}.{subject}"

    @staticmethod
    def user_subject(record: TopicRecord, nats_subject: str) -> str:
        """The subject of a message as it was published."""
        return user_subject(record, nats_subject)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        batch_max = self.platform.settings.section(TopicsSettings).topic_batch_messages_max
        topics = TopicRoutes(self.lifecycle, self.reader, self.live.connections, self._placements)
        messages = TopicMessageRoutes(self.lifecycle, self.publisher, self.reader, batch_max=batch_max)
        return [*topics.table(), *messages.table(), *LiveTopicRoutes(self.lifecycle, self.live, self.platform.clock).table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.live.connections.run),
            BackgroundJob(self.sampler.run, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_RECOVER_SECONDS, self.lifecycle.recover_all, "recover topics"), Role.CONTROL, leader_only=True),
        )

    async def delete_tenant(self, tenant: str) -> None:
        await self.lifecycle.delete_all(tenant)


CAPABILITY = TopicsCapability
