"""The worker for plain functions, which handles each message in its own thread."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Unpack

from postroad.api.queues import Message
from postroad.client.clients import Postroad
from postroad.client.worker.leases import current_lease
from postroad.client.worker.outcomes import Ended, Outcome
from postroad.client.worker.workers import Worker, WorkerOptions, WorkerSettings

PlainHandler = Callable[[Message], object]


class SyncWorker:
    """Like `Worker`, for a plain function in synchronous code.

    Threads cannot be cancelled: a long-running function should call `current_lease().check()` periodically, which raises
    LeaseLost once the lease has ended. Messages whose functions still run at the end of the drain are requeued; their threads
    do not keep the process from exiting.
    """

    def __init__(
        self,
        client: Postroad,
        queue: str,
        handler: PlainHandler,
        *,
        on_end: Callable[[Ended], None] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        WorkerSettings(**options)  # raises ValueError for invalid options
        self._options = options
        self._client, self._queue, self._handler, self._on_end = client, queue, handler, on_end
        self._lock = threading.Lock()
        self._stops = 0
        self._running: tuple[asyncio.AbstractEventLoop, Worker] | None = None

    def run(self) -> None:
        """Like `Worker.run`."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Like `Worker.stop`, but callable from any thread, handlers included."""
        with self._lock:
            self._stops += 1
            if self._running is not None:
                loop, worker = self._running
                loop.call_soon_threadsafe(worker.stop)

    async def _run(self) -> None:
        async with self._client.as_async() as client:
            worker = Worker(client, self._queue, self._handle_in_thread, on_end=self._on_end, **self._options)
            with self._lock:
                self._running = asyncio.get_running_loop(), worker
                for _ in range(self._stops):
                    worker.stop()
            try:
                await worker.run()
            finally:
                with self._lock:
                    self._running = None

    async def _handle_in_thread(self, message: Message) -> None:
        loop, lease, context = asyncio.get_running_loop(), current_lease(), contextvars.copy_context()
        done: asyncio.Future[None] = loop.create_future()

        def finish(problem: BaseException | None) -> None:
            if not done.done():
                done.set_exception(problem) if problem is not None else done.set_result(None)

        def work() -> None:
            problem: BaseException | None = None
            try:
                context.run(self._handler, message)
            except Exception as exc:
                problem = RuntimeError(f"the handler raised {exc!r}") if isinstance(exc, StopIteration) else exc
            except BaseException as exc:  # SystemExit and KeyboardInterrupt must not end the worker
                problem = RuntimeError(f"the handler raised {exc!r}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, problem)

        threading.Thread(target=work, name=f"postroad {self._queue} {message.message_id}", daemon=True).start()
        while not done.done():
            try:
                await asyncio.shield(done)
            except asyncio.CancelledError:
                if lease.ended_by not in (Outcome.LOST, Outcome.CANCELLED) or lease.is_abandoned:
                    raise
                # The lease is lost, but the thread counts towards the concurrency until the function returns.
        done.result()


def run_worker(
    client: Postroad,
    queue: str,
    handler: PlainHandler,
    *,
    on_end: Callable[[Ended], None] | None = None,
    **options: Unpack[WorkerOptions],
) -> None:
    """Consume a queue with a plain function until SIGTERM or SIGINT: `SyncWorker(…).run()`."""
    SyncWorker(client, queue, handler, on_end=on_end, **options).run()
