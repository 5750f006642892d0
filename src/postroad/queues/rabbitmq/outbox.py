"""Publishes the messages of outboxes to RabbitMQ.

A message is published with confirm before it is removed from the outbox, so a crash in between publishes it again. It carries
its sequence in the outbox, by which acknowledgements of both copies are one.
"""

import asyncio
import contextlib

import structlog

from postroad.api.queues import BackendCannot, QueueNotFound
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Acknowledgement, Delivery, nak
from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.errors import PostroadError, Unavailable
from postroad.kernel.names import escape
from postroad.queues.rabbitmq.backend import RabbitBackend
from postroad.queues.records import QueueRecord, read_message

_PULL_SIZE = 200
_PULL_SECONDS = 20.0
_RETRY_MS = 500
_UNREADABLE_MS = 3_600_000
_REFUSED_MS = 10_000
_FAILED_SECONDS = 0.5

log = structlog.get_logger("postroad.rabbitmq")


class OutboxPublisher:
    """One task per queue in RabbitMQ. Any number of processes may run it: they share the messages."""

    def __init__(self, connection: Connection, table: ReplicatedTable[QueueRecord], backend: RabbitBackend) -> None:
        self._connection, self._table, self._backend = connection, table, backend
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by incarnation
        self._changed = asyncio.Event()
        table.on_change(lambda _key, _record: self._changed.set())

    async def run(self) -> None:
        """Serve the queues that exist, until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._follow()
                await self._changed.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _follow(self) -> None:
        records = [self._table.get(key) for key in self._table.keys_under()]
        wanted = {
            one.incarnation: one
            for one in records
            if one is not None and one.backend == "rabbitmq" and one.state is RecordState.READY
        }
        for incarnation in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(incarnation).cancel()
        for incarnation, record in wanted.items():
            task = self._tasks.get(incarnation)
            if task is None or task.done():
                self._tasks[incarnation] = asyncio.create_task(self._serve(record))

    async def _serve(self, record: QueueRecord) -> None:
        key, consumer = f"{record.tenant}.{escape(record.name)}", PullConsumer(self._connection, record.stream, record.consumer)
        while True:
            deliveries: list[Delivery] = []
            try:
                deliveries = await consumer.pull(_PULL_SIZE, _PULL_SECONDS)
                changed = self._table.get(key)
                if changed is not None and changed.incarnation == record.incarnation:
                    record = changed
                outcomes = await asyncio.gather(*(self._publish(record, one) for one in deliveries))
                await consumer.acknowledge(outcomes)
                if any(ack != ACK for _, ack in outcomes):
                    await asyncio.sleep(_FAILED_SECONDS)
            except asyncio.CancelledError:
                consumer.release([one.ref for one in deliveries])
                consumer.close(QueueNotFound("the queue was deleted"))
                raise
            except Exception as problem:
                if isinstance(problem, PostroadError):
                    log.warning("outbox_delayed", queue=record.name, tenant=record.tenant, code=problem.code)
                else:  # its messages must not wait until a queue changes
                    log.exception("outbox_failed", queue=record.name, tenant=record.tenant)
                with contextlib.suppress(PostroadError):
                    consumer.release([one.ref for one in deliveries])
                await asyncio.sleep(_FAILED_SECONDS)

    async def _publish(self, record: QueueRecord, delivery: Delivery) -> Acknowledgement:
        try:
            message = read_message(delivery.payload)
        except ValueError:
            log.error("message_unreadable", stream=record.stream, sequence=delivery.ref.stream_sequence)
            return delivery.ref, nak(_UNREADABLE_MS)
        try:
            await self._backend.publish(record, message, copy=str(delivery.ref.stream_sequence))
        except Unavailable:
            return delivery.ref, nak(_RETRY_MS)
        except BackendCannot as problem:  # until the settings change
            log.warning("outbox_refused", queue=record.name, tenant=record.tenant, detail=problem.detail)
            return delivery.ref, nak(_REFUSED_MS)
        return delivery.ref, ACK
