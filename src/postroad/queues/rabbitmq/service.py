"""What a process runs for queues in RabbitMQ: the backend, the outboxes, the mover of RabbitMQ's dead letters, the check."""

import asyncio

from postroad.api.health import Check
from postroad.api.queues import RABBITMQ, BackendUnavailable
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.configuration import Secret
from postroad.kernel.ids import new_request_id
from postroad.platform import Platform
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.engine_backend import EngineBackend
from postroad.queues.lease_log import LeaseLog
from postroad.queues.rabbitmq.backend import RabbitBackend
from postroad.queues.rabbitmq.broker_dead_letters import BrokerDeadLetters
from postroad.queues.rabbitmq.connection import RabbitConnection
from postroad.queues.rabbitmq.outbox import OutboxPublisher
from postroad.queues.records import QueueRecord
from postroad.queues.settings import QueuesSettings

_CHECK_SECONDS = 2.0
_MARKER_TTL_MS = 7 * 86_400_000  # longer than a message that was acknowledged can stay in RabbitMQ unnoticed


class RabbitService:
    def __init__(
        self,
        platform: Platform,
        url: Secret,
        engine: EngineBackend,
        table: ReplicatedTable[QueueRecord],
        lease_log: LeaseLog,
        dead_letters: DeadLetters,
    ) -> None:
        chosen = platform.settings.section(QueuesSettings)
        self._is_default = chosen.queue_backend == RABBITMQ
        self._rabbit = RabbitConnection([Secret(one) for one in url.reveal().split(",")])
        self.backend = RabbitBackend(
            platform.connection,
            platform.committers,
            self._rabbit,
            engine,
            table,
            lease_log,
            platform.outbox,
            platform.clock,
            prefix=chosen.rabbitmq_prefix,
            owner=bytes.fromhex(new_request_id()),
            held_max=chosen.rabbitmq_prefetch,
            marker_ttl_ms=_MARKER_TTL_MS,
        )
        self.outboxes = OutboxPublisher(platform.connection, table, self.backend)
        self.dead_letters = BrokerDeadLetters(
            self._rabbit,
            table,
            dead_letters,
            platform.outbox,
            platform.clock,
            prefix=chosen.rabbitmq_prefix,
            restore=self.backend.restore,
        )

    async def check(self) -> Check:
        """The readiness check. Queues of the engine work without RabbitMQ, so it fails only if that is the default."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._rabbit.opened()
        except (BackendUnavailable, TimeoutError):
            return Check(not self._is_default, "unreachable: its queues answer 503 `backend-unavailable`")
        if self._rabbit.is_silent:
            return Check(not self._is_default, "it does not answer: its queues answer 503 `backend-unavailable`")
        return Check(True, "connected")

    async def close(self) -> None:
        await self.backend.close()
