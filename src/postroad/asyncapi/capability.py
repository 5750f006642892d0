"""Wiring of the AsyncAPI document."""

from collections.abc import Sequence

from postroad.asyncapi.routes import AsyncApiRoutes
from postroad.http.routing import Route
from postroad.platform import Assembly, Capability, Platform
from postroad.queues.capability import QueuesCapability
from postroad.streams.capability import StreamsCapability
from postroad.topics.capability import TopicsCapability


class AsyncApiCapability(Capability):
    name = "asyncapi"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._routes = AsyncApiRoutes(
            platform.use(QueuesCapability).lifecycle,
            platform.use(TopicsCapability).lifecycle,
            platform.use(StreamsCapability).service.listing,
            platform.settings.public_url,
        )

    def routes(self) -> Sequence[Route]:
        return self._routes.table()

    def assembled(self, assembly: Assembly) -> None:
        self._routes.event_types = assembly.events


CAPABILITY = AsyncApiCapability
