"""Wiring of sessions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.api.sessions import SESSION_CHARS_MAX, SESSION_PATTERN, SessionNotFound
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.sessions.cleanup_requests import CleanupRequests, cleanup_stream
from postroad.sessions.events import EVENTS
from postroad.sessions.fanout_queue import FanoutQueue, queue_stream
from postroad.sessions.reconciler import SessionReconciler
from postroad.sessions.routes import SessionRoutes
from postroad.sessions.rules import FanoutLimits
from postroad.sessions.service import SessionOptions, Sessions
from postroad.sessions.settings import SessionsSettings
from postroad.settings import Settings
from postroad.streams.capability import StreamsCapability


class SessionsCapability(Capability):
    name = "sessions"
    events = EVENTS
    errors = (SessionNotFound,)
    usage = ("fanout_messages",)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "session": {"pattern": f"^{SESSION_PATTERN}$", "maxLength": SESSION_CHARS_MAX}
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        connection, committers, clock = platform.connection, platform.committers, platform.clock
        streams, tenants = platform.use(StreamsCapability).service, platform.identities.tenant_ids
        self._chosen = chosen = platform.settings.section(SessionsSettings)
        limits = FanoutLimits(chosen.fanout_queue_threshold, chosen.fanout_inline_max, chosen.fanout_queue)
        options = SessionOptions(chosen.session_ttl_seconds, limits)
        queue = FanoutQueue(connection, committers)
        self.service = Sessions(
            connection, committers, streams, queue, platform.outbox, platform.usage, clock, options, platform.audit
        )
        self.reconciler = SessionReconciler(connection, self.service, streams, queue, tenants, clock)
        self.cleanup_requests = CleanupRequests(connection, self.service, streams, tenants)

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (queue_stream(settings.replica_count), cleanup_stream(settings.replica_count))

    def routes(self) -> Sequence[Route]:
        return SessionRoutes(self.service).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.cleanup_requests.consume, Role.DELIVERY),
            BackgroundJob(self._reconcile, Role.DELIVERY),
        )

    async def _reconcile(self) -> None:
        chosen = self._chosen
        await self.reconciler.run(complete_seconds=chosen.fanout_complete_seconds, clean_seconds=chosen.session_clean_seconds)


CAPABILITY = SessionsCapability
