"""Calls of `client.live_state`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.topology import Topology
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class LiveStateCalls:
    @operation
    def topology(self) -> Call[Topology]:
        """Show processes, NATS servers and the placement of streams.

        Some seconds old. Lists the installation's own streams, and those without a leader, a quorum or an up-to-date
        copy; others are counted. `critical` of a server: streams that need it.
        """
        return Call(method="GET", path="/api/control/topology", response=Topology)


class LiveState(LiveStateCalls, SyncNamespace):
    pass


class AsyncLiveState(LiveStateCalls, AsyncNamespace):
    pass
