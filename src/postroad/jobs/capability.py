"""Jobs as one thing: routes for every gateway, and the work of the one process that leads."""

from collections.abc import Sequence
from pathlib import Path

from postroad.http.routing import Route
from postroad.jetstream.connection import Link
from postroad.jobs.archive import Budget, History
from postroad.jobs.projection import Projection
from postroad.jobs.routes import JobRoutes
from postroad.jobs.rpc import FrontDesk, Inquirer
from postroad.jobs.service import JobBoard
from postroad.kernel.clock import Clock
from postroad.kernel.task_group import together


class Jobs:
    """`folder` is for the files of the projection, and for nothing else."""

    def __init__(self, link: Link, clock: Clock, folder: Path, keep_days: int, archive: Budget | None = None) -> None:
        self.projection = Projection(link, clock, folder, keep_days)
        self._history = History(link, clock, archive)
        self.board = JobBoard(Inquirer(link), self._history)
        self._desk = FrontDesk(link, self.projection, clock)

    def table(self) -> Sequence[Route]:
        """For gateways. They ask whoever leads."""
        return JobRoutes(self.board).table()

    async def delete_all(self, tenant: str) -> None:
        """What the archive has of a tenant that goes."""
        await self._history.delete_all(tenant)

    async def lead(self) -> None:
        """Follow `JOBS` and answer, until cancelled. For one process at a time; two for a moment do no harm."""
        await together(self.projection.run(), self._desk.run())
