"""`client.health`: readiness of the server."""

from postroad.api.health import Readiness
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class HealthCalls:
    @operation
    def ready(self) -> Call[Readiness]:
        """Show the readiness checks of the server. Raises Unreachable while it is not ready."""
        return Call(method="GET", path="/readyz", response=Readiness)


class Health(HealthCalls, SyncNamespace):
    pass


class AsyncHealth(HealthCalls, AsyncNamespace):
    pass
