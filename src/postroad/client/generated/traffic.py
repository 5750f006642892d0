"""Calls of `client.traffic`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.clients import QueueConsumers, QueuePublishers, TrafficReport
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import segment


class TrafficCalls:
    @operation
    def consumers(self, queue: str) -> Call[QueueConsumers]:
        """List the keys that consume a queue.

        With their last pull and ack, leases, rates and failures: of the last 15 minutes, or with leases. Raises
        QueueNotFound.
        """
        return Call(method="GET", path=f"/v1/queues/{segment(queue)}/consumers", response=QueueConsumers)

    @operation
    def publishers(self, queue: str) -> Call[QueuePublishers]:
        """List the keys that publish to a queue. Of the last 15 minutes, the busiest first. Raises QueueNotFound."""
        return Call(method="GET", path=f"/v1/queues/{segment(queue)}/publishers", response=QueuePublishers)

    @operation
    def get(self, *, by: Literal["key,queue", "key", "queue"] | None = None, limit: int | None = None) -> Call[TrafficReport]:
        """Show which keys and queues cause the traffic.

        Rates over ten seconds, the busiest first, with the time since when there is traffic.
        """
        return Call(method="GET", path="/v1/traffic", query={"by": by, "limit": limit}, response=TrafficReport)


class Traffic(TrafficCalls, SyncNamespace):
    pass


class AsyncTraffic(TrafficCalls, AsyncNamespace):
    pass
