"""Wiring of live state: collects the sections of all capabilities."""

from collections.abc import Sequence

from postroad.api.health import Check
from postroad.http.routing import Route
from postroad.live_state.hub import LiveHub
from postroad.live_state.routes import LiveStateRoutes
from postroad.live_state.sections import LiveChanges, LiveFlows, LiveHealth, LiveProcesses, LiveTenants
from postroad.live_state.topology import TopologyRoutes
from postroad.platform import Capability, Platform
from postroad.queues.capability import QueuesCapability
from postroad.telemetry.live_sections import LiveSection


class LiveStateCapability(Capability):
    name = "live_state"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._hubs: tuple[LiveHub, ...] = ()
        self._processes = LiveProcesses(platform.connection, platform.clock)

    def live_sections(self) -> Sequence[LiveSection]:
        platform, queues = self.platform, self.platform.use(QueuesCapability)
        return (
            LiveHealth(self._checks),
            LiveFlows(platform.flows, platform.identities),
            LiveChanges(platform.connection, platform.identities, platform.clock),
            LiveTenants(platform.identities, queues.tenant_levels),
            self._processes,
        )

    async def _checks(self) -> dict[str, Check]:
        platform = self.platform
        is_answering = platform.connection.is_up and not platform.engine_health.health.is_suspect
        checks = {"engine": Check(is_answering, "the NATS server does not answer")}
        for capability in platform.capabilities:
            checks |= await capability.readiness()
        return checks

    def routes(self) -> Sequence[Route]:
        sections = [section for capability in self.platform.capabilities for section in capability.live_sections()]
        self._hubs = (
            LiveHub({one.name: one for one in sections if not one.is_platform}),
            LiveHub({one.name: one for one in sections if one.is_platform}),
        )
        topology = TopologyRoutes(self.platform.connection, self._processes.current)
        return [*LiveStateRoutes(*self._hubs, self.platform.clock).table(), *topology.table()]

    async def flush(self) -> None:
        for hub in self._hubs:
            hub.close()


CAPABILITY = LiveStateCapability
