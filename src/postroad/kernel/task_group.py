"""Tasks that live and end together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskCrew:
    """As asyncio's TaskGroup, with two differences that a leader needs who must stop when told to. A cancellation is not lost
    when a task fails at the same moment. And a task that does not end is asked again: nats-py now and then swallows a
    cancellation."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not self._failure.done():
            self._failure.set_exception(problem)

    async def run(self) -> None:
        """Until one of them fails, which is raised, or this is cancelled. Then none is left."""
        try:
            await self._failure
        finally:
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=0.5)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()  # seen, even if it came last


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    crew = TaskCrew()
    for one in work:
        crew.start(one)
    await crew.run()
