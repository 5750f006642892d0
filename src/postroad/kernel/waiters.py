"""Waiters that are woken in slices: many of them at once would hold the event loop until the last one has run."""

import asyncio
import itertools
from collections.abc import Callable

_SLICE_MAX = 32
_Serve = Callable[[], bool] | None


class Waiters:
    """Tasks that wait for the next change."""

    def __init__(self, slice_max: int = _SLICE_MAX) -> None:
        self._slice_max = slice_max
        self._waiting: dict[asyncio.Future[None], _Serve] = {}
        self._woken: dict[asyncio.Future[None], _Serve] = {}

    async def wait(self, serve: _Serve = None) -> None:
        """Wait for the next `wake`. The caller must not have awaited anything since it read the state.

        With `serve`, wait for one that it does not serve: it is called in place of waking the task, which costs more, and returns
        false if the task has to go on.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = serve
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
            serve = self._woken.pop(future)
            if future.done():
                continue
            try:
                is_served = serve is not None and serve()
            except Exception as problem:  # raised in the task
                future.set_exception(problem)
                continue
            if is_served:
                self._waiting[future] = serve
            else:
                future.set_result(None)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_slice)
