"""Leases, and keeping them while their handlers run."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar

from postroad.api.queues import Message
from postroad.client.clients import AsyncPostroad
from postroad.client.errors import PostroadError, QueueNotFound
from postroad.client.worker.outcomes import LeaseLost, Outcome

_RECEIPTS_MAX = 1000

log = logging.getLogger("postroad.worker")


class Lease:
    """A message that this worker has. `receipt` settles it: the latest one."""

    def __init__(self, message: Message, until: float, renew_at: float) -> None:
        self.message = message
        self.receipt = message.receipt_id
        self.until = until
        self.renew_at = renew_at
        self.extensions = 0
        self.handling: asyncio.Task[None] | None = None
        self.taken_by: Outcome | None = None
        self.is_settling = False
        self.is_abandoned = False

    @property
    def is_lost(self) -> bool:
        """Whether the message is no longer this worker's. What is done from then on, somebody else does, too."""
        return self.taken_by is not None

    def check(self) -> None:
        """For handlers in threads, which nobody can cancel: raises LeaseLost if it is lost."""
        if self.is_lost:
            raise LeaseLost(f"the message {self.message.message_id} is no longer this worker's")

    def take(self, outcome: Outcome) -> None:
        """Tell the handler that the message is not its own any more."""
        self.taken_by = self.taken_by or outcome
        if self.handling is not None:
            self.handling.cancel()


_current: ContextVar[Lease] = ContextVar("lease")


def current_lease() -> Lease:
    """Inside a handler: the lease of its message. Raises LookupError elsewhere."""
    return _current.get()


def enter(lease: Lease) -> None:
    _current.set(lease)


class LeaseRenewer:
    """Extends the leases that it holds when a third of their time is over, many in one call; tells which are lost.

    What cannot be extended for as long as the lease lasts, because no server answers, is lost as well.
    """

    def __init__(self, client: AsyncPostroad, queue: str, lease_ms: int, on_lost: Callable[[Lease], None]) -> None:
        self._client, self._queue, self._lease_ms, self._on_lost = client, queue, lease_ms, on_lost
        self._seconds = lease_ms / 1000
        self._held: set[Lease] = set()
        self._under_way: set[Lease] = set()
        self._has_some = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def hold(self, message: Message) -> Lease:
        now = asyncio.get_running_loop().time()
        lease = Lease(message, now + self._seconds, now + self._seconds / 3)
        self._held.add(lease)
        self._has_some.set()
        return lease

    def drop(self, lease: Lease) -> None:
        """Extend it no more."""
        self._held.discard(lease)

    async def release(self, lease: Lease) -> None:
        """Extend it no more, and return once no call that would is on its way: it could undo what is decided now."""
        self._held.discard(lease)
        while lease in self._under_way:
            await self._is_idle.wait()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._held:
                self._has_some.clear()
                await self._has_some.wait()
            due = min(lease.renew_at for lease in self._held)
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._extend()

    async def _extend(self) -> None:
        """Those that are due, and those that soon will be."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for lease in [lease for lease in self._held if lease.until <= now]:
            self._lose(lease)
        batch = [lease for lease in self._held if lease.renew_at <= now + self._seconds / 12][:_RECEIPTS_MAX]
        if not batch:
            return
        self._under_way = set(batch)
        self._is_idle.clear()
        try:
            async with asyncio.timeout_at(min(lease.until for lease in batch)):
                await self._send(batch, now)
        except TimeoutError:
            pass  # at least one is lost by now, which is seen next; the others are tried again at once
        except PostroadError as problem:
            log.warning("leases of %s cannot be extended: %s", self._queue, problem)
            for lease in batch:
                lease.renew_at = min(loop.time() + self._seconds / 12, lease.until)
                if isinstance(problem, QueueNotFound):
                    self._lose(lease)
        finally:
            self._under_way = set()
            self._is_idle.set()

    async def _send(self, batch: list[Lease], now: float) -> None:
        receipts = [lease.receipt for lease in batch]
        answer = await self._client.queues.extend_many(self._queue, receipts, self._lease_ms)
        for lease, result in zip(batch, answer.results, strict=True):
            if result.new_receipt_id is not None:
                lease.receipt = result.new_receipt_id
                lease.until, lease.renew_at = now + self._seconds, now + self._seconds / 3
                lease.extensions += 1
            else:
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        if lease in self._held:
            self._held.discard(lease)
            self._on_lost(lease)
