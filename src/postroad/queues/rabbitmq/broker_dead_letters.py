"""Moves the messages that RabbitMQ itself dead-lettered to the dead letters: rejects of native consumers, the delivery limit.

Messages whose time has expired are dropped, as in other queues.
"""

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiormq.abc import AbstractChannel

from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.queues import job_events
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.rabbitmq import metrics
from postroad.queues.rabbitmq.connection import RabbitConnection, answered
from postroad.queues.rabbitmq.messages import death_reason, read, sequence_of
from postroad.queues.rabbitmq.names import dead_queue
from postroad.queues.records import QueueRecord
from postroad.telemetry.outbox import Outbox

_EXPIRED = "expired"
_MESSAGES_MAX = 500  # of a queue per round

log = structlog.get_logger("postroad.rabbitmq")


class BrokerDeadLetters:
    def __init__(
        self,
        rabbit: RabbitConnection,
        table: ReplicatedTable[QueueRecord],
        dead_letters: DeadLetters,
        outbox: Outbox,
        clock: Clock,
        *,
        prefix: str,
        restore: Callable[[QueueRecord], Awaitable[None]],
    ) -> None:
        self._rabbit, self._table, self._dead_letters, self._outbox = rabbit, table, dead_letters, outbox
        self._clock, self._prefix, self._restore = clock, prefix, restore

    async def run_once(self) -> int:
        """Move what there is; the number of dead letters. For the control role."""
        records = [self._table.get(key) for key in self._table.keys_under()]
        moved = 0
        for record in records:
            if record is None or record.backend != "rabbitmq" or record.state is not RecordState.READY:
                continue
            try:
                count = await self._rabbit.count(dead_queue(self._prefix, record))
                if count is None:  # then RabbitMQ keeps what it dead-letters in the main queue
                    await self._restore(record)
                elif count:
                    moved += await self._move(record)
            except PostroadError as problem:
                log.warning("dead_letters_not_moved", queue=record.name, tenant=record.tenant, code=problem.code)
        return moved

    async def _move(self, record: QueueRecord) -> int:
        channel, moved = await self._rabbit.channel(), 0
        try:
            while moved < _MESSAGES_MAX and await self._move_one(record, channel):
                moved += 1
        finally:
            async with answered():
                await channel.close()
        return moved

    async def _move_one(self, record: QueueRecord, channel: AbstractChannel) -> bool:
        """Store a message with the dead letters, then acknowledge it: a crash in between only repeats it."""
        async with answered():
            found = await channel.basic_get(dead_queue(self._prefix, record))
        if found.delivery_tag is None:
            return False
        properties = found.header.properties
        reason = death_reason(properties.headers)
        if reason != _EXPIRED:
            message = read(found.body, properties, is_redelivered=False, now_ms=self._clock())
            stored, attempts = message.stored, message.attempt
            if message.is_native:
                queued = job_events.queued(record, stored, 0, len(found.body), 0)
                await self._outbox.commit(None, msgspec.structs.replace(queued, tenant=record.tenant))
            letter = await self._dead_letters.store(
                record,
                stored,
                sequence_of(stored.id, message.copy),
                attempts,
                f"RabbitMQ dead-lettered the message: {reason or 'unknown'}",
            )
            event = job_events.dead(record, stored, letter)
            await self._outbox.commit(None, msgspec.structs.replace(event, tenant=record.tenant))
            metrics.dead_lettered.inc()
        async with answered():
            await channel.basic_ack(found.delivery_tag)
        return True
