"""Wiring of long-running tasks."""

from collections.abc import Sequence
from typing import Any

from postroad.api.tasks import TaskNotFound
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role
from postroad.tasks.live_tasks import LiveTasks
from postroad.tasks.routes import TaskRoutes
from postroad.tasks.service import TASKS_BUCKET, Runner
from postroad.telemetry.live_sections import LiveSection


class TasksCapability(Capability):
    name = "tasks"
    buckets = (TASKS_BUCKET,)
    errors = (TaskNotFound,)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._runner = Runner(platform.tasks.table, platform.clock)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.platform.tasks.table,)

    def routes(self) -> Sequence[Route]:
        found = {kind: one for capability in self.platform.capabilities for kind, one in capability.died_again().items()}
        return TaskRoutes(self.platform.tasks, found).table()

    def live_sections(self) -> Sequence[LiveSection]:
        return (LiveTasks(self.platform.tasks.table, self.platform.clock),)

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self._runner.run, Role.CONTROL, leader_only=True),)

    def assembled(self, assembly: Assembly) -> None:
        self._runner.handlers = {
            kind: handler for capability in assembly.capabilities for kind, handler in capability.task_handlers().items()
        }

    async def delete_tenant(self, tenant: str) -> None:
        await self.platform.tasks.delete_all(tenant)


CAPABILITY = TasksCapability
