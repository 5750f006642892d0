"""Puts the insights of one process together."""

from collections.abc import Sequence

from postroad.http.routing import Route
from postroad.insights.pipeline_status import PipelineWatch, measure
from postroad.insights.routes import InsightRoutes
from postroad.insights.service import Insights
from postroad.insights.store import ResultsStore
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock


class InsightsCapability:
    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._store = ResultsStore(connection)
        self.service = Insights(self._store, clock)
        self.watch = PipelineWatch(connection, clock)

    def routes(self) -> Sequence[Route]:
        return InsightRoutes(self.service, self.watch).table()

    async def measure(self) -> None:
        """Keep the metrics of the pipeline, until cancelled. For one process."""
        await self.watch.follow(measure)

    async def delete_all(self, tenant: str) -> None:
        await self._store.delete_all(tenant)
