"""Waiters that are woken in slices: many of them at once would hold the event loop until the last one has run."""

import asyncio
import itertools

_SLICE_MAX = 32


class Waiters:
    """Tasks that wait for the next change."""

    def __init__(self, slice_max: int = _SLICE_MAX) -> None:
        self._slice_max = slice_max
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        """Wait for the next `wake`. The caller must not have awaited anything since it read the state."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)
            self._woken.pop(future, None)

    def wake(self) -> None:
        """Wake those that wait now: the first of them at once, the others in the next iterations of the event loop."""
        is_waking = bool(self._woken)
        self._woken.update(self._waiting)
        self._waiting.clear()
        if not is_waking:
            self._wake_slice()

    def _wake_slice(self) -> None:
        for future in list(itertools.islice(self._woken, self._slice_max)):
            del self._woken[future]
            if not future.done():
                future.set_result(None)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_slice)
