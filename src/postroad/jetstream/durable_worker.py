"""Work queues of the delivery role: any number of its processes take from them, a few things at a time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.pull_consumer import ACK, Delivery, PullConsumer, ensure_work_consumer, nak
from postroad.kernel.errors import PostroadError

_AT_ONCE = 8
_LEASE_MS = 60_000
_RETRY_MS = 2_000
_WAIT_SECONDS = 5.0

Thing = TypeVar("Thing", bound=Hashable)

log = structlog.get_logger("postroad.sessions")


def work_stream(stream: str, subject: str, replicas: int) -> StreamSpec:
    options = {"retention": "workqueue", "allow_atomic": True, "num_replicas": replicas, "duplicate_window": 60_000_000_000}
    return StreamSpec(stream, (f"{subject}.>",), options)


class DurableWorker(Generic[Thing]):
    """`read` says what a message is about, None if it is nothing that can be done: then it is dropped."""

    def __init__(self, connection: Connection, spec: StreamSpec, consumer: str, read: Callable[[bytes], Thing | None]) -> None:
        self._connection, self._stream, self._subject = connection, spec.name, spec.subjects[0]
        self._consumer, self._read = consumer, read

    async def consume(self, work: Callable[[Thing], Awaitable[object]]) -> None:
        """Do what is asked for, until cancelled. Messages about one thing are one piece of work; one that fails comes again."""
        await ensure_work_consumer(self._connection, self._stream, self._consumer, self._subject)
        queue = PullConsumer(self._connection, self._stream, self._consumer)
        while True:
            taken: list[Delivery] = []
            try:
                taken = await queue.pull(_AT_ONCE, _WAIT_SECONDS)
                await queue.settle_without_answer([(one.delivery, nak(_LEASE_MS)) for one in taken])
                await asyncio.gather(*(self._do(queue, thing, some, work) for thing, some in self._by_thing(taken).items()))
            except asyncio.CancelledError:  # somebody else should have them at once; those that are done are not heard of again
                with contextlib.suppress(PostroadError):
                    await queue.settle_without_answer([(one.delivery, nak(0)) for one in taken])
                raise
            except PostroadError as problem:
                log.warning("work_waits", stream=self._stream, code=problem.code)
                await asyncio.sleep(0.5)

    def _by_thing(self, taken: list[Delivery]) -> dict[Thing | None, list[Delivery]]:
        groups: dict[Thing | None, list[Delivery]] = {}
        for one in taken:
            groups.setdefault(self._read(one.payload), []).append(one)
        return groups

    async def _do(
        self, queue: PullConsumer, thing: Thing | None, some: list[Delivery], work: Callable[[Thing], Awaitable[object]]
    ) -> None:
        verdict = ACK
        try:
            if thing is not None:
                await work(thing)
        except PostroadError as problem:
            log.warning("work_failed", stream=self._stream, thing=repr(thing), code=problem.code)
            verdict = nak(_RETRY_MS)
        await queue.settle([(one.delivery, verdict) for one in some])
