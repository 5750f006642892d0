"""Calls of `client.telemetry`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.telemetry import TelemetryStatus
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class TelemetryCalls:
    @operation
    def status(self) -> Call[TelemetryStatus]:
        """Show the state of the telemetry queue.

        The queue `_telemetry` has the events about commands. It exists from the first service on. Raises QueueNotFound.
        """
        return Call(method="GET", path="/v1/telemetry/status", response=TelemetryStatus)


class Telemetry(TelemetryCalls, SyncNamespace):
    pass


class AsyncTelemetry(TelemetryCalls, AsyncNamespace):
    pass
