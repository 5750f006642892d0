"""Queue of fan-outs that are too large for a publish request.

A job names the stream and the sequence known when it was queued. The stored state of the fan-out decides which copies are left,
so a job that is delivered twice has no further effect.
"""

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import DurableWorker, work_stream
from postroad.jetstream.management import StreamSpec
from postroad.kernel.names import escape
from postroad.streams.store import StreamName

STREAM, _CONSUMER = "FANOUT", "fanout"

log = structlog.get_logger("postroad.sessions")


class FanoutJob(msgspec.Struct, frozen=True):
    tenant: str
    stream: str
    until: int


_decode = msgspec.json.Decoder(FanoutJob).decode


def queue_stream(replicas: int, stream: str = STREAM) -> StreamSpec:
    return work_stream(stream, stream.lower(), replicas)


class FanoutQueue:
    def __init__(self, connection: Connection, committers: Committers, stream: str = STREAM) -> None:
        self._committers, self._stream = committers, stream
        self._worker = DurableWorker(connection, queue_stream(1, stream), _CONSUMER, _source_of)

    async def put(self, name: StreamName, until: int) -> None:
        """Return once the job is durable."""
        job = msgspec.json.encode(FanoutJob(name.tenant, name.id, until))
        subject = f"{self._stream.lower()}.{name.tenant}.{escape(name.id)}"
        await self._committers.of(self._stream).append(PendingMessage(subject, job, f"{name.tenant}:{name.id}:{until}"))

    async def consume(self, handler: Callable[[StreamName], Awaitable[object]]) -> None:
        """Process jobs of a few streams at a time until cancelled. A failed job is delivered again."""
        await self._worker.consume(handler)


def _source_of(payload: bytes) -> StreamName | None:
    try:
        job = _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        log.warning("fanout_job_unreadable")
        return None
    return StreamName(job.tenant, job.stream)
