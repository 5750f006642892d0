"""The worker: pulls as much as it has hands for, has it handled, settles it, and leaves nothing behind when it stops."""

import asyncio
import contextlib
import logging
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from postroad.api.queues import Message
from postroad.client.clients import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.client.worker.acker import Settler
from postroad.client.worker.leases import Lease, LeaseRenewer, enter
from postroad.client.worker.outcomes import DeadLetter, Ended, LeaseLost, Outcome, Retry, fitting, reason_of

T = TypeVar("T")
Handler = Callable[[Message], Awaitable[object]]

log = logging.getLogger("postroad.worker")


class WorkerOptions(TypedDict, total=False):
    """What a worker can be told; the defaults are those of WorkerSettings.

    Leases are extended while a handler runs, so `visibility_timeout_ms` is not how long it may take, but how long it takes until
    somebody else gets the message when this process dies. With `once` the worker ends when it finds the queue empty.
    """

    concurrency: int
    visibility_timeout_ms: int
    wait_ms: int
    drain_seconds: float
    cancel_seconds: float
    batch_max: int
    pause_first: float
    pause_max: float
    once: bool
    signals: tuple[signal.Signals, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    concurrency: int = 10
    visibility_timeout_ms: int = 30_000
    wait_ms: int = 20_000
    drain_seconds: float = 20.0
    cancel_seconds: float = 5.0
    batch_max: int = 100
    pause_first: float = 0.2
    pause_max: float = 15.0
    once: bool = False
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.visibility_timeout_ms < 1 or not 1 <= self.batch_max <= 1000:
            raise ValueError("concurrency and visibility_timeout_ms are at least 1, batch_max is 1 to 1000")

    def pauses(self) -> Iterator[float]:
        """Between tries: longer and longer, and never two workers' at the same moment."""
        pause = self.pause_first
        while True:
            yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # spreads workers, guards nothing
            pause = min(pause * 2, self.pause_max)


class Worker:
    """Works a queue off with a coroutine.

    A handler that returns has its message acknowledged. One that raises has it tried again later, with the exception as the
    reason; `Retry` and `DeadLetter` let it choose. When a lease is lost the handler is cancelled, as somebody else has the
    message. `on_end` hears what became of each.
    """

    def __init__(
        self,
        client: AsyncPostroad,
        queue: str,
        handler: Handler,
        *,
        on_end: Callable[[Ended], None] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._settings = WorkerSettings(**options)
        self._client, self._queue, self._handler, self._on_end = client, queue, handler, on_end
        self._keeper = LeaseRenewer(client, queue, self._settings.visibility_timeout_ms, lambda lease: lease.take(Outcome.LOST))
        self._settler = Settler(client, queue, self._settings.pauses)
        self._in_hand: dict[asyncio.Task[None], Lease] = {}
        self._has_changed = asyncio.Event()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._chores: tuple[asyncio.Task[None], ...] = ()

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    def stop(self) -> None:
        """Pull no more and end once what is in hand is done; called again, give back at once what is not. From its loop only."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`, SIGTERM or SIGINT; with `once`, until the queue is empty. Raises what trying again cannot help.

        While no server answers it keeps trying. To cancel it is to stop without waiting for what is in hand.
        """
        self._chores = (asyncio.create_task(self._keeper.run()), asyncio.create_task(self._settler.run()))
        drain_seconds = self._settings.drain_seconds
        try:
            with self._signals_heard():
                try:
                    await self._work()
                except asyncio.CancelledError:
                    drain_seconds = 0
                    raise
                finally:
                    await self._drain(drain_seconds)
        finally:
            for chore in self._chores:
                chore.cancel()
            await asyncio.gather(*self._chores, return_exceptions=True)

    @contextlib.contextmanager
    def _signals_heard(self) -> Iterator[None]:
        """Only the main thread is told of signals; elsewhere `stop` is for whoever started the worker."""
        is_main = threading.current_thread() is threading.main_thread()
        loop, before = asyncio.get_running_loop(), {}
        for number in self._settings.signals if is_main else ():
            before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    # Pulling

    async def _work(self) -> None:
        pauses = self._settings.pauses()
        while not self._stop.is_set():
            self._has_changed.clear()
            free = self._settings.concurrency - len(self._in_hand)
            if free <= 0:
                await self._unless_stopped(self._has_changed.wait())
                continue
            try:
                messages = await self._unless_stopped(self._pull(min(free, self._settings.batch_max)))
            except PostroadError as problem:
                if not problem.retryable or self._settings.once:
                    raise
                pause = next(pauses)
                log.warning("%s cannot be pulled from: %s; trying again in %.1f s", self._queue, problem, pause)
                await self._unless_stopped(asyncio.sleep(pause))
                continue
            pauses = self._settings.pauses()
            for message in messages or ():
                self._begin(message)
            if self._settings.once and not messages:
                if not self._in_hand:
                    return
                await self._unless_stopped(self._has_changed.wait())

    async def _pull(self, count: int) -> list[Message]:
        wait_ms = 0 if self._settings.once else self._settings.wait_ms
        lease_ms = self._settings.visibility_timeout_ms
        pulled = await self._client.queues.pull(self._queue, max_messages=count, visibility_timeout_ms=lease_ms, wait_ms=wait_ms)
        return pulled.messages

    async def _unless_stopped(self, waited_for: Coroutine[Any, Any, T]) -> T | None:
        """What it gives; None if the worker is to stop first, and then it is cancelled."""
        task, stop = asyncio.ensure_future(waited_for), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop, *self._chores}, return_when=asyncio.FIRST_COMPLETED)
            for chore in self._chores:
                if chore.done():
                    chore.result()  # they never end by themselves: this raises
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    # Handling

    def _begin(self, message: Message) -> None:
        lease = self._keeper.hold(message)
        lease.handling = asyncio.create_task(self._handle(lease))
        task = asyncio.create_task(self._see_through(lease, lease.handling))
        self._in_hand[task] = lease
        task.add_done_callback(self._is_over)

    async def _handle(self, lease: Lease) -> None:
        enter(lease)
        try:
            await self._handler(lease.message)
        except SystemExit as exc:  # is for a process, not for one message
            raise RuntimeError(f"the handler raised {exc!r}") from exc

    def _is_over(self, task: asyncio.Task[None]) -> None:
        lease = self._in_hand.pop(task)
        self._keeper.drop(lease)
        self._has_changed.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("settling %s failed", lease.message.message_id, exc_info=fault)

    async def _see_through(self, lease: Lease, handling: asyncio.Task[None]) -> None:
        """Settle the message by how its handler ended. A handler that was done in time is done, whatever came after."""
        await asyncio.wait({handling})
        problem = asyncio.CancelledError() if handling.cancelled() else handling.exception()
        if lease.taken_by is Outcome.LOST:
            self._tell(lease, Outcome.LOST)
            return
        if lease.taken_by is Outcome.GIVEN_BACK and isinstance(problem, asyncio.CancelledError | LeaseLost):
            return  # by `_drain`, with all others
        lease.is_settling = True
        try:
            if problem is None:
                self._keeper.drop(lease)
                self._tell(lease, Outcome.DONE if await self._settler.ack(lease) else Outcome.LOST)
            else:
                await self._keeper.release(lease)
                await self._reject(lease, problem)
        except asyncio.CancelledError:  # there was no time left to hear what the server says
            self._tell(lease, Outcome.LOST)
            raise

    async def _reject(self, lease: Lease, problem: BaseException) -> None:
        if isinstance(problem, DeadLetter):
            reason, outcome = fitting(problem.reason), Outcome.DEAD
            is_good = await self._settler.nack(lease, "dlq", None, reason)
        elif isinstance(problem, Retry):
            reason, outcome = fitting(problem.reason), Outcome.RETRIED
            is_good = await self._settler.nack(lease, "retry", problem.delay_ms, reason)
        else:
            reason, outcome = reason_of(problem), Outcome.RETRIED
            log.warning("the handler failed on %s", lease.message.message_id, exc_info=problem)
            is_good = await self._settler.nack(lease, "retry", None, reason)
        self._tell(lease, outcome if is_good else Outcome.LOST, reason)

    def _tell(self, lease: Lease, outcome: Outcome, reason: str | None = None) -> None:
        if outcome is Outcome.LOST:
            log.warning("the lease of %s was lost; it is delivered again", lease.message.message_id)
        if self._on_end is not None:
            try:
                self._on_end(Ended(lease.message, outcome, reason))
            except Exception:
                log.exception("on_end failed")

    # Draining

    async def _drain(self, seconds: float) -> None:
        """Wait for what is in hand; what is not done in time is cancelled and given back, for others to do at once."""
        if self._in_hand and seconds > 0:
            hurry = asyncio.ensure_future(self._hurry.wait())
            everything = asyncio.ensure_future(asyncio.wait(set(self._in_hand)))
            try:
                await asyncio.wait({hurry, everything}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurry.cancel()
                everything.cancel()
        rest = dict(self._in_hand)
        if not rest:
            return
        for lease in rest.values():
            lease.is_abandoned = True
            lease.take(Outcome.GIVEN_BACK)
        await asyncio.wait(set(rest), timeout=self._settings.cancel_seconds)
        await self._give_back([one for one in rest.values() if one.taken_by is Outcome.GIVEN_BACK and not one.is_settling])
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _give_back(self, leases: list[Lease]) -> None:
        if not leases:
            return
        is_good = False
        with contextlib.suppress(TimeoutError, PostroadError):
            async with asyncio.timeout(self._settings.cancel_seconds):
                for lease in leases:
                    await self._keeper.release(lease)
                for start in range(0, len(leases), 1000):
                    receipts = [lease.receipt for lease in leases[start : start + 1000]]
                    await self._client.queues.nack_many(self._queue, receipts, action="requeue")
                is_good = True
        for lease in leases:
            self._tell(lease, Outcome.GIVEN_BACK if is_good else Outcome.LOST)
