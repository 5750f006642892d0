"""The queue of fan-outs that are too large for a publish to wait for.

A job says which stream, and up to where as far as the one who asked knows. How far it really is says the stream's own state, so a
job that comes twice does nothing the second time.
"""

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import DurableWorker, work_stream
from postroad.jetstream.management import StreamSpec
from postroad.kernel.names import escape
from postroad.streams.store import Name

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
        self._work = DurableWorker(connection, queue_stream(1, stream), _CONSUMER, _source)

    async def put(self, name: Name, until: int) -> None:
        """Durable when this returns."""
        job = msgspec.json.encode(FanoutJob(name.tenant, name.id, until))
        draft = PendingMessage(f"{self._stream.lower()}.{name.tenant}.{escape(name.id)}", job, f"{name.tenant}:{name.id}:{until}")
        await self._committers.of(self._stream).append(draft)

    async def consume(self, work: Callable[[Name], Awaitable[object]]) -> None:
        """Do the jobs, a few streams at a time, until cancelled. One that fails comes again."""
        await self._work.consume(work)


def _source(payload: bytes) -> Name | None:
    try:
        job = _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        log.warning("fanout_job_unreadable")
        return None
    return Name(job.tenant, job.stream)
