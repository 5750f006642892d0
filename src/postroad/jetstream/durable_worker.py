"""Durable background work: requests in a work-queue stream, handled at least once by any number of processes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Delivery, nak
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.kernel.errors import PostroadError

_CONCURRENT_MAX = 8
_LEASE_MS = 60_000
_RETRY_MS = 2_000
_PULL_SECONDS = 5.0

Work = TypeVar("Work", bound=Hashable)

log = structlog.get_logger("postroad.jetstream")


def work_stream(stream: str, subject: str, replicas: int) -> StreamSpec:
    """The stream for requests on `<subject>.>`, each of which is removed when it is acknowledged."""
    options = {"retention": "workqueue", "allow_atomic": True, "num_replicas": replicas, "duplicate_window": 60_000_000_000}
    return StreamSpec(stream, (f"{subject}.>",), options)


class DurableWorker(Generic[Work]):
    """Handles the requests of a work stream.

    `decode` returns the work that a request asks for, or None if the request is invalid and must be dropped. Requests for equal
    work that are pulled together are handled by one call.
    """

    def __init__(self, connection: Connection, spec: StreamSpec, consumer: str, decode: Callable[[bytes], Work | None]) -> None:
        self._connection, self._stream, self._subject = connection, spec.name, spec.subjects[0]
        self._consumer, self._decode = consumer, decode

    async def consume(self, handler: Callable[[Work], Awaitable[object]]) -> None:
        """Call `handler` for each piece of work, a few at a time, until cancelled. If it fails, the request is retried later."""
        await ensure_work_consumer(self._connection, self._stream, self._consumer, self._subject)
        queue = PullConsumer(self._connection, self._stream, self._consumer)
        while True:
            deliveries: list[Delivery] = []
            try:
                deliveries = await queue.pull(_CONCURRENT_MAX, _PULL_SECONDS)
                queue.send_acknowledgements([(one.ref, nak(_LEASE_MS)) for one in deliveries])
                groups = self._group(deliveries)
                await asyncio.gather(*(self._handle(queue, work, group, handler) for work, group in groups.items()))
            except asyncio.CancelledError:  # release the requests to other processes; those already acknowledged are not affected
                with contextlib.suppress(PostroadError):
                    queue.send_acknowledgements([(one.ref, nak(0)) for one in deliveries])
                raise
            except PostroadError as error:
                log.warning("work_delayed", stream=self._stream, code=error.code)
                await asyncio.sleep(0.5)

    def _group(self, deliveries: list[Delivery]) -> dict[Work | None, list[Delivery]]:
        groups: dict[Work | None, list[Delivery]] = {}
        for delivery in deliveries:
            groups.setdefault(self._decode(delivery.payload), []).append(delivery)
        return groups

    async def _handle(
        self, queue: PullConsumer, work: Work | None, group: list[Delivery], handler: Callable[[Work], Awaitable[object]]
    ) -> None:
        ack = ACK
        try:
            if work is not None:
                await handler(work)
        except PostroadError as error:
            log.warning("work_failed", stream=self._stream, work=repr(work), code=error.code)
            ack = nak(_RETRY_MS)
        await queue.acknowledge([(one.ref, ack) for one in group])
