"""A group of tasks that end together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class StoppableTaskGroup:
    """Like asyncio's TaskGroup, with two differences for tasks that must stop on request.

    A cancellation is not lost when a task fails at the same moment. And a task that does not end is cancelled again: a library
    may swallow a cancellation.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> None:
        """Run until a task fails, and raise its exception, or until cancelled. All tasks have ended when this returns."""
        try:
            await self._failure
        finally:
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=0.5)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()  # mark as retrieved


async def run_all(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run until one of them fails, or until cancelled. All have ended when this returns."""
    group = StoppableTaskGroup()
    for coroutine in coroutines:
        group.start(coroutine)
    await group.run()
