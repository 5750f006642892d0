"""Progress reports of handlers: the latest of each message is sent in the background, at most once a second."""

import asyncio
import logging
from collections.abc import Callable

from postroad.client.clients import AsyncPostroad
from postroad.client.errors import JobWasCancelled, PostroadError
from postroad.client.worker.leases import Lease

_INTERVAL_SECONDS = 1.0

log = logging.getLogger("postroad.worker")


class ProgressSender:
    def __init__(self, client: AsyncPostroad, queue: str, on_cancelled: Callable[[Lease], None]) -> None:
        self._client, self._queue, self._on_cancelled = client, queue, on_cancelled
        self._waiting: dict[Lease, tuple[float | None, str | None]] = {}
        self._wake = asyncio.Event()

    def report(self, lease: Lease, percent: float | None, note: str | None) -> None:
        """Call it from the event loop of the worker."""
        if not lease.is_lost:
            self._waiting[lease] = (percent, note)
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, {}
            for lease, (percent, note) in batch.items():
                if not lease.is_lost and not lease.is_completing:
                    await self._send(lease, percent, note)
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _send(self, lease: Lease, percent: float | None, note: str | None) -> None:
        try:
            await self._client.queues.report_progress(self._queue, lease.receipt, percent=percent, note=note)
        except JobWasCancelled:
            self._on_cancelled(lease)
        except PostroadError as problem:  # a report is not worth more
            log.warning("the progress of message %s was not reported: %s", lease.message.message_id, problem)
