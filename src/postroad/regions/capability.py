"""Wiring of regions."""

from collections.abc import Mapping, Sequence

from postroad.http.routing import Route
from postroad.kernel.regions import parse_table
from postroad.platform import Capability, Platform
from postroad.regions.nodes import NodeDirectory
from postroad.regions.overview import RegionsOverview
from postroad.regions.placement import MOVE_PLACEMENT, Placements
from postroad.regions.routes import RegionRoutes
from postroad.regions.rules import Map
from postroad.regions.settings import RegionsSettings
from postroad.tasks.service import Handler


class RegionsCapability(Capability):
    """Queues, topics and buckets use `placements`."""

    name = "regions"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen = platform.settings.section(RegionsSettings)
        regions = Map(parse_table(chosen.regions), chosen.region)
        nodes = NodeDirectory(platform.connection)
        self.placements = Placements(
            platform.connection, nodes, regions, platform.tasks, replicas=platform.settings.replica_count
        )
        self._overview = RegionsOverview(platform.connection, nodes, regions)

    def routes(self) -> Sequence[Route]:
        return RegionRoutes(self._overview).table()

    def task_handlers(self) -> Mapping[str, Handler]:
        return {MOVE_PLACEMENT: self.placements.follow}


CAPABILITY = RegionsCapability
