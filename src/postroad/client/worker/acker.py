"""Acks and nacks of handled messages. Acks that arrive during a request are sent together in the next one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from postroad.api.receipts import NackAction
from postroad.client.clients import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.client.worker.leases import Lease

_RECEIPTS_MAX = 1000

log = logging.getLogger("postroad.worker")

Pauses = Callable[[], Iterator[float]]


class Acker:
    def __init__(self, client: AsyncPostroad, queue: str, pauses: Pauses) -> None:
        self._client, self._queue, self._pauses = client, queue, pauses
        self._waiting: list[tuple[Lease, asyncio.Future[bool]]] = []
        self._wake = asyncio.Event()

    async def ack(self, lease: Lease) -> bool:
        """Return True once the message is acknowledged, False if the lease ended before. Needs `run` in the background."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((lease, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            batch, self._waiting = self._waiting[:_RECEIPTS_MAX], self._waiting[_RECEIPTS_MAX:]
            results = await self._acknowledge([lease for lease, _ in batch])
            for (_, future), ok in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(ok)

    async def _acknowledge(self, leases: list[Lease]) -> list[bool]:
        receipts = [lease.receipt for lease in leases]
        until = max(lease.until for lease in leases)
        acked = await self._retry(lambda: self._client.queues.ack_many(self._queue, receipts), until)
        return [False] * len(leases) if acked is None else [result.ok for result in acked.results]

    async def nack(self, lease: Lease, action: NackAction, delay_ms: int | None, reason: str | None) -> bool:
        """Return True once the message is rejected, False if the lease ended before."""

        def send() -> Awaitable[Any]:
            return self._client.queues.nack(self._queue, lease.receipt, action=action, delay_ms=delay_ms, reason=reason or None)

        return await self._retry(send, lease.until) is not None

    async def _retry(self, send: Callable[[], Awaitable[Any]], until: float) -> Any:
        """Send until a server responds; None if the request failed, or the lease ended first."""
        loop = asyncio.get_running_loop()
        for pause in self._pauses():
            try:
                async with asyncio.timeout_at(until):
                    return await send()
            except TimeoutError:
                return None
            except PostroadError as problem:
                log.warning("messages of %s cannot be acknowledged: %s", self._queue, problem)
                if not problem.retryable or loop.time() + pause >= until:
                    return None
                await asyncio.sleep(pause)
        return None
