"""How much room a limited queue has, as far as one worker knows.

The engine cannot refuse for us: a stream with delayed messages may not refuse new ones, and its count has markers in it.
"""

import asyncio
from collections.abc import Awaitable, Callable

_KNOWN_SECONDS = 1.0
_ASK_SECONDS = 0.05


class QueueCapacity:
    """A count of the queue's messages, its age, and what this worker has added since. Never too low for one worker alone; with
    several, each may be behind on the others by as much as they publish in a second."""

    def __init__(self, count: Callable[[], Awaitable[int]]) -> None:
        self._count = count
        self._counted = 0
        self._counted_at = float("-inf")
        self._added = 0
        self._in_flight = 0
        self._lock = asyncio.Lock()

    async def take(self, wanted: int, limit: int) -> int:
        """How many of these messages there is room for. They count, until `settle` says what became of them."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            age = now - self._counted_at
            if age > _KNOWN_SECONDS or (self._counted + self._added + wanted > limit and age > _ASK_SECONDS):
                self._added = self._in_flight  # in the count or not, who knows: rather twice than not at all
                self._counted = await self._count()
                self._counted_at = now
            taken = max(0, min(wanted, limit - self._counted - self._added))
            self._added += taken
            self._in_flight += taken
            return taken

    def settle(self, taken: int, stored: int) -> None:
        self._in_flight -= taken
        self._added -= taken - stored
