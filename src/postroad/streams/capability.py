"""Wiring of durable streams."""

from collections.abc import Sequence

from postroad.api.streams import (
    ContentTypeMismatch,
    OffsetGone,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
)
from postroad.http.routing import Route
from postroad.http.sse import HEARTBEAT_SECONDS
from postroad.kernel.names import STREAM, STREAM_CHARS_MAX, stream_id
from postroad.kernel.resources import ResourceKind
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.streams.events import EVENTS
from postroad.streams.live_reads import LiveOptions, LiveReads
from postroad.streams.routes import StreamRoutes
from postroad.streams.service import Streams
from postroad.streams.settings import StreamsSettings
from postroad.streams.store import StreamStore

_EXPIRE_SECONDS = 300.0


class StreamsCapability(Capability):
    name = "streams"
    resources = (
        ResourceKind(
            "stream",
            {"pattern": f"^{STREAM.pattern}$", "maxLength": STREAM_CHARS_MAX, "description": "Stream id, such as `orders/2027`."},
            ("S",),
            counted_by="s.{tenant}.*.m",
            check=stream_id,
        ),
    )
    events = EVENTS
    errors = (
        StreamNotFound,
        StreamGone,
        OffsetGone,
        StreamExists,
        StreamClosed,
        ContentTypeMismatch,
        SequenceConflict,
        ProducerGap,
        ProducerFenced,
    )
    usage = ("appends", "append_bytes")

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        store = StreamStore(platform.connection, platform.committers, platform.settings.replica_count)
        self.service = Streams(store, platform.outbox, platform.usage, platform.clock, platform.audit)

    def routes(self) -> Sequence[Route]:
        chosen = self.platform.settings.section(StreamsSettings)
        live = LiveReads(self.service, LiveOptions(chosen.stream_long_poll_seconds, chosen.stream_sse_seconds, HEARTBEAT_SECONDS))
        return StreamRoutes(self.service, live, self.platform.clock, self.platform.settings.public_url).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        seconds = self.platform.settings.section(StreamsSettings).stream_retention_seconds
        return (
            BackgroundJob(every(_EXPIRE_SECONDS, self._expire, "expire streams"), Role.CONTROL, leader_only=True),
            BackgroundJob(every(seconds, self._trim, "trim streams"), Role.CONTROL, leader_only=True),
        )

    async def _trim(self) -> None:
        for tenant in self.platform.identities.tenant_ids():
            await self.service.retention.enforce(tenant)

    async def _expire(self) -> None:
        for tenant in self.platform.identities.tenant_ids():
            await self.service.delete_expired(tenant)
            if await self.service.has_streams(tenant):
                await self.service.directory.compact(tenant)

    async def delete_tenant(self, tenant: str) -> None:
        await self.service.delete_all(tenant)


CAPABILITY = StreamsCapability
