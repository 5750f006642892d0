"""Receives the messages of one queue of RabbitMQ in rounds.

`basic.get` is slow on a quorum queue, and a permanent consumer takes more than was asked for. So each round is a consumer whose
prefetch is the demand of the waiting pulls. It is cancelled when they are served, or when no message arrives for some
milliseconds. Messages can arrive after the cancellation was confirmed: they are strays, and go to the next pull, or back to the
queue.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from postroad.api.queues import BackendCannot, BackendUnavailable
from postroad.kernel.errors import PostroadError
from postroad.queues.rabbitmq.connection import RabbitConnection, answered

_LINGER_SECONDS = 0.01  # without another message, after the first
_FIRST_SECONDS = 0.5  # for the first message, if the queue has some
_STRAY_SECONDS = 1.0
_FULL_SECONDS = 0.05
_generations = count(1)


@dataclass(frozen=True, slots=True)
class RawDelivery:
    """A delivery, identified by the channel's generation and the tag."""

    generation: int
    tag: int
    body: bytes
    properties: Basic.Properties
    is_redelivered: bool

    @property
    def key(self) -> tuple[int, int]:
        return self.generation, self.tag


class _Caller:
    __slots__ = ("count", "deadline", "future", "got")

    def __init__(self, count: int, deadline: float) -> None:
        self.count, self.deadline = count, deadline
        self.got: list[RawDelivery] = []
        self.future: asyncio.Future[list[RawDelivery]] = asyncio.get_running_loop().create_future()


class _AnyConsumer(dict[str, Any]):
    """The consumers of a channel: one callback for all tags, also after their cancellation, when deliveries still arrive."""

    def __init__(self, callback: Callable[[DeliveredMessage], Any]) -> None:
        super().__init__()
        self._callback = callback

    def get(self, key: str, default: Any = None) -> Any:
        return self._callback


class QueueReceiver:
    """`held_max` bounds the deliveries that are not settled. `on_lost` is called when the channel is closed, with its
    generation: RabbitMQ returns all its deliveries to the queue. `return_stray` returns a delivery without a pull that waits."""

    def __init__(
        self,
        connection: RabbitConnection,
        queue: str,
        held_max: int,
        on_lost: Callable[[int], None],
        return_stray: Callable[[RawDelivery], Awaitable[None]],
    ) -> None:
        self.queue = queue
        self._connection, self._held_max, self._on_lost, self._return_stray = connection, held_max, on_lost, return_stray
        self._returning: set[asyncio.Task[None]] = set()
        self._channel: AbstractChannel | None = None
        self.generation = 0
        self._callers: deque[_Caller] = deque()
        self._strays: list[RawDelivery] = []
        self._unsettled: set[int] = set()  # tags
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._received = 0  # in this round
        self.is_paused = False
        self._closed_by: PostroadError | None = None

    @property
    def waiting(self) -> int:
        return len(self._callers)

    async def receive(self, count: int, wait_seconds: float) -> list[RawDelivery]:
        """Up to `count` messages, or none after `wait_seconds`. Raises BackendUnavailable."""
        if self._closed_by is not None:
            raise self._closed_by
        caller = _Caller(count, asyncio.get_running_loop().time() + wait_seconds)
        self._callers.append(caller)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return await caller.future
        except asyncio.CancelledError:
            if caller in self._callers:
                self._callers.remove(caller)
            got = caller.future.result() if caller.future.done() and not caller.future.cancelled() else caller.got
            self.keep(got)
            raise

    async def _run(self) -> None:
        try:
            while self._callers:
                await self._round()
        except BackendUnavailable as problem:
            self._fail(problem)
        except BackendCannot as problem:
            self._fail(problem)
        except Exception:
            self._fail(BackendUnavailable("receiving from RabbitMQ failed", retry_after=1))
            raise
        finally:
            self._task = asyncio.create_task(self._run()) if self._callers else None

    def _fail(self, problem: PostroadError) -> None:
        while self._callers:
            caller = self._callers.popleft()
            if caller.future.done():
                continue
            if caller.got:
                caller.future.set_result(caller.got)
            else:
                caller.future.set_exception(problem)

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        self._arrived.clear()
        strays, self._strays = self._strays, []
        for one in strays:
            self._hand_out(one)
        demand = min(sum(one.count - len(one.got) for one in self._callers), self._held_max - len(self._unsettled))
        if self.is_paused or demand <= 0:
            self._resolve(loop.time())
            await self._sleep(_FULL_SECONDS if self._callers else 0)
            return
        async with self._connection.calling():
            channel = await self._opened()
            ready = (await channel.queue_declare(self.queue, passive=True)).message_count or 0
        if not ready:
            self._resolve(loop.time())
            if not self._callers:
                return
        await self._consume(channel, demand, loop.time() + _FIRST_SECONDS if ready else None)
        self._resolve(loop.time())

    async def _consume(self, channel: AbstractChannel, demand: int, until: float | None) -> None:
        """Receive up to `demand` messages; the first by `until`, or by the deadline of a caller."""
        loop = asyncio.get_running_loop()
        self._received, callers = 0, len(self._callers)
        async with answered():
            await channel.basic_qos(prefetch_count=min(demand, 65_535))
            tag = (await channel.basic_consume(self.queue, partial(self._on_message, self.generation))).consumer_tag or ""
        until = min((one.deadline for one in self._callers), default=0.0) if until is None else until
        while self._received < demand and not channel.is_closed:
            seconds = _LINGER_SECONDS if self._received else until - loop.time()
            if seconds <= 0 or not await self._sleep(seconds):
                break
            if self.is_paused or (not self._received and len(self._callers) != callers):
                break
        try:
            async with answered():
                await channel.basic_cancel(tag)
        except BackendUnavailable:  # its consumer would receive messages without a demand
            await self._close_channel()
            raise

    async def _sleep(self, seconds: float) -> bool:
        """Wait for a message or a caller; false if there was none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
                self._arrived.clear()
                return True
        return False

    async def _opened(self) -> AbstractChannel:
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        channel = await self._connection.channel()
        self.generation = generation = next(_generations)
        self._unsettled, self._strays = set(), []
        channel.consumers = _AnyConsumer(partial(self._on_message, generation))  # type: ignore[attr-defined]  # see `_AnyConsumer`
        self._channel = channel
        channel.closing.add_done_callback(lambda _done: self._lost(generation))
        return channel

    def _lost(self, generation: int) -> None:
        if generation == self.generation:
            self._channel, self._unsettled, self._strays = None, set(), []
            for caller in self._callers:
                caller.got.clear()
            self._arrived.set()
        self._on_lost(generation)

    async def _on_message(self, generation: int, message: DeliveredMessage) -> None:
        if generation != self.generation:  # the channel is closed: RabbitMQ has the message again
            return
        tag = message.delivery_tag or 0
        self._unsettled.add(tag)
        self._received += 1
        one = RawDelivery(generation, tag, message.body, message.header.properties, bool(message.redelivered))
        self._hand_out(one)
        self._arrived.set()

    def _hand_out(self, delivery: RawDelivery) -> None:
        caller = next((one for one in self._callers if len(one.got) < one.count), None)
        if caller is not None:
            caller.got.append(delivery)
        else:
            self.keep([delivery])

    def keep(self, deliveries: Sequence[RawDelivery]) -> None:
        """Hold deliveries for the next caller for a moment, then return them to the queue."""
        kept = [one for one in deliveries if one.generation == self.generation]
        if kept:
            self._strays += kept
            asyncio.get_running_loop().call_later(_STRAY_SECONDS, self._return_strays, kept)

    def _return_strays(self, kept: list[RawDelivery]) -> None:
        left = [one for one in kept if one in self._strays]
        self._strays = [one for one in self._strays if one not in left]
        if left:
            task = asyncio.create_task(self._return_all(left))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return_all(self, deliveries: list[RawDelivery]) -> None:
        for one in deliveries:
            await self._return_stray(one)

    def _resolve(self, now: float) -> None:
        remaining: deque[_Caller] = deque()
        for caller in self._callers:
            if caller.got or caller.deadline <= now:
                if not caller.future.done():
                    caller.future.set_result(caller.got)
            else:
                remaining.append(caller)
        self._callers = remaining

    # Settling

    async def ack(self, generation: int, tag: int) -> bool:
        """Acknowledge a message; false if its channel is closed. AMQP does not confirm it."""
        return await self._settle(generation, tag, lambda channel: channel.basic_ack(tag, wait=False))

    async def requeue(self, generation: int, tag: int) -> bool:
        """Return a message to the queue after an attempt; false if its channel is closed: then RabbitMQ has done so.

        A reject, since RabbitMQ 4.3 does not count a nack in `x-delivery-count`.
        """
        return await self._settle(generation, tag, lambda channel: channel.basic_reject(tag, requeue=True, wait=False))

    async def put_back(self, generation: int, tag: int) -> bool:
        """Return a message to the queue that no consumer has seen. RabbitMQ before 4.3 counts it as an attempt."""
        return await self._settle(generation, tag, lambda channel: channel.basic_nack(tag, requeue=True, wait=False))

    def holds(self, generation: int, tag: int) -> bool:
        """True for a delivery that is not settled."""
        return self._open_channel(generation) is not None and tag in self._unsettled

    async def confirm(self) -> None:
        """Return once RabbitMQ has processed what was settled on the channel before: it answers a request in the order of the
        channel. Raises BackendUnavailable."""
        channel = self._open_channel(self.generation)
        if channel is None:
            raise BackendUnavailable("the channel to RabbitMQ was lost", retry_after=1)
        async with answered():
            await channel.queue_declare(self.queue, passive=True)

    def _open_channel(self, generation: int) -> AbstractChannel | None:
        channel = self._channel
        return None if channel is None or generation != self.generation or channel.is_closed else channel

    async def _settle(self, generation: int, tag: int, send: Callable[[AbstractChannel], Awaitable[object]]) -> bool:
        channel = self._open_channel(generation)
        if channel is None or tag not in self._unsettled:  # RabbitMQ closes a channel that settles a message twice
            return False
        self._unsettled.discard(tag)
        try:
            async with answered():
                await send(channel)
        except BackendUnavailable:
            return False
        return True

    def set_paused(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused
        self._arrived.set()

    async def close(self, problem: PostroadError) -> None:
        """Fail the callers that wait, and return all deliveries to the queue."""
        self._closed_by = problem
        self._fail(problem)
        if self._task is not None:
            self._task.cancel()
        await self._close_channel()

    async def _close_channel(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(BackendUnavailable):
                async with answered(1.0):
                    await self._channel.close()
