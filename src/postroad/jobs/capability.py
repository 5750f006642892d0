"""Jobs as one thing: routes for every gateway, and the work of the one process that leads."""

from collections.abc import Sequence
from pathlib import Path

from postroad.http.routing import Route
from postroad.jetstream.connection import Connection
from postroad.jobs.archive import Budget, History
from postroad.jobs.projection import Projection
from postroad.jobs.routes import JobRoutes
from postroad.jobs.rpc import JobsRpcClient, JobsRpcServer
from postroad.jobs.service import JobService
from postroad.kernel.clock import Clock
from postroad.kernel.task_group import run_all


class Jobs:
    """`folder` is for the files of the projection, and for nothing else."""

    def __init__(self, connection: Connection, clock: Clock, folder: Path, keep_days: int, archive: Budget | None = None) -> None:
        self.projection = Projection(connection, clock, folder, keep_days)
        self._history = History(connection, clock, archive)
        self.board = JobService(JobsRpcClient(connection), self._history)
        self._desk = JobsRpcServer(connection, self.projection, clock)

    def table(self) -> Sequence[Route]:
        """For gateways. They ask whoever leads."""
        return JobRoutes(self.board).table()

    async def delete_all(self, tenant: str) -> None:
        """What the archive has of a tenant that goes."""
        await self._history.delete_all(tenant)

    async def lead(self) -> None:
        """Follow `JOBS` and answer, until cancelled. For one process at a time; two for a moment do no harm."""
        await run_all(self.projection.run(), self._desk.run())
