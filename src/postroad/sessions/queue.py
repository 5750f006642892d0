"""The queue of fan-outs that are too large for a publish to wait for: a work queue that the delivery role consumes.

A job says which stream, and up to where as far as the one who asked knows. How far it really is says the stream's own state, so a
job that comes twice does nothing the second time.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from postroad.engine.commit import Committers, Draft
from postroad.engine.layout import StreamSpec
from postroad.engine.link import Link
from postroad.engine.work import ACK, Delivered, WorkQueue, ensure_work_consumer, nak
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import escape
from postroad.streams.store import Name

STREAM = "FANOUT"
_CONSUMER = "fanout"
_AT_ONCE = 8
_LEASE_MS = 60_000
_RETRY_MS = 2_000
_WAIT_SECONDS = 5.0

log = structlog.get_logger("postroad.sessions")


class FanoutJob(msgspec.Struct, frozen=True):
    tenant: str
    stream: str
    until: int


_decode = msgspec.json.Decoder(FanoutJob).decode


def queue_stream(replicas: int, stream: str = STREAM) -> StreamSpec:
    options = {"retention": "workqueue", "allow_atomic": True, "num_replicas": replicas, "duplicate_window": 60_000_000_000}
    return StreamSpec(stream, (f"{stream.lower()}.>",), options)


class FanoutQueue:
    def __init__(self, link: Link, committers: Committers, stream: str = STREAM) -> None:
        self._link, self._committers, self._stream = link, committers, stream

    async def put(self, name: Name, until: int) -> None:
        """Durable when this returns."""
        job = msgspec.json.encode(FanoutJob(name.tenant, name.id, until))
        draft = Draft(f"{self._stream.lower()}.{name.tenant}.{escape(name.id)}", job, f"{name.tenant}:{name.id}:{until}")
        await self._committers.of(self._stream).append(draft)

    async def consume(self, work: Callable[[Name], Awaitable[object]]) -> None:
        """Do the jobs, a few streams at a time, until cancelled. One that fails comes again."""
        await ensure_work_consumer(self._link, self._stream, _CONSUMER, f"{self._stream.lower()}.>")
        queue = WorkQueue(self._link, self._stream, _CONSUMER)
        while True:
            taken: list[Delivered] = []
            try:
                taken = await queue.pull(_AT_ONCE, _WAIT_SECONDS)
                await queue.settle_without_answer([(one.delivery, nak(_LEASE_MS)) for one in taken])
                await asyncio.gather(*(self._do(queue, jobs, work) for jobs in _by_stream(taken)))
            except asyncio.CancelledError:  # somebody else should have them at once; those that are done are not heard of again
                with contextlib.suppress(PostroadError):
                    await queue.settle_without_answer([(one.delivery, nak(0)) for one in taken])
                raise
            except PostroadError as problem:
                log.warning("fanout_queue_waits", code=problem.code)
                await asyncio.sleep(0.5)

    async def _do(self, queue: WorkQueue, jobs: list[Delivered], work: Callable[[Name], Awaitable[object]]) -> None:
        job = _decode(jobs[0].payload)
        verdict = ACK
        try:
            await work(Name(job.tenant, job.stream))
        except PostroadError as problem:
            log.warning("fanout_job_failed", stream=job.stream, code=problem.code)
            verdict = nak(_RETRY_MS)
        await queue.settle([(one.delivery, verdict) for one in jobs])


def _by_stream(taken: list[Delivered]) -> list[list[Delivered]]:
    """Jobs of one stream are one piece of work."""
    groups: dict[tuple[str, str], list[Delivered]] = {}
    for one in taken:
        job = _decode(one.payload)
        groups.setdefault((job.tenant, job.stream), []).append(one)
    return list(groups.values())
