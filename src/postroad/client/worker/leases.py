"""Leases of messages, and their renewal while handlers run."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar

from postroad.api.queues import Message
from postroad.client.clients import AsyncPostroad
from postroad.client.errors import JobWasCancelled, PostroadError, QueueNotFound
from postroad.client.worker.outcomes import LeaseLost, Outcome

_RECEIPTS_MAX = 1000

log = logging.getLogger("postroad.worker")


class Lease:
    """A leased message. `receipt` is the latest one. `ended_by` is the outcome that ended the lease before its handler did."""

    def __init__(self, message: Message, until: float, renew_at: float) -> None:
        self.message = message
        self.receipt = message.receipt_id
        self.until = until
        self.renew_at = renew_at
        self.extensions = 0
        self.handling: asyncio.Task[None] | None = None
        self.ended_by: Outcome | None = None
        self.is_completing = False
        self.is_abandoned = False
        self.outcome: Outcome | None = None
        self._report: Callable[[float | None, str | None], None] | None = None

    @property
    def is_lost(self) -> bool:
        """True once the lease has ended: another worker gets, or has, the message, or the job was cancelled."""
        return self.ended_by is not None

    def check(self) -> None:
        """For handlers in threads, which cannot be cancelled. Raises LeaseLost if the lease has ended."""
        if self.is_lost:
            raise LeaseLost(f"the lease of message {self.message.message_id} has ended")

    def on_progress(self, report: Callable[[float | None, str | None], None]) -> None:
        self._report = report

    def report_progress(self, percent: float | None = None, note: str | None = None) -> None:
        """Show progress (0 to 100 percent, a note of up to 500 characters) in the job. From any thread; returns at once.

        The latest report is sent in the background, at most once a second. Raises LeaseLost if the lease has ended.
        """
        self.check()
        if self._report is not None and (percent is not None or note is not None):
            self._report(percent, note)

    @property
    def is_cancelled(self) -> bool:
        """True once it is known that the job was cancelled: with the next extension of the lease or report of progress."""
        return self.ended_by is Outcome.CANCELLED

    def end(self, outcome: Outcome) -> None:
        """End the lease, and cancel the handler."""
        self.ended_by = self.ended_by or outcome
        if self.handling is not None:
            self.handling.cancel()


_current: ContextVar[Lease] = ContextVar("lease")


def current_lease() -> Lease:
    """The lease of the message that the calling handler handles. Raises LookupError outside a handler."""
    return _current.get()


def set_current_lease(lease: Lease) -> None:
    _current.set(lease)


class LeaseRenewer:
    """Extends leases after a third of their time, many in one call, and reports lost ones.

    A lease that cannot be extended before it ends, because no server responds, is lost, too.
    """

    def __init__(self, client: AsyncPostroad, queue: str, lease_ms: int, on_lost: Callable[[Lease, Outcome], None]) -> None:
        self._client, self._queue, self._lease_ms, self._on_lost = client, queue, lease_ms, on_lost
        self._seconds = lease_ms / 1000
        self._leases: set[Lease] = set()
        self._extending: set[Lease] = set()
        self._has_leases = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def add(self, message: Message) -> Lease:
        now = asyncio.get_running_loop().time()
        lease = Lease(message, now + self._seconds, now + self._seconds / 3)
        self._leases.add(lease)
        self._has_leases.set()
        return lease

    def remove(self, lease: Lease) -> None:
        """Stop extending the lease."""
        self._leases.discard(lease)

    async def release(self, lease: Lease) -> None:
        """Stop extending the lease; return once no extension is in flight, which could override a following nack."""
        self._leases.discard(lease)
        while lease in self._extending:
            await self._is_idle.wait()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._leases:
                self._has_leases.clear()
                await self._has_leases.wait()
            due = min(lease.renew_at for lease in self._leases)
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._extend()

    async def _extend(self) -> None:
        """Extend the leases that are due now or soon."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for lease in [lease for lease in self._leases if lease.until <= now]:
            self._lose(lease)
        batch = [lease for lease in self._leases if lease.renew_at <= now + self._seconds / 12][:_RECEIPTS_MAX]
        if not batch:
            return
        self._extending = set(batch)
        self._is_idle.clear()
        try:
            async with asyncio.timeout_at(min(lease.until for lease in batch)):
                await self._send(batch, now)
        except TimeoutError:
            pass  # at least one lease has ended, which the next round detects; it extends the others
        except PostroadError as problem:
            log.warning("leases of %s cannot be extended: %s", self._queue, problem)
            for lease in batch:
                lease.renew_at = min(loop.time() + self._seconds / 12, lease.until)
                if isinstance(problem, QueueNotFound):
                    self._lose(lease)
        finally:
            self._extending = set()
            self._is_idle.set()

    async def _send(self, batch: list[Lease], now: float) -> None:
        receipts = [lease.receipt for lease in batch]
        extended = await self._client.queues.extend_many(self._queue, receipts, self._lease_ms)
        for lease, result in zip(batch, extended.results, strict=True):
            if result.new_receipt_id is not None:
                lease.receipt = result.new_receipt_id
                lease.until, lease.renew_at = now + self._seconds, now + self._seconds / 3
                lease.extensions += 1
            else:
                is_cancelled = result.problem is not None and result.problem.code == JobWasCancelled.code
                self._lose(lease, Outcome.CANCELLED if is_cancelled else Outcome.LOST)

    def _lose(self, lease: Lease, outcome: Outcome = Outcome.LOST) -> None:
        if lease in self._leases:
            self._leases.discard(lease)
            self._on_lost(lease, outcome)
