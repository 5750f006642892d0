"""When attempts start: in fair turns over tenants and subscriptions, as far as slots are free, and when their time has come.

A tenant may hold a part of the slots only, however many endpoints of its do not respond: with `n` tenants that have attempts in
flight, one of `n + 1` parts. So slots are left for the next tenant.
"""

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from postroad.kernel.clock import Clock
from postroad.subscriptions.fair_ring import FairRing
from postroad.subscriptions.owned_subscription import OwnedSubscription, Started

_CLOCK_POLL_SECONDS = 1.0  # the clock may be corrected
_NOT_SERVED_MS = 5_000

Attempt = Callable[[OwnedSubscription, Started], Coroutine[Any, Any, None]]


class Scheduler:
    """`attempt` makes one attempt and must not raise. `is_served` is false for tenants that are disabled."""

    def __init__(self, attempt: Attempt, clock: Clock, *, slots: int, is_served: Callable[[str], bool]) -> None:
        self._attempt, self._clock, self._slots, self._is_served = attempt, clock, slots, is_served
        self._subscriptions: dict[str, OwnedSubscription] = {}
        self._ring = FairRing()
        self._timers: list[tuple[int, str]] = []
        self._timer_of: dict[str, int] = {}  # the valid timer of each subscription; other entries of the heap are outdated
        self._running: dict[asyncio.Task[None], OwnedSubscription] = {}
        self._in_flight: Counter[str] = Counter()  # by tenant
        self._deferred: dict[str, dict[str, None]] = {}  # subscriptions of tenants that hold their part of the slots, each once
        self._is_pump_scheduled = False
        self._timers_changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def add(self, owned: OwnedSubscription) -> None:
        self._subscriptions[owned.record.id] = owned
        self.wake(owned)

    def remove(self, subscription: str) -> None:
        self._subscriptions.pop(subscription, None)
        self._timer_of.pop(subscription, None)

    def find(self, subscription: str) -> OwnedSubscription | None:
        return self._subscriptions.get(subscription)

    def wake(self, owned: OwnedSubscription) -> None:
        """The subscription may have an attempt to start."""
        self._ring.add(owned.record.tenant, owned.record.id)
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    async def run(self) -> None:
        """Wake subscriptions when their time has come, until cancelled."""
        while True:
            self._timers_changed.clear()
            now_ms = self._clock()
            while self._timers and self._timers[0][0] <= now_ms:
                at_ms, subscription = heapq.heappop(self._timers)
                if self._timer_of.get(subscription) == at_ms:
                    del self._timer_of[subscription]
                    self.wake(self._subscriptions[subscription])
            wait = (self._timers[0][0] - now_ms) / 1000 if self._timers else _CLOCK_POLL_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait, _CLOCK_POLL_SECONDS)):
                    await self._timers_changed.wait()

    async def drain(self, seconds: float, owned: OwnedSubscription | None = None) -> None:
        """Wait for the attempts in flight, of one subscription or of all, at most so long."""
        waiting = [task for task, one in self._running.items() if owned in (None, one)]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)

    async def stop(self) -> None:
        """Cancel the attempts in flight."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        loop, now_ms = asyncio.get_running_loop(), self._clock()
        while len(self._running) < self._slots and (subscription := self._ring.pop()) is not None:
            owned = self._subscriptions.get(subscription)
            if owned is None:
                continue
            tenant = owned.record.tenant
            if not self._is_served(tenant):
                self._wake_at(subscription, now_ms + _NOT_SERVED_MS)
                continue
            if not self._may_start(tenant):
                self._deferred.setdefault(tenant, {})[subscription] = None
                continue
            started = owned.start(now_ms)
            if isinstance(started, Started):
                self._in_flight[tenant] += 1
                task = loop.create_task(self._attempt(owned, started))
                self._running[task] = owned
                task.add_done_callback(self._ended)
                if owned.may_start_more:
                    self._ring.add(tenant, subscription)
            elif started is not None:
                self._wake_at(subscription, started)

    def _ended(self, task: asyncio.Task[None]) -> None:
        owned = self._running.pop(task)
        owned.in_flight -= 1
        tenant = owned.record.tenant
        self._in_flight[tenant] -= 1
        if not self._in_flight[tenant]:
            del self._in_flight[tenant]
        self.wake(owned)
        deferred = self._deferred.get(tenant)
        if deferred:
            subscription = next(iter(deferred))
            del deferred[subscription]
            self._ring.add(tenant, subscription)
        elif deferred is not None:
            del self._deferred[tenant]

    def _may_start(self, tenant: str) -> bool:
        """A tenant that has none in flight may start one in any case: no end of an attempt of its own would wake it later."""
        others = len(self._in_flight) - (tenant in self._in_flight)
        return self._in_flight[tenant] < max(1, self._slots // (others + 2))

    def _wake_at(self, subscription: str, at_ms: int) -> None:
        if self._timer_of.get(subscription) != at_ms:
            self._timer_of[subscription] = at_ms
            heapq.heappush(self._timers, (at_ms, subscription))
            self._timers_changed.set()
