"""Wiring of insights: results of the pipeline."""

from collections.abc import Mapping, Sequence

from postroad.api.health import Check
from postroad.http.routing import Route
from postroad.insights.pipeline_status import PipelineMonitor
from postroad.insights.routes import InsightRoutes
from postroad.insights.service import Insights
from postroad.insights.store import ResultsStore, insights_stream
from postroad.jetstream.management import StreamSpec
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.settings import Settings


class InsightsCapability(Capability):
    name = "insights"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._store = ResultsStore(platform.connection)
        self.service = Insights(self._store, platform.clock)
        self.pipeline = PipelineMonitor(platform.connection, platform.clock)

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (insights_stream(settings.replica_count, settings.share_of_store(16)),)

    def routes(self) -> Sequence[Route]:
        return InsightRoutes(self.service, self.pipeline).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.pipeline.measure, Role.CONTROL, leader_only=True),)

    async def readiness(self) -> Mapping[str, Check]:
        """Informative only: no request depends on the pipeline."""
        return {"pipeline": Check(True, await self.pipeline.detail() if self.platform.connection.is_up else "unknown")}

    async def delete_tenant(self, tenant: str) -> None:
        await self._store.delete_all(tenant)


CAPABILITY = InsightsCapability
