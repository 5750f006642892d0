"""HTTP route of the state of the telemetry queue."""

from collections.abc import Sequence

import msgspec

from postroad.api.queues import QueueNotFound
from postroad.api.telemetry import TelemetryStatus
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, Forbidden
from postroad.kernel.identity import Scope
from postroad.telemetry_queue.drops import DropCounter
from postroad.telemetry_queue.queue import NAME, TelemetryQueue
from postroad.telemetry_queue.status import StatusReader


class TelemetryQueueRoutes:
    def __init__(self, queue: TelemetryQueue, reader: StatusReader, drops: DropCounter) -> None:
        self._queue, self._reader, self._drops = queue, reader, drops

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/telemetry/status",
                self.get_telemetry_status,
                Scope.READ,
                "Show the state of the telemetry queue",
                "Telemetry",
                response=TelemetryStatus,
                errors=(QueueNotFound, EngineUnavailable),
                description=f"The queue `{NAME}` has the events about commands. It exists from the first service on.",
                sdk="telemetry.status",
                cli=Command("telemetry status"),
                allows_admin=True,
            )
        ]

    async def get_telemetry_status(self, request: Request) -> Response:
        caller = request.caller
        if not caller.may_use("queue", NAME):
            raise Forbidden(f"the key may not use the queue {NAME!r}")
        if not self._queue.exists(caller.tenant):
            raise QueueNotFound(f"there is no queue {NAME!r}: it exists from the first service on")
        status = await self._reader.status(caller.tenant)
        return Response(msgspec.structs.replace(status, dropped_today=await self._drops.today(caller.tenant)))
