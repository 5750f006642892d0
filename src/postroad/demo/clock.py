"""What the demo's actors share: the time, the pace, and when it is over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from postroad.client.errors import PostroadError

CALLS_PER_MESSAGE_MAX = 5  # publishing, pulling, settling and looking on: the pace allows so many for each message of the rate
CALLS_PER_SECOND_MIN = 100.0  # it allows as many at any rate: streams and sessions want some, too
OVERTIME_SECONDS = 15.0  # for what is in the queues when all is published


class Stage:
    """`is_quiet` when nothing new is begun, `is_over` when everybody ends what they have in hand and goes.

    Nobody is cancelled in the midst of a call: what the server has acknowledged is heard, and counted.
    """

    def __init__(self, seconds: float, rate: float, seed: int, run: str) -> None:
        self.seconds, self.rate, self.seed, self.run = seconds, rate, seed, run
        self.repaired: set[str] = set()
        self.calls = 0
        self.problem: PostroadError | None = None
        self._quiet, self._over = asyncio.Event(), asyncio.Event()
        self._begun = self._next_turn = asyncio.get_running_loop().time()
        self._gap = 1 / max(rate * CALLS_PER_MESSAGE_MAX, CALLS_PER_SECOND_MIN)

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self._begun

    @property
    def is_quiet(self) -> bool:
        return self._quiet.is_set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def quieten(self) -> None:
        self._quiet.set()

    def end(self) -> None:
        self._quiet.set()
        self._over.set()

    async def until(self, at: float) -> bool:
        """Wait for a moment of the plan. False if it is quiet before: then nothing is to be done at it any more."""
        while not self.is_quiet and (left := at - self.now) > 0:
            await _either(self._quiet.wait(), left)
        return not self.is_quiet

    async def rest(self, seconds: float, *, is_broken_off: bool = False) -> None:
        """Sleep, but not beyond the end; if it `is_broken_off`, only until it is quiet."""
        ends = self._quiet if is_broken_off else self._over
        if not ends.is_set():
            await _either(ends.wait(), seconds)

    async def turn(self) -> None:
        """Before each call: calls are at least a gap apart, so that the demo leaves the machine to others."""
        now = asyncio.get_running_loop().time()
        at = self._next_turn = max(now, self._next_turn + self._gap)
        self.calls += 1
        if at > now:
            await asyncio.sleep(at - now)

    async def played(self, actor: Coroutine[Any, Any, None]) -> None:
        """An actor's part. If a call of it fails for good, all come to their end, and the first such problem is told."""
        try:
            await actor
        except PostroadError as problem:
            self.problem = self.problem or problem
            self.end()


async def _either(event: Coroutine[Any, Any, object], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event
    except TimeoutError:
        pass
