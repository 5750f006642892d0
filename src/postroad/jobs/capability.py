"""Jobs as one thing: routes for every gateway, and the work of the one process that leads."""

from collections.abc import Sequence
from pathlib import Path

from postroad.engine.link import Link
from postroad.http.routing import Route
from postroad.jobs.crew import together
from postroad.jobs.desk import FrontDesk, Inquirer
from postroad.jobs.projection import Projection
from postroad.jobs.routes import JobRoutes
from postroad.jobs.service import JobBoard
from postroad.kernel.clock import Clock


class Jobs:
    """`folder` is for the files of the projection, and for nothing else."""

    def __init__(self, link: Link, clock: Clock, folder: Path, keep_days: int) -> None:
        self.projection = Projection(link, clock, folder, keep_days)
        self.board = JobBoard(Inquirer(link))
        self._desk = FrontDesk(link, self.projection, clock)

    def table(self) -> Sequence[Route]:
        """For gateways. They ask whoever leads."""
        return JobRoutes(self.board).table()

    async def lead(self) -> None:
        """Follow `JOBS` and answer, until cancelled. For one process at a time; two for a moment do no harm."""
        await together(self.projection.run(), self._desk.run())
