"""Reading of request bodies that the app does not want, at a limited rate for the whole worker.

A response may precede the rest of its request's body: 401, 413, 429. If the connection was closed then, clients that read the
response only after they have sent the body would lose it (decision 0037). So the rest is read and discarded, one chunk at a time,
in turns: many large bodies take as little of the event loop's time as one.
"""

import asyncio
from collections import deque
from collections.abc import Callable

CHUNK_SECONDS = 0.002  # between two chunks, of up to 256 KiB: at most 128 MiB per second


class BodyDiscarder:
    """Calls the registered functions, each of which resumes reading for one chunk, one after the other."""

    def __init__(self, chunk_seconds: float = CHUNK_SECONDS) -> None:
        self._chunk_seconds = chunk_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, read_chunk: Callable[[], None]) -> None:
        self._waiting.append(read_chunk)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._chunk_seconds, self._read_next)

    def _read_next(self) -> None:
        self._timer = None
        self._waiting.popleft()()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(self._chunk_seconds, self._read_next)
