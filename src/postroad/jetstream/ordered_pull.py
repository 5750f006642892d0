"""Pulls from several consumers of one stream, in a given order.

A pull asks one consumer after the other for messages that are ready now. If there are none, it waits for a wake-up of any of
them: waiting requests at several consumers would deliver more messages than were asked for.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Generic, TypeVar

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.deliveries import Delivery
from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jetstream.wake_ups import WakeUps
from postroad.kernel.errors import EngineUnavailable

_MESSAGES_MAX = 1000  # for all waiting pulls together
_MORE_BYTES_MAX = 256 * 1024  # with more than this, the consumers that follow are not asked
_RETRY_SECONDS = 0.2

K = TypeVar("K")
Group = tuple[K, list[Delivery]]  # deliveries of one consumer


class _Caller(Generic[K]):
    """A pull that waits for messages."""

    __slots__ = ("count", "future", "order")

    def __init__(self, order: Sequence[K], count: int) -> None:
        self.order, self.count = order, count
        self.future: asyncio.Future[list[Group[K]]] = asyncio.get_running_loop().create_future()


class OrderedPull(Generic[K]):
    """`orders` are the orders of the consumers, by their keys, that pulls use in turn.

    One task serves the pulls that wait, the longest waiting first.
    """

    def __init__(
        self, connection: Connection, stream: str, consumers: Mapping[K, PullConsumer], orders: Sequence[Sequence[K]]
    ) -> None:
        self.consumers, self._orders = consumers, cycle(orders)
        self._wake_ups = WakeUps(connection, stream, [one.consumer for one in consumers.values()])
        self._callers: list[_Caller[K]] = []
        self._task: asyncio.Task[None] | None = None
        self._problem: EngineUnavailable | None = None  # of the latest attempt

    @property
    def waiting(self) -> int:
        """Calls of `pull` that wait for a message."""
        return len(self._callers)

    async def pull(self, count: int, wait_seconds: float) -> list[Group[K]]:
        """Up to `count` messages that are ready now, those of the first consumer in the order first; or the first that become
        ready within `wait_seconds`.

        The caller must lease or release them at once. Raises EngineUnavailable.
        """
        order = next(self._orders)
        try:
            found = await self._fetch(order, count)
        except EngineUnavailable:
            if wait_seconds <= 0:
                raise
            found = []
        return found if found or wait_seconds <= 0 else await self._wait(_Caller(order, count), wait_seconds)

    async def _fetch(self, order: Sequence[K], count: int) -> list[Group[K]]:
        """Messages that are ready now. Raises EngineUnavailable if no consumer could be asked."""
        found: list[Group[K]] = []
        size = 0
        try:
            for key in order:
                deliveries = await self.consumers[key].pull(count, 0)
                if deliveries:
                    found.append((key, deliveries))
                    count -= len(deliveries)
                    size += sum(len(one.payload) for one in deliveries)
                if count <= 0 or size > _MORE_BYTES_MAX:
                    break
        except asyncio.CancelledError:
            await self.release(found)
            raise
        except EngineUnavailable:
            if not found:
                raise
        return found

    async def release(self, groups: Iterable[Group[K]]) -> None:
        """Return messages to the queue."""
        for key, deliveries in groups:
            self.consumers[key].release([one.ref for one in deliveries])

    async def _wait(self, caller: _Caller[K], seconds: float) -> list[Group[K]]:
        self._callers.append(caller)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait({caller.future}, timeout=seconds)
        except asyncio.CancelledError:
            if caller.future.done() and not caller.future.cancelled() and caller.future.exception() is None:
                await self.release(caller.future.result())
            raise
        finally:
            if caller in self._callers:
                self._callers.remove(caller)
        if caller.future.done():
            return caller.future.result()
        if self._problem is not None:
            raise self._problem
        return []

    async def _run(self) -> None:
        """Serve the waiting pulls until there are none."""
        try:
            await self._wake_ups.open()
            try:
                while self._callers:
                    await self._serve()
            finally:
                await self._wake_ups.close()
        finally:
            self._problem = None
            self._task = asyncio.create_task(self._run()) if self._callers else None  # a pull arrived during the end

    async def _serve(self) -> None:
        try:
            await self._wake_ups.wait()
            demand = min(_MESSAGES_MAX, sum(one.count for one in self._callers))
            found = await self._fetch(self._callers[0].order, demand) if demand else []
            self._problem = None
        except (ConnectionLost, EngineUnavailable) as problem:
            lost = EngineUnavailable("the engine's connection was lost", retry_after=1)
            self._problem = problem if isinstance(problem, EngineUnavailable) else lost
            await asyncio.sleep(_RETRY_SECONDS)
            return
        await self.release(self._hand_out(found))

    def _hand_out(self, found: Iterable[Group[K]]) -> list[Group[K]]:
        """Give the messages to the waiting pulls; the rest, if some of them have ended meanwhile."""
        rest = [(key, list(deliveries)) for key, deliveries in found]
        while rest and self._callers:
            caller, taken = self._callers.pop(0), []
            left = caller.count
            while rest and left:
                key, deliveries = rest[0]
                taken.append((key, deliveries[:left]))
                left -= len(taken[-1][1])
                rest[0] = (key, deliveries[len(taken[-1][1]) :])
                if not rest[0][1]:
                    del rest[0]
            caller.future.set_result(taken)
        return rest

    def close(self, error: Exception) -> None:
        """Fail the pulls that wait. The consumers are closed by their owner."""
        while self._callers:
            self._callers.pop(0).future.set_exception(error)
        if self._task is not None:
            self._task.cancel()
