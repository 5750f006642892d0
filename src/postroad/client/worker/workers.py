"""The worker: pulls messages up to its concurrency, runs the handler, acks or nacks, and drains when it stops."""

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
from postroad.client.worker.acker import Acker
from postroad.client.worker.leases import Lease, LeaseRenewer, set_current_lease
from postroad.client.worker.outcomes import DeadLetter, Ended, GroupInterrupted, LeaseLost, Outcome, Retry, reason_of, truncate
from postroad.client.worker.progress import ProgressSender

T = TypeVar("T")
Handler = Callable[[Message], Awaitable[object]]

log = logging.getLogger("postroad.worker")


class WorkerOptions(TypedDict, total=False):
    """Options of a worker. WorkerSettings has the defaults.

    Leases are extended while a handler runs: `visibility_timeout_ms` does not limit the handler, it is the time until another
    worker gets the message after this process dies. With `once` the worker ends when the queue is empty.
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
        """Exponential backoff with jitter."""
        pause = self.pause_first
        while True:
            yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # not for security
            pause = min(pause * 2, self.pause_max)


class Worker:
    """Consumes a queue with a coroutine.

    When the handler returns, the message is acknowledged. When it raises, the message is retried, with the exception as the
    reason; `Retry` and `DeadLetter` choose the delay and the outcome. When a lease is lost, the handler is cancelled, since
    another worker gets the message; so it is when the job is cancelled. `current_lease().report_progress` shows progress in the
    job. `on_end` is called with the outcome of each message. The messages of a group of an ordered queue are handled one after
    the other, whatever the concurrency; if one of them is not done, those that follow it are requeued.
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
        self._renewer = LeaseRenewer(client, queue, self._settings.visibility_timeout_ms, Lease.end)
        self._progress = ProgressSender(client, queue, lambda lease: lease.end(Outcome.CANCELLED))
        self._acker = Acker(client, queue, self._settings.pauses)
        self._in_flight: dict[asyncio.Task[None], Lease] = {}
        self._last_of_group: dict[str, asyncio.Task[None]] = {}
        self._has_changed = asyncio.Event()
        self._stop, self._stop_now = asyncio.Event(), asyncio.Event()
        self._background: tuple[asyncio.Task[None], ...] = ()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def stop(self) -> None:
        """Stop pulling, and end once the messages in flight are handled; a second call requeues them at once.

        Call it from the event loop of the worker.
        """
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`, SIGTERM or SIGINT; with `once`, until the queue is empty. Raises errors that are not retryable.

        Retries while no server responds. Cancelling it stops the worker without waiting for the messages in flight.
        """
        background = (self._renewer.run(), self._acker.run(), self._progress.run())
        self._background = tuple(asyncio.create_task(one) for one in background)
        drain_seconds = self._settings.drain_seconds
        try:
            with self._signal_handlers():
                try:
                    await self._work()
                except asyncio.CancelledError:
                    drain_seconds = 0
                    raise
                finally:
                    await self._drain(drain_seconds)
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        """Call `stop` on signals, which only the main thread receives."""
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
            free = self._settings.concurrency - len(self._in_flight)
            if free <= 0:
                await self._until_stopped(self._has_changed.wait())
                continue
            try:
                messages = await self._until_stopped(self._pull(min(free, self._settings.batch_max)))
            except PostroadError as problem:
                if not problem.retryable or self._settings.once:
                    raise
                pause = next(pauses)
                log.warning("pulling from %s failed: %s; retrying in %.1f s", self._queue, problem, pause)
                await self._until_stopped(asyncio.sleep(pause))
                continue
            pauses = self._settings.pauses()
            for message in messages or ():
                self._start(message)
            if self._settings.once and not messages:
                if not self._in_flight:
                    return
                await self._until_stopped(self._has_changed.wait())

    async def _pull(self, count: int) -> list[Message]:
        wait_ms = 0 if self._settings.once else self._settings.wait_ms
        lease_ms = self._settings.visibility_timeout_ms
        pulled = await self._client.queues.pull(self._queue, max_messages=count, visibility_timeout_ms=lease_ms, wait_ms=wait_ms)
        return pulled.messages

    async def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of the work; None, and the work is cancelled, if the worker is stopped first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop, *self._background}, return_when=asyncio.FIRST_COMPLETED)
            for background in self._background:
                if background.done():
                    background.result()  # background tasks do not return: this raises
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    # Handling

    def _start(self, message: Message) -> None:
        lease, loop = self._renewer.add(message), asyncio.get_running_loop()

        def report(percent: float | None, note: str | None) -> None:
            loop.call_soon_threadsafe(self._progress.report, lease, percent, note)

        lease.on_progress(report)
        group = None if message.sequence is None else message.group_id or ""
        previous = None if group is None else self._last_of_group.get(group)
        lease.handling = asyncio.create_task(self._handle(lease, previous))
        task = asyncio.create_task(self._complete(lease, lease.handling))
        self._in_flight[task] = lease
        if group is not None:
            self._last_of_group[group] = task
        task.add_done_callback(self._completed)

    async def _handle(self, lease: Lease, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            before = self._in_flight.get(previous)
            await asyncio.wait({previous})
            if before is not None and before.outcome not in (Outcome.DONE, Outcome.DEAD):
                raise GroupInterrupted
        set_current_lease(lease)
        try:
            await self._handler(lease.message)
        except SystemExit as exc:  # must not end the worker
            raise RuntimeError(f"the handler raised {exc!r}") from exc

    def _completed(self, task: asyncio.Task[None]) -> None:
        lease = self._in_flight.pop(task)
        self._renewer.remove(lease)
        group = lease.message.group_id or ""
        if self._last_of_group.get(group) is task:
            del self._last_of_group[group]
        self._has_changed.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("completing %s failed", lease.message.message_id, exc_info=problem)

    async def _complete(self, lease: Lease, handling: asyncio.Task[None]) -> None:
        """Ack or nack the message by the outcome of its handler. If the handler finished in time, the message is done."""
        await asyncio.wait({handling})
        problem = asyncio.CancelledError() if handling.cancelled() else handling.exception()
        if lease.ended_by in (Outcome.LOST, Outcome.CANCELLED):
            self._report(lease, lease.ended_by)
            return
        if lease.ended_by is Outcome.REQUEUED and isinstance(problem, asyncio.CancelledError | LeaseLost):
            return  # `_drain` requeues it with all others
        lease.is_completing = True
        try:
            if problem is None:
                self._renewer.remove(lease)
                self._report(lease, Outcome.DONE if await self._acker.ack(lease) else Outcome.LOST)
            else:
                await self._renewer.release(lease)
                await self._reject(lease, problem)
        except asyncio.CancelledError:  # no time left to wait for the response
            self._report(lease, Outcome.LOST)
            raise

    async def _reject(self, lease: Lease, problem: BaseException) -> None:
        if isinstance(problem, GroupInterrupted):
            ok = await self._acker.nack(lease, "requeue", None, None)
            self._report(lease, Outcome.REQUEUED if ok else Outcome.LOST)
            return
        if isinstance(problem, DeadLetter):
            reason, outcome = truncate(problem.reason), Outcome.DEAD
            ok = await self._acker.nack(lease, "dlq", None, reason)
        elif isinstance(problem, Retry):
            reason, outcome = truncate(problem.reason), Outcome.RETRIED
            ok = await self._acker.nack(lease, "retry", problem.delay_ms, reason)
        else:
            reason, outcome = reason_of(problem), Outcome.RETRIED
            log.warning("the handler failed on message %s", lease.message.message_id, exc_info=problem)
            ok = await self._acker.nack(lease, "retry", None, reason)
        self._report(lease, outcome if ok else Outcome.LOST, reason)

    def _report(self, lease: Lease, outcome: Outcome, reason: str | None = None) -> None:
        lease.outcome = outcome
        if outcome is Outcome.LOST:
            log.warning("the lease of message %s was lost; it is delivered again", lease.message.message_id)
        if self._on_end is not None:
            try:
                self._on_end(Ended(lease.message, outcome, reason))
            except Exception:
                log.exception("on_end failed")

    # Draining

    async def _drain(self, seconds: float) -> None:
        """Wait for the messages in flight. Those that are not done in time are cancelled and requeued."""
        if self._in_flight and seconds > 0:
            stop_now = asyncio.ensure_future(self._stop_now.wait())
            everything = asyncio.ensure_future(asyncio.wait(set(self._in_flight)))
            try:
                await asyncio.wait({stop_now, everything}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop_now.cancel()
                everything.cancel()
        rest = dict(self._in_flight)
        if not rest:
            return
        for lease in rest.values():
            lease.is_abandoned = True
            lease.end(Outcome.REQUEUED)
        await asyncio.wait(set(rest), timeout=self._settings.cancel_seconds)
        await self._requeue([one for one in rest.values() if one.ended_by is Outcome.REQUEUED and not one.is_completing])
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _requeue(self, leases: list[Lease]) -> None:
        if not leases:
            return
        ok = False
        with contextlib.suppress(TimeoutError, PostroadError):
            async with asyncio.timeout(self._settings.cancel_seconds):
                for lease in leases:
                    await self._renewer.release(lease)
                for start in range(0, len(leases), 1000):
                    receipts = [lease.receipt for lease in leases[start : start + 1000]]
                    await self._client.queues.nack_many(self._queue, receipts, action="requeue")
                ok = True
        for lease in leases:
            self._report(lease, Outcome.REQUEUED if ok else Outcome.LOST)
