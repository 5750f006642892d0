"""Time, call rate and end of a demo run, shared by all actors."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from postroad.client.errors import PostroadError

CALLS_PER_MESSAGE_MAX = 5  # publish, pull, acknowledge and status calls allowed for each message of the rate
CALLS_PER_SECOND_MIN = 100.0  # allowed at any rate, as streams and sessions need calls, too
_EVENT_SECONDS = 0.2
DRAIN_SECONDS = 15.0  # to consume the backlog once everything is published


class DemoClock:
    """A run first drains (`is_draining`: nothing new is begun), then ends (`is_ended`: actors return after their current call).

    No call is cancelled, so every acknowledgement of the server is received and counted.
    """

    def __init__(self, seconds: float, rate: float, seed: int, run: str) -> None:
        self.seconds, self.rate, self.seed, self.run = seconds, rate, seed, run
        self.repaired: set[str] = set()
        self.calls = 0
        self.problem: PostroadError | None = None
        self._draining, self._ended = asyncio.Event(), asyncio.Event()
        self._started_at = self._next_call_at = asyncio.get_running_loop().time()
        self._call_interval = 1 / max(rate * CALLS_PER_MESSAGE_MAX, CALLS_PER_SECOND_MIN)

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._started_at

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    def drain(self) -> None:
        self._draining.set()

    def end(self) -> None:
        self._draining.set()
        self._ended.set()

    async def wait_until(self, at: float) -> bool:
        """Wait for a planned time. Returns False if the run drains before: then the planned step is skipped."""
        while not self.is_draining and (left := at - self.now) > 0:
            await _wait(self._draining, left)
        return not self.is_draining

    async def wait_for(self, event: asyncio.Event) -> bool:
        """Wait for an event that another actor sets. Returns False if the run drains before."""
        while not self.is_draining and not event.is_set():
            await _wait(event, _EVENT_SECONDS)
        return not self.is_draining

    async def sleep(self, seconds: float, *, until_drain: bool = False) -> None:
        """Sleep, at most until the run ends or, with `until_drain`, until it drains."""
        await _wait(self._draining if until_drain else self._ended, seconds)

    async def throttle(self) -> None:
        """Wait for the next call: calls keep a minimum interval, so that the demo leaves capacity to others."""
        now = asyncio.get_running_loop().time()
        at = self._next_call_at = max(now, self._next_call_at + self._call_interval)
        self.calls += 1
        if at > now:
            await asyncio.sleep(at - now)

    async def supervise(self, actor: Coroutine[Any, Any, None]) -> None:
        """Run an actor. If one of its calls fails for good, the run ends; the first such problem is kept."""
        try:
            await actor
        except PostroadError as problem:
            self.problem = self.problem or problem
            self.end()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
