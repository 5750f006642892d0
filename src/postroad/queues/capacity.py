"""Free capacity of a queue with a message limit, as known to one worker.

JetStream cannot enforce the limit: a stream with delayed messages must accept new ones, and its message count includes
idempotency markers.
"""

import asyncio
from collections.abc import Awaitable, Callable

_COUNT_MAX_AGE_SECONDS = 1.0
_COUNT_MIN_AGE_SECONDS = 0.05


class QueueCapacity:
    """A message count of the queue, and the messages that this worker has added since.

    Exact for one worker. With several workers the limit may be exceeded by the messages that the others publish in a second.
    """

    def __init__(self, count: Callable[[], Awaitable[int]]) -> None:
        self._count = count
        self._counted = 0
        self._counted_at = float("-inf")
        self._added = 0
        self._in_flight = 0
        self._lock = asyncio.Lock()

    async def reserve(self, wanted: int, limit: int) -> int:
        """Reserve capacity for up to `wanted` messages; return for how many. Each reservation needs a `release`."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            age = now - self._counted_at
            is_full = self._counted + self._added + wanted > limit
            if age > _COUNT_MAX_AGE_SECONDS or (is_full and age > _COUNT_MIN_AGE_SECONDS):
                self._added = self._in_flight  # perhaps part of the new count, too: counting twice is safe
                self._counted = await self._count()
                self._counted_at = now
            reserved = max(0, min(wanted, limit - self._counted - self._added))
            self._added += reserved
            self._in_flight += reserved
            return reserved

    def release(self, reserved: int, stored: int) -> None:
        """End a reservation, of which `stored` messages are in the queue."""
        self._in_flight -= reserved
        self._added -= reserved - stored
