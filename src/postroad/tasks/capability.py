"""Wiring of long-running tasks."""

from collections.abc import Sequence
from typing import Any

from postroad.api.tasks import TaskNotFound
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role
from postroad.tasks.routes import TaskRoutes
from postroad.tasks.service import TASKS_BUCKET, Runner


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
        return TaskRoutes(self.platform.tasks).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self._runner.run, Role.CONTROL, leader_only=True),)

    def assembled(self, assembly: Assembly) -> None:
        self._runner.handlers = {
            kind: handler for capability in assembly.capabilities for kind, handler in capability.task_handlers().items()
        }

    async def delete_tenant(self, tenant: str) -> None:
        await self.platform.tasks.delete_all(tenant)


CAPABILITY = TasksCapability
