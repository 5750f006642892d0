"""Puts the durable streams of one process together."""

from dataclasses import dataclass

from postroad.http.routing import Route
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.kernel.usage_counters import UsageCounters
from postroad.streams.live_reads import Live, LiveOptions
from postroad.streams.routes import StreamRoutes
from postroad.streams.service import Streams
from postroad.streams.store import Store
from postroad.telemetry.outbox import Outbox


@dataclass(frozen=True, slots=True)
class StreamOptions:
    replicas: int
    live: LiveOptions
    public_url: str | None = None


class StreamsCapability:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        outbox: Outbox,
        traffic: UsageCounters,
        clock: Clock,
        options: StreamOptions,
    ) -> None:
        self.service = Streams(Store(connection, committers, options.replicas), outbox, traffic, clock)
        self._routes = StreamRoutes(self.service, Live(self.service, options.live), clock, options.public_url)
        self.delete_all = self.service.delete_all
        self.end_expired = self.service.end_expired

    def routes(self) -> list[Route]:
        return self._routes.table()
