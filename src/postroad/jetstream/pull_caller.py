"""A caller of a pull consumer, until it has its messages."""

import asyncio
from collections.abc import Callable

from postroad.jetstream.deliveries import Delivery


class PullCaller:
    """A caller that waits for messages, whose `on_end` is called with them or an error."""

    __slots__ = ("count", "deadline", "deliveries", "is_requested", "on_end")

    def __init__(self, count: int, deadline: float, on_end: Callable[["PullCaller", Exception | None], None]) -> None:
        self.count, self.deadline, self.on_end = count, deadline, on_end
        self.deliveries: list[Delivery] = []
        self.is_requested = False  # the server was asked for its messages that are ready now

    @property
    def is_full(self) -> bool:
        return len(self.deliveries) >= self.count

    def end(self, problem: Exception | None = None) -> None:
        """Call `on_end` soon: the task that serves the callers first asks for the messages of others."""
        asyncio.get_running_loop().call_soon(self.on_end, self, problem)
