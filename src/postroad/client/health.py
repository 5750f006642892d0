"""`client.health`: is it there, and can it serve?"""

from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.shapes.health import Readiness


class HealthCalls:
    @operation
    def ready(self) -> Call[Readiness]:
        """What the server says of itself. Raises Unreachable while it is not ready."""
        return Call(method="GET", path="/readyz", response=Readiness)


class Health(HealthCalls, SyncNamespace):
    pass


class AsyncHealth(HealthCalls, AsyncNamespace):
    pass
